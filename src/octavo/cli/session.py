"""One conversation with a model, streamed to standard output."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from octavo.api.async_llm import AsyncLLM
from octavo.cli.exits import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, fail
from octavo.cli.report import explanation_lines, logprob_lines, stats_line
from octavo.outputs import FinishReason, RequestOutput
from octavo.params import SamplingParams

_VISIBLE: Final = {
    code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t\r"
}
"""What a terminal would obey, spelled out: a model's text must not move the cursor or set a title."""


@dataclass(slots=True)
class Session:
    """Asks a model and prints what it says. A context manager.

    The engine runs in a thread of its own, so that Ctrl-C ends an answer at once and leaves the engine sound.
    """

    llm: AsyncLLM
    sampling: SamplingParams
    system: str | None = None
    is_raw: bool = False
    shows_stats: bool = False
    history: list[dict[str, object]] = field(default_factory=list)
    _runner: asyncio.Runner = field(default_factory=asyncio.Runner)

    def __post_init__(self) -> None:
        if not self.is_raw and not self.llm.has_chat_template:
            self.is_raw = True
            lost = "" if self.system is None else ", without the system message"
            print(
                f"The model has no chat template: completing raw text{lost} (--chat-template sets one).",
                file=sys.stderr,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._runner.close()

    def restart(self, system: str | None) -> None:
        """Forget the conversation; `system` heads the next one."""
        self.system = system
        self.history.clear()

    def answer(self, text: str) -> int:
        """Stream one answer; returns the exit code: 130 if Ctrl-C stopped it. Raises: InvalidRequest, EngineDead."""
        turn: dict[str, object] = {"role": "user", "content": text}
        printer = _Printer()
        started = time.monotonic()
        code = EXIT_OK
        try:
            self._runner.run(_drain(self._outputs(text, turn), printer))
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        printer.end()
        final = printer.newest
        if final is None:
            return code
        completion = final.outputs[0]
        if completion.finish_reason == FinishReason.ERROR.value:
            return fail(str(completion.stop_reason), EXIT_FAILED)
        if not self.is_raw:
            self.history += [turn, {"role": "assistant", "content": completion.text}]
        self._tell(final, time.monotonic() - started)
        return code

    def _outputs(self, text: str, turn: dict[str, object]) -> AsyncIterator[RequestOutput]:
        if self.is_raw:
            return self.llm.generate(text, self.sampling)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return self.llm.chat([*first, *self.history, turn], self.sampling)

    def _tell(self, final: RequestOutput, elapsed_s: float) -> None:
        is_cut = final.outputs[0].finish_reason == FinishReason.LENGTH.value
        if is_cut and self.sampling.max_tokens is None:
            length = self.llm.info.max_model_len
            print(
                f"[the context of {length} tokens is full: the answer ends here]", file=sys.stderr
            )
        for line in logprob_lines(final):
            print(line, file=sys.stderr)
        for line in explanation_lines(final):
            print(line, file=sys.stderr)
        if self.shows_stats:
            print(stats_line(final, elapsed_s), file=sys.stderr)


class _Printer:
    """Writes the new part of each state of an answer."""

    def __init__(self) -> None:
        self.newest: RequestOutput | None = None
        self._num_printed = 0
        self._table = _VISIBLE if sys.stdout.isatty() else {}

    def show(self, output: RequestOutput) -> None:
        self.newest = output
        text = output.outputs[0].text
        if len(text) > self._num_printed:
            sys.stdout.write(text[self._num_printed :].translate(self._table))
            sys.stdout.flush()
            self._num_printed = len(text)

    def end(self) -> None:
        sys.stdout.write("\n")
        sys.stdout.flush()


async def _drain(outputs: AsyncIterator[RequestOutput], printer: _Printer) -> None:
    async for output in outputs:
        printer.show(output)
