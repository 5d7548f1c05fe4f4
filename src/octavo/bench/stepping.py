"""An engine client that watches the steps it runs: what `LLM` drives while a benchmark measures in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from octavo.api.runtime import Runtime
from octavo.messages import AddRequest, EngineInfo, EngineStats, StepOutputs
from octavo.observability.limits import MachineCeilings
from octavo.observability.op_costs import OpCost

Clock = Callable[[], float]

_PROBE_S: Final = 0.1
"""Long enough for some rounds of reading the weights, short beside what is measured between two probes."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time: seconds on the wall, those of them spent in the backend, steps run."""

    seconds: float
    model_s: float
    num_steps: int

    @classmethod
    def between(cls, start_s: float, before: EngineStats, end_s: float, after: EngineStats) -> Span:
        """From one look at clock and counters to the next."""
        return cls(
            end_s - start_s, after.model_s - before.model_s, after.num_steps - before.num_steps
        )

    @property
    def outside_share(self) -> float:
        """Of the wall time, spent outside the model: scheduling, arrays, detokenising, messages."""
        return 1 - self.model_s / self.seconds


def _nothing() -> None:
    """Nobody waits for the window to open."""


class DecodeWindow:
    """Times requests that are decoded together: from the step that gives the last of them its first token on.

    It ends when `num_tokens` more came, or with the first request that ends: after that not all decode any more.
    `on_open` is called between two steps.
    """

    def __init__(
        self, num_requests: int, num_tokens: int, on_open: Callable[[], None] = _nothing
    ) -> None:
        self.num_tokens = 0
        self.is_over = False
        self._num_waiting = num_requests
        self._num_wanted = num_tokens
        self._on_open = on_open
        self._started: set[str] = set()
        self._start_s = self._end_s = 0.0
        self._before = self._after = EngineStats()

    @property
    def tokens_per_s(self) -> float | None:
        """None if the window never opened, or no token came in it."""
        return None if self.span is None else self.num_tokens / self.span.seconds

    @property
    def span(self) -> Span | None:
        """The time in which its tokens came; None as `tokens_per_s`."""
        if not self.num_tokens:
            return None
        return Span.between(self._start_s, self._before, self._end_s, self._after)

    def observe(self, outputs: StepOutputs, now_s: float) -> None:
        """Take the outputs of a step that ended at `now_s`."""
        if self.is_over:
            return
        if self._num_waiting:
            self._started.update(o.request_id for o in outputs.outputs if o.token_ids)
            if len(self._started) == self._num_waiting:
                self._num_waiting, self._start_s, self._before = 0, now_s, outputs.stats
                self._on_open()
        else:
            self.num_tokens += sum(len(output.token_ids) for output in outputs.outputs)
            self._end_s, self._after = now_s, outputs.stats
        if (
            any(output.finish_reason is not None for output in outputs.outputs)
            or self.num_tokens >= self._num_wanted
        ):
            self.is_over = True


class SteppingClient:
    """The `EngineClient` of an engine in this thread. Shows its steps to a window, and ends the requests with it."""

    def __init__(self, runtime: Runtime, clock: Clock = time.perf_counter) -> None:
        self._engine = runtime.engine
        self._clock = clock
        self._window: DecodeWindow | None = None
        self._ids: list[str] = []

    def watch(self, window: DecodeWindow | None) -> None:
        """Show the steps from now on to this window, if any, and end the requests added from now on with it."""
        self._window = window
        self._ids = []

    @property
    def info(self) -> EngineInfo:
        """What is loaded."""
        return self._engine.info

    def add(self, message: AddRequest) -> None:
        """Send a request."""
        self._engine.add(message)
        self._ids.append(message.request_id)

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests now."""
        self._engine.abort(request_ids)

    def predict_first_token_s(self, num_tokens: int) -> float | None:
        """Nobody waits in this thread: nothing is predicted."""
        return None

    def reset_prefix_cache(self) -> None:
        """Forget what is stored of earlier prompts."""
        self._engine.reset_prefix_cache()

    def outputs(self) -> StepOutputs:
        """Run one step."""
        outputs = self._engine.step()
        if self._window is not None:
            self._window.observe(outputs, self._clock())
            if self._window.is_over:
                self._engine.abort(self._ids)
                self.watch(None)
        return outputs

    def stats(self) -> EngineStats:
        """Counters and gauges."""
        return self._engine.stats()

    def set_counting(self, is_counting: bool) -> None:
        """Whether the operations of steps from now on are counted; turning it on starts from zero."""
        self._engine.set_counting(is_counting)

    def op_costs(self) -> list[OpCost]:
        """What was counted."""
        return self._engine.op_costs()

    def measure_ceilings(self) -> MachineCeilings | None:
        """What the machine allows this model at this moment; None where nothing is known of its work."""
        return self._engine.measure_ceilings(_PROBE_S)

    def limit_calls(self, max_call_s: float | None) -> None:
        """Run decode steps together up to this long; 0: each by itself; None: as the engine does of itself."""
        self._engine.limit_calls(max_call_s)

    def close(self) -> None:
        """Free the model."""
        self._engine.close()


class LimitsBetween:
    """What the machine allows from one look to the next: limits change within seconds (docs/perf)."""

    def __init__(self, client: SteppingClient) -> None:
        self._client = client
        self._last = client.measure_ceilings()

    def look(self) -> MachineCeilings | None:
        """What was allowed since the last look, or since the start; None where nothing is known of the model's work."""
        before, self._last = self._last, self._client.measure_ceilings()
        if before is None or self._last is None:
            return None
        return before.mean_with(self._last)
