from __future__ import annotations

from octavo.api.collect import OutputCollector
from octavo.api.outputs_processor import Event, RequestState
from octavo.messages import AddRequest, ChoiceOutput, TokenScore
from octavo.outputs import Finished, FinishReason, TextDelta, Usage
from octavo.params import SamplingParams
from tests.unit.api.fakes import END, START, WORLD, FakeTokenizer, ids_of


def state_for(**params: object) -> RequestState:
    request = AddRequest("r", [1, 2, 3], SamplingParams(**{"max_tokens": 50, **params}))  # type: ignore[arg-type]
    return RequestState(request, FakeTokenizer())


def feed(state: RequestState, *steps: ChoiceOutput) -> list[Event]:
    return [event for step in steps for event in state.process(step)]


def out(token_ids: list[int], reason: str | None = None, **more: object) -> ChoiceOutput:
    return ChoiceOutput("r", 0, token_ids, finish_reason=reason, **more)  # type: ignore[arg-type]


def text_of(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def end_of(events: list[Event]) -> Finished:
    [end] = [event for event in events if isinstance(event, Finished)]
    assert events[-1] is end
    return end


def test_the_end_token_is_counted_and_not_shown() -> None:
    state = state_for()
    events = feed(state, out(ids_of("hi")), out([END], "stop"))
    assert text_of(events) == "hi"
    assert end_of(events) == Finished(0, FinishReason.STOP)
    assert state.usage == Usage(3, 3)
    assert state.is_engine_done


def test_an_ordinary_token_that_ends_the_answer_is_not_shown_either() -> None:
    events = feed(state_for(), out([WORLD], "stop", stop_reason=WORLD))
    assert text_of(events) == ""
    assert end_of(events).stop_reason == WORLD


def test_the_end_token_is_shown_when_asked_for() -> None:
    state = state_for(include_stop_str_in_output=True)
    assert text_of(feed(state, out([WORLD], "stop", stop_reason=WORLD))) == " world"


def test_a_character_spread_over_tokens_comes_whole() -> None:
    events = feed(state_for(), out([262]), out([0xA6]), out([263]), out([], "length"))
    assert [e.text for e in events if isinstance(e, TextDelta) and e.text] == ["\N{LLAMA}"]


def test_a_character_that_stays_incomplete_shows_at_the_end() -> None:
    assert text_of(feed(state_for(), out([262], "length"))) == "\N{REPLACEMENT CHARACTER}"


def test_a_stop_string_ends_the_choice_here_and_the_engine_does_not_know() -> None:
    state = state_for(stop=("FGH",))
    events = feed(state, out([259]), out([260, 261, WORLD]))
    assert text_of(events) == "ABCDE"
    assert end_of(events) == Finished(0, FinishReason.STOP, "FGH")
    assert state.usage.completion_tokens == 3  # the token after the stop string is not counted
    assert state.is_finished
    assert not state.is_engine_done
    assert feed(state, out([WORLD]), out([WORLD], "abort")) == []


def test_a_stop_string_on_the_last_allowed_token_wins_over_length() -> None:
    events = feed(state_for(stop=(" world",)), out([WORLD], "length"))
    assert text_of(events) == ""
    assert end_of(events).reason is FinishReason.STOP


def test_a_stop_string_before_the_end_token_of_the_same_step_wins() -> None:
    state = state_for(stop=("GH",))
    events = feed(state, out([261, END], "stop"))
    assert end_of(events).stop_reason == "GH"
    assert state.usage.completion_tokens == 1


def test_held_back_text_is_shown_when_the_answer_ends_otherwise() -> None:
    events = feed(state_for(stop=("GHI",)), out([261]), out([END], "stop"))
    assert text_of(events) == "GH"


def test_no_stop_string_counts_before_min_tokens() -> None:
    state = state_for(stop=("GH",), min_tokens=3)
    events = feed(state, out([261]), out([WORLD]), out([261]))
    assert text_of(events) == "GH world"
    assert end_of(events).stop_reason == "GH"


def test_control_tokens_are_left_out_unless_wanted() -> None:
    assert text_of(feed(state_for(), out([START, 97], "length"))) == "a"
    state = state_for(skip_special_tokens=False)
    assert text_of(feed(state, out([START, 97], "length"))) == "<|start|>a"


def test_logprobs_follow_the_tokens_that_count() -> None:
    state = state_for(stop=("GH",), logprobs=1)
    scores = [TokenScore(t, -0.5, 2, [97], [-0.1]) for t in (261, WORLD)]
    [delta, _] = feed(state, out([261, WORLD], scores=scores))
    assert isinstance(delta, TextDelta)
    [position] = delta.logprobs
    assert [(i, p.rank, p.decoded_token) for i, p in position.items()] == [
        (261, 2, "GH"),
        (97, 1, "a"),
    ]


def test_hidden_tokens_add_no_bytes_and_parts_of_characters_are_spelled_out() -> None:
    state = state_for(logprobs=0)
    scores = [TokenScore(t, -0.5, 1) for t in (262, END)]
    [delta, _] = feed(state, out([262, END], "stop", scores=scores))
    assert isinstance(delta, TextDelta)
    shown = [next(iter(p.values())) for p in delta.logprobs]
    assert [(p.decoded_token, p.token_bytes) for p in shown] == [
        (r"bytes:\xf0\x9f", b"\xf0\x9f"),
        ("<|end|>", b""),
    ]


def test_prompt_scores_come_in_parts_and_start_with_none() -> None:
    state = state_for(prompt_logprobs=0, max_tokens=0)
    feed(
        state,
        out([], prompt_scores=[TokenScore(2, -1.0, 4)]),
        out([], "length", prompt_scores=[TokenScore(3, -2.0, 5)]),
    )
    first, *rest = state.prompt_logprobs or []
    assert first is None
    assert [p and {i: entry.logprob for i, entry in p.items()} for p in rest] == [
        {2: -1.0},
        {3: -2.0},
    ]


def test_each_choice_ends_once_whatever_happens() -> None:
    state = state_for(n=2, seed=1)
    feed(state, out([97], "length"))
    assert not state.is_finished
    events = state.end_all(FinishReason.ERROR, "broken")
    assert events == [Finished(1, FinishReason.ERROR, error="broken")]
    assert state.end_all(FinishReason.ERROR) == []


def test_the_collector_adds_up_and_its_snapshots_stay() -> None:
    state = state_for(logprobs=0)
    collector = OutputCollector(state)
    collector.add(feed(state, out([97], scores=[TokenScore(97, -0.5, 1)], num_cached_tokens=2)))
    before = collector.snapshot()
    collector.add(feed(state, out([END], "stop", scores=[TokenScore(END, -0.25, 1)])))
    after = collector.snapshot()
    assert (before.outputs[0].text, before.is_finished) == ("a", False)
    assert before.outputs[0].token_ids == [97]
    assert (after.outputs[0].text, after.outputs[0].finish_reason) == ("a", "stop")
    assert after.outputs[0].token_ids == [97, END]
    assert after.outputs[0].cumulative_logprob == -0.75
    assert (after.finished, after.num_cached_tokens) == (True, 2)
    assert after.metrics.finished_s is not None


def test_an_error_says_why_in_the_stop_reason() -> None:
    state = state_for()
    collector = OutputCollector(state)
    collector.add(feed(state, out([], "error", error="no luck")))
    assert collector.snapshot().outputs[0].stop_reason == "no luck"
