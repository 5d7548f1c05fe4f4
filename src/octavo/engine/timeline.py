"""Where the time of one choice goes. Kept at its turning points only: a choice that just decodes costs nothing.

    added        started     first token                        ended
      | queue      | prefill     | decode                          |
                                 | decode | preempted | prefill | decode

What happens in every step is added up once for all, in `Totals`; a phase takes the difference between its ends. So the
parts of a timeline are a partition of the time from `added` to `ended`, whatever was or was not noted in between.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from octavo.cache.manager import PrefixMiss
from octavo.cache.radix_tree import MissReason
from octavo.messages import EngineTimeline


class Phase(Enum):
    """What a choice is about."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    PREEMPTED = "preempted"
    ENDED = "ended"


class HeldBy(Enum):
    """What keeps the first in the queue from starting."""

    SLOTS = "slots"
    """As many run as may."""
    BLOCKS = "blocks"
    """Too few KV blocks are free."""
    TOKENS = "tokens"
    """The step is full, or computes what it wants to share."""


@dataclass(slots=True)
class Totals:
    """What an engine did since it was made; seconds of its clock."""

    between_s: float = 0.0
    """Between two steps: outputs are handed on, and in a process without an engine thread also read."""
    model_s: float = 0.0
    beside_prefill_s: float = 0.0
    """Of `model_s`, in steps that also computed prompts."""
    num_steps: int = 0
    num_rows: int = 0
    """Requests computed, summed over the steps."""
    held_by_slots_s: float = 0.0
    held_by_blocks_s: float = 0.0
    held_by_tokens_s: float = 0.0

    def copy(self) -> Totals:
        """The totals as they are now."""
        return Totals(
            self.between_s,
            self.model_s,
            self.beside_prefill_s,
            self.num_steps,
            self.num_rows,
            self.held_by_slots_s,
            self.held_by_blocks_s,
            self.held_by_tokens_s,
        )

    def hold(self, held_by: HeldBy, seconds: float) -> None:
        """Note what kept the queue waiting."""
        match held_by:
            case HeldBy.SLOTS:
                self.held_by_slots_s += seconds
            case HeldBy.BLOCKS:
                self.held_by_blocks_s += seconds
            case HeldBy.TOKENS:
                self.held_by_tokens_s += seconds


class Timeline:
    """The time of one choice, written by the engine's Timekeeper only.

    Invariant: queue + preempted + passed over + prefill + decode + between = the time from `open` to the last move.
    """

    __slots__ = (
        "_compute_s",
        "_since",
        "mark_s",
        "news",
        "num_preemptions",
        "num_seen_tokens",
        "phase",
        "record",
        "started_s",
    )

    def __init__(self) -> None:
        self.phase = Phase.QUEUED
        self.mark_s = 0.0
        """When the phase began."""
        self.started_s: float | None = None
        self.num_preemptions = 0
        self.num_seen_tokens = 0
        """Tokens that were computed once: to compute them again is time lost."""
        self.record = EngineTimeline()
        self.news: EngineTimeline | None = None
        """What the next output should tell."""
        self._since = Totals()
        self._compute_s = 0.0

    def open(self, now: float, totals: Totals) -> None:
        """Begin, in the queue."""
        self.mark_s = self.record.added_s = self.record.until_s = now
        self._since = totals.copy()

    def start(self, phase: Phase, now: float, totals: Totals, first_start_s: float | None) -> None:
        """Leave the queue. `first_start_s` is when a sibling started to compute the prompt of both."""
        self.move_to(phase, now, totals)
        if self.started_s is not None:
            return
        self.started_s = now
        if first_start_s is not None:
            shared_s = min(now - first_start_s, self.record.queue_s)
            self.record.queue_s -= shared_s
            self.record.prefill_s += shared_s

    def compute(self, num_tokens: int, start: int, seconds: float) -> None:
        """Note a chunk of prefill from position `start` on."""
        record = self.record
        self._compute_s += seconds
        record.num_chunks += 1
        record.num_computed_tokens += num_tokens
        if start < self.num_seen_tokens:
            record.num_recomputed_tokens += min(num_tokens, self.num_seen_tokens - start)
            record.preempted_s += seconds
        else:
            record.prefill_s += seconds
        self.num_seen_tokens = max(self.num_seen_tokens, start + num_tokens)

    def move_to(self, phase: Phase, now: float, totals: Totals) -> None:
        """End the phase at hand and begin another."""
        record, since = self.record, self._since
        seconds = now - self.mark_s
        match self.phase:
            case Phase.QUEUED:
                record.queue_s += seconds
                record.held_by_slots_s += totals.held_by_slots_s - since.held_by_slots_s
                record.held_by_blocks_s += totals.held_by_blocks_s - since.held_by_blocks_s
                record.held_by_tokens_s += totals.held_by_tokens_s - since.held_by_tokens_s
            case Phase.PREEMPTED:
                record.preempted_s += seconds
            case Phase.PREFILL:
                between_s = totals.between_s - since.between_s
                record.between_s += between_s
                record.passed_over_s += seconds - between_s - self._compute_s
            case Phase.DECODE:
                self._close_decode(seconds, totals)
            case Phase.ENDED:
                pass
        self.phase, self.mark_s, self._compute_s = phase, now, 0.0
        self._since = totals.copy()
        record.until_s = now

    def _close_decode(self, seconds: float, totals: Totals) -> None:
        record, since = self.record, self._since
        between_s = totals.between_s - since.between_s
        record.between_s += between_s
        record.decode_s += seconds - between_s
        record.num_decode_steps += totals.num_steps - since.num_steps
        record.num_decode_rows += totals.num_rows - since.num_rows
        record.decode_model_s += totals.model_s - since.model_s
        record.beside_prefill_s += totals.beside_prefill_s - since.beside_prefill_s

    def note_miss(self, miss: PrefixMiss | None, *, has_many_tenants: bool) -> None:
        """Note why the prompt was not all cached. Where there are several tenants, nothing of what others sent.

        The tree does not know whose its tokens are; and a salt is there so that nobody can ask what others sent.
        """
        if miss is None:
            return
        reason, others = miss.reason, list(miss.others)
        if has_many_tenants:
            reason = MissReason.COLD if reason is MissReason.SALT else reason
            others = []
        record = self.record
        record.miss_at, record.miss_reason, record.miss_others = (
            miss.num_tokens,
            reason.value,
            others,
        )
