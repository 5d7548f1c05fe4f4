"""One log line, once an engine is warm: the limit of this machine, and the share of it that decoding reaches."""

from __future__ import annotations

import logging
from typing import Final

from octavo.observability.limits import Bound, MachineCeilings, ModelWork, step_limit
from octavo.ops.protocol import Batch, Executor

_logger = logging.getLogger(__name__)

_WARM_UP_STEPS: Final = 20
_NUM_STEPS: Final = 100
_PROBE_S: Final = 0.12
"""At load, with the weights in place. A large model's single reading may take it to 0.2 s."""


class ShareLog:
    """Watches decode steps until it has said its line."""

    def __init__(self, work: ModelWork, ceilings: MachineCeilings) -> None:
        self._work = work
        self._ceilings = ceilings
        self._num_warm_up = 0
        self._num_steps = 0
        self._num_rows = 0
        self._least_s = dict.fromkeys(Bound, 0.0)
        self._taken_s = 0.0
        self.share: float | None = None
        """Of the limit, what was reached; once the line was said."""

    @property
    def is_done(self) -> bool:
        """Whether the line was said: nothing more is to be shown."""
        return self._num_steps >= _NUM_STEPS

    def observe(self, batch: Batch, seconds: float, num_steps: int = 1) -> None:
        """Take the time of a step, or of `num_steps` decode steps in one call. A step that reads prompts is passed over."""
        num_tokens = len(batch.token_ids)
        if self.is_done or num_tokens != len(batch.seq_lens):
            return
        if self._num_warm_up < _WARM_UP_STEPS:
            self._num_warm_up += num_steps
            return
        limit = step_limit(
            self._work,
            self._ceilings,
            num_tokens=num_tokens,
            num_rows=len(batch.output_rows),
            context_bytes=self._work.context_bytes(batch.seq_lens),
        )
        self._num_steps += num_steps
        self._num_rows += num_steps * num_tokens
        self._least_s[limit.bound] += num_steps * limit.seconds
        self._taken_s += seconds
        if self.is_done and self._taken_s > 0:
            self._say()

    def _say(self) -> None:
        bound = max(Bound, key=self._least_s.__getitem__)
        if bound is Bound.MEMORY:
            rate = self._ceilings.read_bytes_per_s(self._work.weight_bytes)
            ceiling = f"reading {self._work.weight_bytes / 1e6:.0f} MB of weights, and KV, at {rate / 1e9:.1f} GB/s"
        else:
            peak = self._ceilings.int8_macs_per_s
            ceiling = f"{self._ceilings.int8_instructions} at {peak / 1e9:.0f} GMAC/s"
        least_s = sum(self._least_s.values())
        self.share = least_s / self._taken_s
        _logger.info(
            "warm: %d decode steps of %.1f requests took %.2f ms each, %.0f %% of what this machine allows "
            "(%.2f ms, %s)",
            self._num_steps,
            self._num_rows / self._num_steps,
            self._taken_s / self._num_steps * 1000,
            100 * self.share,
            least_s / self._num_steps * 1000,
            ceiling,
        )


def start_share_log(executor: Executor) -> ShareLog | None:
    """Measure the ceilings, in at most 0.2 s, and begin to watch. None where nobody would read the line."""
    work = executor.work
    if work is None or not _logger.isEnabledFor(logging.INFO):
        return None
    ceilings = executor.measure_ceilings(_PROBE_S)
    return None if ceilings is None else ShareLog(work, ceilings)
