"""Where the time of steps goes, operation by operation: what a backend counted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Operations alike, in whatever layer, summed over the steps that were counted.

    Times are those of one thread, the calling one, and of its part of the work: every thread has a part as large, or
    (in large batches) tokens of its own, so its time stands for all. `macs` and `weight_bytes` are of all rows and
    threads: divided by seconds they are the rates of all threads together.
    """

    name: str
    """What is computed, such as "multiply Q4_1 1536x576 + Q4_1 1536x576" (rows x columns of the weights)."""
    calls: int
    """Runs: one a step and layer, more where a step is cut into pieces."""
    rows: int
    """Tokens, or rows of logits, of all runs."""
    seconds: float
    """Of work."""
    wait_seconds: float
    """Waiting for other threads right after it."""
    macs: int = 0
    """Multiply-accumulates with weights. Attention's own are not counted."""
    weight_bytes: int = 0
    """Packed weights read, once for each run; of an embedding table its rows that were looked up."""
    is_float: bool = False
    """Whether the weights are floats, whose products no int8 instruction computes."""

    @property
    def macs_per_s(self) -> float | None:
        """Multiply-accumulates per second of work, None if there are none."""
        return self.macs / self.seconds if self.macs and self.seconds > 0 else None

    @property
    def bytes_per_s(self) -> float | None:
        """Bytes of weights per second of work, None if it reads none."""
        return self.weight_bytes / self.seconds if self.weight_bytes and self.seconds > 0 else None
