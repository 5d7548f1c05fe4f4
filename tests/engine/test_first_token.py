"""Predictions of the first token under Poisson arrivals, on an engine whose steps cost what they are said to."""

from __future__ import annotations

import numpy as np

from octavo.observability.first_token import FirstTokenForecast
from octavo.ops.protocol import Batch
from tests.engine.fakes import fake_engine, request

NUM_REQUESTS = 60


def seconds(batch: Batch) -> float:
    """A step: its weights, its rows, its prompt tokens, what they attend to."""
    num_rows, num_tokens = len(batch.seq_lens), len(batch.token_ids)
    attended = float(batch.positions.sum())
    return 0.004 + 0.0008 * num_rows + 0.0007 * (num_tokens - num_rows) + 2e-7 * attended


class Scene:
    """An engine, its arrivals, and what was predicted of each."""

    def __init__(self, rate: float) -> None:
        rng = np.random.default_rng(1)
        self.engine, executor = fake_engine(
            num_blocks=2000, max_num_seqs=64, max_num_batched_tokens=512, max_model_len=4096, seconds=seconds
        )  # fmt: skip
        self.engine.limit_calls(0)  # runs of steps end where somebody comes
        self.clock = executor.clock
        self.prompts = [
            rng.integers(8, 60, int(n)).tolist()
            for n in np.clip(rng.lognormal(4.6, 1.1, NUM_REQUESTS), 4, 1200)
        ]
        self.lengths = np.clip(rng.lognormal(4.6, 0.8, NUM_REQUESTS), 2, 300).astype(int)
        self.arrivals = np.cumsum(rng.exponential(1 / rate, NUM_REQUESTS))
        self.forecast = FirstTokenForecast()
        self.waiting: dict[str, tuple[int, float]] = {}
        self.raw: list[float | None] = []
        self.ratios: list[float] = []
        self.busy_s = 0.0

    def arrive(self) -> None:
        """All that came up to now."""
        while (i := len(self.raw)) < NUM_REQUESTS and self.arrivals[i] <= self.clock.now:
            num_tokens, at = len(self.prompts[i]), float(self.arrivals[i])
            self.raw.append(self.forecast.predict_raw_s(num_tokens, at))
            predicted = self.forecast.predict_s(num_tokens, at) or 0.0
            self.forecast.note_arrival(num_tokens, at)
            self.engine.add(
                request(
                    f"{i} {predicted}", self.prompts[i], max_tokens=int(self.lengths[i]), eos=[]
                )
            )
            self.waiting[f"{i} {predicted}"] = (num_tokens, at)

    def step(self) -> None:
        """One step of the engine, and who came while it ran."""
        if not self.engine.has_work:
            self.clock.now = max(self.clock.now, float(self.arrivals[len(self.raw)]))
            self.arrive()
        begun_s = self.clock.now
        outputs = self.engine.step()
        self.busy_s += self.clock.now - begun_s
        self.arrive()
        for output in outputs.outputs:
            if output.request_id in self.waiting:
                self.take(output.request_id)
        stats = outputs.stats
        self.forecast.note_step(
            stats.prices,
            num_decoding=stats.num_decoding,
            waiting=[num_tokens for num_tokens, _ in self.waiting.values()],
            num_begun=stats.num_prefilled_tokens,
            is_busy=self.engine.has_work,
            now_s=self.clock.now,
        )

    def take(self, request_id: str) -> None:
        """A first token."""
        _, at = self.waiting.pop(request_id)
        number, predicted = request_id.split(" ")
        raw = self.raw[int(number)]
        if raw is not None:
            self.forecast.note_outcome(raw, self.clock.now - at)
            self.ratios.append(float(predicted) / (self.clock.now - at))


def share_within(rate: float, error: float = 0.3) -> tuple[float, float]:
    """Share of the predictions that were not off by more; share of the time in which the engine was busy."""
    scene = Scene(rate)
    while len(scene.raw) < NUM_REQUESTS or scene.engine.has_work:
        scene.step()
    good = [abs(ratio - 1) <= error for ratio in scene.ratios]
    return sum(good) / len(good), scene.busy_s / scene.clock.now


def test_nine_of_ten_predictions_are_right_at_seventy_percent_load() -> None:
    share, busy = share_within(rate=1.7)
    assert 0.6 < busy < 0.9
    assert share >= 0.9
