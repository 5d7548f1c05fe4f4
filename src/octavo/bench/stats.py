"""What happened to requests -> percentiles, throughput, goodput."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

PERCENTILES: Final = (50, 90, 99)
MAX_MISPREDICTION: Final = 0.3
"""Of the time to the first token, what a prediction may be off."""
MAX_ERRORS: Final = 10
"""Different errors that a report tells, the most frequent ones."""


@dataclass(slots=True)
class RequestRecord:
    """What one request saw. Times in seconds of one monotonic clock; `error` is None for a whole answer.

    `started_s` is when it was due, not when the client got round to it: a client that falls behind hides no latency.
    """

    started_s: float
    first_s: float | None = None
    last_s: float | None = None
    ended_s: float | None = None
    gaps_s: list[float] = field(default_factory=list)
    num_events: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    has_usage: bool = False
    predicted_ttft_s: float | None = None
    error: str | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first text."""
        return None if self.first_s is None else self.first_s - self.started_s

    @property
    def tpot_s(self) -> float | None:
        """Time per token after the first; None if there was only one."""
        if self.first_s is None or self.last_s is None or self.completion_tokens < 2:
            return None
        return (self.last_s - self.first_s) / (self.completion_tokens - 1)

    @property
    def e2e_s(self) -> float | None:
        """Time to the end of the answer."""
        return None if self.ended_s is None else self.ended_s - self.started_s


@dataclass(frozen=True, slots=True)
class Slo:
    """What a good request must keep; None asks for nothing."""

    ttft_ms: float | None = None
    tpot_ms: float | None = None

    def is_met_by(self, record: RequestRecord) -> bool:
        """Whether a whole answer came in time. One token has no time per token to fail by."""
        return (
            record.error is None
            and _is_within(record.ttft_s, self.ttft_ms)
            and (record.tpot_s is None or _is_within(record.tpot_s, self.tpot_ms))
        )


def _is_within(seconds: float | None, limit_ms: float | None) -> bool:
    return limit_ms is None or (seconds is not None and seconds * 1000 <= limit_ms)


def percentile(values: Sequence[float], percent: float) -> float:
    """Linear between the two nearest values. Raises: ValueError for no values."""
    if not values:
        raise ValueError("no values")
    ordered = sorted(values)
    at = (len(ordered) - 1) * percent / 100
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (at - below)


def summary_ms(seconds: Iterable[float | None]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds; values that are None do not count. None if there are no others."""
    values = [value * 1000 for value in seconds if value is not None]
    if not values:
        return None
    return {"mean": statistics.fmean(values)} | {
        f"p{percent}": percentile(values, percent) for percent in PERCENTILES
    }


def summarise(
    records: Sequence[RequestRecord], *, num_requests: int, duration_s: float, slo: Slo | None
) -> dict[str, object]:
    """The figures of one run. Latencies are those of whole answers only; failures are counted beside them."""
    whole = [record for record in records if record.error is None]
    num_generated = sum(record.completion_tokens for record in whole)
    num_prompt = sum(record.prompt_tokens for record in whole)
    per_s = 1 / duration_s if duration_s > 0 else 0.0
    report: dict[str, object] = {
        "num_requests": num_requests,
        "num_completed": len(whole),
        "num_failed": len(records) - len(whole),
        "num_unfinished": num_requests - len(records),
        "num_without_usage": sum(not record.has_usage for record in whole),
        "errors": dict(_errors(records).most_common(MAX_ERRORS)),
        "duration_s": duration_s,
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "cached_tokens": sum(record.cached_tokens for record in whole),
        "requests_per_s": len(whole) * per_s,
        "output_tokens_per_s": num_generated * per_s,
        "total_tokens_per_s": (num_prompt + num_generated) * per_s,
        "ttft_ms": summary_ms(record.ttft_s for record in whole),
        "tpot_ms": summary_ms(record.tpot_s for record in whole),
        "itl_ms": summary_ms(gap for record in whole for gap in record.gaps_s),
        "e2e_ms": summary_ms(record.e2e_s for record in whole),
    }
    if (share := _predicted_share(whole)) is not None:
        report["predicted_ttft_share"] = share
    if slo is not None:
        report["goodput"] = _goodput(records, num_requests, per_s, slo)
    return report


def _predicted_share(records: Sequence[RequestRecord]) -> float | None:
    """Of the first tokens that the server predicted, the share that came within 30 % of it; None if it predicted none."""
    pairs = [
        (record.ttft_s, record.predicted_ttft_s)
        for record in records
        if record.ttft_s is not None and record.predicted_ttft_s is not None
    ]
    if not pairs:
        return None
    return sum(abs(seen - said) <= MAX_MISPREDICTION * seen for seen, said in pairs) / len(pairs)


def _errors(records: Sequence[RequestRecord]) -> Counter[str]:
    return Counter(record.error for record in records if record.error is not None)


def _goodput(
    records: Sequence[RequestRecord], num_requests: int, per_s: float, slo: Slo
) -> dict[str, object]:
    num_good = sum(slo.is_met_by(record) for record in records)
    return {
        "slo_ttft_ms": slo.ttft_ms,
        "slo_tpot_ms": slo.tpot_ms,
        "num_good": num_good,
        "share": num_good / num_requests if num_requests else 0.0,
        "requests_per_s": num_good * per_s,
    }
