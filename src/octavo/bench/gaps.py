"""How long those who decode wait for their next token, while nothing happens and while a long prompt is read."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final

from octavo.bench.loaded import LoadedEngine
from octavo.bench.stepping import Clock, SteppingClient
from octavo.errors import OctavoError
from octavo.messages import AddRequest
from octavo.params import SamplingParams

NUM_RUNNING: Final = 4
_PROMPT_TOKENS: Final = 32
_QUIET_TOKENS: Final = 64
_LONG: Final = "long"


def gap_room(long_prompt: int) -> int:
    """Tokens a request must have room for: the long prompt, or what the others generate meanwhile at most."""
    return max(long_prompt + 1, _PROMPT_TOKENS + _num_generated(long_prompt))


def longest_gaps(loaded: LoadedEngine, long_prompt: int) -> tuple[float, float]:
    """Longest seconds between two outputs of one of the requests that decode: before, and while a prompt is read.

    Raises: OctavoError if one of them ends before the long prompt is read.
    """
    running = [f"running-{i}" for i in range(NUM_RUNNING)]
    client = loaded.client
    watch = _Watch(client, running)
    try:
        for name, prompt in zip(running, loaded.prompts(NUM_RUNNING, _PROMPT_TOKENS), strict=True):
            client.add(_message(name, prompt, _num_generated(long_prompt)))
        watch.step_until(lambda: all(watch.num_tokens[name] for name in running))
        watch.longest_s = 0.0
        goal = watch.num_tokens[running[0]] + _QUIET_TOKENS
        quiet_s = watch.step_until(lambda: watch.num_tokens[running[0]] >= goal)
        watch.longest_s = 0.0
        client.add(_message(_LONG, loaded.prompts(1, long_prompt)[0], 1))
        return quiet_s, watch.step_until(lambda: watch.num_tokens[_LONG] > 0)
    finally:
        client.abort([*running, _LONG])
        client.outputs()  # tells of the ends


def _num_generated(long_prompt: int) -> int:
    # A call may run up to 64 steps; each step beside a prompt reads 16 tokens of it or more.
    return 4 * _QUIET_TOKENS + long_prompt // 16 + 1


def _message(request_id: str, prompt: list[int], num_tokens: int) -> AddRequest:
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True, seed=0)
    return AddRequest(request_id, prompt, params, is_streamed=True)


class _Watch:
    """Runs steps and takes the time between the outputs of each of these requests."""

    def __init__(
        self, client: SteppingClient, names: Sequence[str], clock: Clock = time.perf_counter
    ) -> None:
        self.num_tokens = dict.fromkeys([*names, _LONG], 0)
        self.longest_s = 0.0
        self._client = client
        self._clock = clock
        self._last_s: dict[str, float] = {}

    def step_until(self, is_done: Callable[[], bool]) -> float:
        """The longest gap so far, once `is_done`."""
        while not is_done():
            outputs = self._client.outputs().outputs
            now_s = self._clock()
            for output in outputs:
                name = output.request_id
                self.num_tokens[name] += len(output.token_ids)
                if name == _LONG:
                    continue
                if output.finish_reason is not None:
                    raise OctavoError(f"a request ended before the long prompt was read: {output}")
                self.longest_s = max(self.longest_s, now_s - self._last_s.get(name, now_s))
                self._last_s[name] = now_s
        return self.longest_s
