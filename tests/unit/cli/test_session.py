"""Answers and chats of `octavo run`, by a model that plays a script."""

from __future__ import annotations

import builtins
import signal
from collections.abc import Callable, Iterator

import pytest

from octavo.api.async_llm import AsyncLLM
from octavo.cli.chat_loop import chat_loop
from octavo.cli.session import Session
from octavo.messages import StepOutputs
from octavo.params import SamplingParams
from tests.unit.api.fakes import FakeClient, LoopClient, always, ids_of, processor, token

A = ids_of("a")[0]


class Interrupting(FakeClient):
    """Ctrl-C comes while the third step runs."""

    num_calls = 0

    def outputs(self) -> StepOutputs:
        self.num_calls += 1
        if self.num_calls == 3:
            signal.raise_signal(signal.SIGINT)
        return super().outputs()


@pytest.fixture
def session_with() -> Iterator[Callable[..., Session]]:
    """Makes a session over a client, with or without a chat template."""
    made: list[Session] = []

    def make(client: FakeClient, *, is_chat: bool = True, **options: object) -> Session:
        model = processor() if is_chat else processor(chat_template=None)
        llm = AsyncLLM.from_client(lambda d: LoopClient(client, d), model, lambda: True)
        sampling = options.pop("sampling", SamplingParams(max_tokens=30))
        session = Session(llm, sampling, **options)  # type: ignore[arg-type]
        made.append(session)
        return session

    yield make
    for session in made:
        session.__exit__(None, None, None)


@pytest.fixture
def type_lines(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What a user types, line by line, then the end of input. An exception is raised in a line's place."""

    def type_(*lines: str | type[BaseException]) -> None:
        rest = iter(lines)

        def read(prompt: str = "") -> str:
            line = next(rest, EOFError)
            if isinstance(line, str):
                return line
            raise line

        monkeypatch.setattr(builtins, "input", read)

    return type_


def prompts(client: FakeClient) -> list[str]:
    """The rendered prompts that reached the engine."""
    marks = {256: "|", 257: ">"}
    return [
        "".join(marks.get(i) or chr(i) for i in request.prompt_token_ids)
        for request in client.requests
    ]


def test_an_answer_is_streamed_and_ends_with_a_newline(session_with, capsys) -> None:
    client = FakeClient(always("héy 😀"))
    session = session_with(client)
    assert session.answer("Hi") == 0
    assert capsys.readouterr().out == "héy 😀\n"
    assert prompts(client) == [">user\nHi|>assistant\n"]


def test_ctrl_c_ends_the_answer_with_130_and_the_session_goes_on(session_with, capsys) -> None:
    client = Interrupting(token(A))
    session = session_with(client)
    assert session.answer("Hi") == 130
    assert capsys.readouterr().out in ("a\n", "aa\n", "aaa\n")
    assert len(client.aborted) == 1
    assert session.answer("Again") == 0
    assert capsys.readouterr().out == "a" * 30 + "\n"


def test_an_engine_error_ends_with_1_and_is_told(session_with, capsys) -> None:
    client = FakeClient(token(A))
    client.fails_at = 2
    assert session_with(client).answer("Hi") == 1
    out, err = capsys.readouterr()
    assert out == "aa\n"
    assert err.splitlines()[-1].startswith("octavo: ")


def test_a_chat_remembers_until_told_to_forget(session_with, type_lines, capsys) -> None:
    client = FakeClient(always("ok"))
    type_lines("one", "two", "/clear", "three", "/system Be brief", "four", "/exit", "five")
    assert chat_loop(session_with(client)) == 0
    assert prompts(client) == [
        ">user\none|>assistant\n",
        ">user\none|>assistant\nok|>user\ntwo|>assistant\n",
        ">user\nthree|>assistant\n",
        ">system\nBe brief|>user\nfour|>assistant\n",
    ]
    assert capsys.readouterr().out == "ok\n" * 4


def test_a_question_that_does_not_fit_leaves_the_chat_alive(
    session_with, type_lines, capsys
) -> None:
    client = FakeClient(always("ok"))
    type_lines("x" * 200, "two")
    assert chat_loop(session_with(client)) == 0
    out, err = capsys.readouterr()
    assert out == "ok\n"
    assert "100 tokens" in err
    assert "/clear" in err
    assert prompts(client) == [">user\ntwo|>assistant\n"]


def test_ctrl_c_at_the_prompt_tells_how_to_leave(session_with, type_lines, capsys) -> None:
    type_lines(KeyboardInterrupt, "", "/nonsense", "/help")
    assert chat_loop(session_with(FakeClient(always("ok")))) == 0
    err = capsys.readouterr().err
    assert "Ctrl-D leaves" in err
    assert "unknown command /nonsense" in err
    assert err.count("/system TEXT") == 2


def test_a_model_without_template_completes_raw_text_and_says_so_once(
    session_with, type_lines, capsys
) -> None:
    client = FakeClient(always("ok"))
    type_lines("one", "two", "/system no")
    session = session_with(client, is_chat=False)
    chat_loop(session)
    assert prompts(client) == ["one", "two"]
    err = capsys.readouterr().err
    assert err.count("no chat template") == 1
    assert "raw text has no system message" in err


def test_stats_and_logprobs_are_told_apart_from_the_answer(session_with, capsys) -> None:
    sampling = SamplingParams(max_tokens=2, logprobs=2, prompt_logprobs=0)
    session = session_with(FakeClient(token(A)), sampling=sampling, shows_stats=True, is_raw=True)
    session.answer("xy")
    out, err = capsys.readouterr()
    assert out == "aa\n"
    *scores, stats = err.splitlines()
    assert [line.split()[0] for line in scores] == ["[prompt", "[answer", "[answer"]
    assert "-0.250" in scores[1]
    assert "'b'" in scores[1]
    assert stats.startswith("[2 prompt tokens, 0 cached; first token ")
    assert "2 tokens" in stats


def test_an_answer_that_fills_the_context_says_so(session_with, capsys) -> None:
    session = session_with(FakeClient(token(A)), sampling=SamplingParams(max_tokens=None))
    session.answer("Hi")
    assert "the context of 100 tokens is full" in capsys.readouterr().err


def test_a_terminal_is_not_given_control_characters(session_with, capsys, monkeypatch) -> None:
    script = always("a\x1b]0;b\x07\n\tc")
    session_with(FakeClient(script)).answer("Hi")
    assert "\x1b" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    session_with(FakeClient(script)).answer("Hi")
    assert capsys.readouterr().out == "a\\x1b]0;b\\x07\n\tc\n"


def test_explain_prints_what_the_time_went_to(
    session_with: Callable[..., Session], capsys: pytest.CaptureFixture[str]
) -> None:
    sampling = SamplingParams(max_tokens=30, explain=True)
    assert session_with(FakeClient(always("Hi")), sampling=sampling).answer("x") == 0
    out, err = capsys.readouterr()
    assert out == "Hi\n"
    assert err.startswith("[The engine told nothing of this request")
