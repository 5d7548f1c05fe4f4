"""`bench ops`: where the time of a step goes, operation by operation, from the engine's own counters.

A phase is the prompt that prefill reads, or a batch size of decoding. Its rows sum to the wall time of its steps: each
kind of operation; "waiting", threads for each other; "between operations", starting the threads and what the backend
does outside of operations; "outside the model", the Python between steps.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from octavo.bench.loaded import SLACK_TOKENS, LoadedEngine, OnFigure, loaded_engine
from octavo.bench.options import OpsConfig
from octavo.bench.stepping import LimitsBetween, Span
from octavo.config import EngineConfig
from octavo.errors import OctavoError
from octavo.observability.limits import MachineCeilings, ModelWork
from octavo.observability.op_costs import OpCost


@dataclass(frozen=True, slots=True)
class Phase:
    """Some steps and what was counted in them; `ceilings`: what the machine allowed meanwhile, if that is asked for."""

    name: str
    span: Span
    costs: list[OpCost]
    ceilings: MachineCeilings | None


def bench_ops(
    config: EngineConfig, run: OpsConfig, *, on_figure: OnFigure = lambda _: None
) -> dict[str, object]:
    """Load the model, run each phase once untimed and once counted; returns the report.

    Raises: OctavoError if the backend counts nothing, CapacityError if the requests do not fit the KV cache together,
    and what loading raises.
    """
    longest = max(run.prompt + 1, run.context + run.gen + 1 + SLACK_TOKENS)
    num_seqs = max(run.batches)
    with loaded_engine(config, longest=longest, num_seqs=num_seqs, seed=run.seed) as loaded:
        ceilings = loaded.ceilings(on_figure) if run.limits else None
        phases = _phases(loaded, run, on_figure)
        work = loaded.info.work
        return {
            "benchmark": "ops",
            "model": Path(config.model.model).name,
            "prompt": run.prompt,
            "context": run.context,
            "gen": run.gen,
            "phases": [phase_report(phase, work) for phase in phases],
            "limits": None if ceilings is None else {"ceilings": asdict(ceilings)},
            **loaded.facts(),
        }


def _phases(loaded: LoadedEngine, run: OpsConfig, on_figure: OnFigure) -> list[Phase]:
    runs = {f"prefill {run.prompt}": partial(_prefill, loaded, run.prompt)}
    runs |= {f"decode {b}": partial(_decode, loaded, b, run.context, run.gen) for b in run.batches}
    for name, count in runs.items():
        on_figure(f"{name} (warm-up)")
        count()
    phases: list[Phase] = []
    limits = LimitsBetween(loaded.client) if run.limits else None
    for name, count in runs.items():
        on_figure(f"{name} (counted)")
        span = count()
        phases.append(
            Phase(name, span, loaded.client.op_costs(), limits.look() if limits else None)
        )
    if not any(cost.calls for phase in phases for cost in phase.costs):
        raise OctavoError("this backend counts no operations: choose --backend native")
    return phases


def _decode(loaded: LoadedEngine, batch: int, context: int, num_tokens: int) -> Span:
    window = loaded.decode(batch, context, num_tokens, is_counted=True)
    assert window.span is not None
    return window.span


def _prefill(loaded: LoadedEngine, num_tokens: int) -> Span:
    prompts = loaded.prompts(1, num_tokens)
    loaded.client.set_counting(True)
    try:
        return loaded.generate(prompts, 1)
    finally:
        loaded.client.set_counting(False)


def phase_report(phase: Phase, work: ModelWork | None) -> dict[str, object]:
    """Rows of a phase, the dearest operation first; `ms` is of one step, `share` of its wall time. They sum to it.

    `peak_share` is of the int8 peak, for float weights of the f32 peak; `bandwidth_share` of reading a buffer as large
    as the model's weights. Both, and the rates, are of the time of work: waiting is apart.
    """
    span, costs = phase.span, phase.costs
    step_ms = 1000 * span.seconds / span.num_steps
    waiting_s = sum(cost.wait_seconds for cost in costs)
    between_s = span.model_s - waiting_s - sum(cost.seconds for cost in costs)
    outside_s = span.seconds - span.model_s
    rest = {"waiting": waiting_s, "between operations": between_s, "outside the model": outside_s}

    def row(name: str, seconds: float) -> dict[str, object]:
        return {
            "name": name,
            "ms": 1000 * seconds / span.num_steps,
            "share": seconds / span.seconds,
        }

    dearest = sorted((cost for cost in costs if cost.calls), key=lambda c: c.seconds, reverse=True)
    rows = [
        row(cost.name, cost.seconds) | _rates(cost, span.num_steps, work, phase.ceilings)
        for cost in dearest
    ]
    rows += [row(name, seconds) for name, seconds in rest.items()]
    return {"phase": phase.name, "num_steps": span.num_steps, "step_ms": step_ms, "rows": rows}


def _rates(
    cost: OpCost, num_steps: int, work: ModelWork | None, ceilings: MachineCeilings | None
) -> dict[str, object]:
    macs, read = cost.macs_per_s, cost.bytes_per_s
    rates: dict[str, object] = {
        "calls": cost.calls / num_steps,
        "wait_ms": 1000 * cost.wait_seconds / num_steps,
        "macs_per_s": macs,
        "bytes_per_s": read,
    }
    if ceilings is None or work is None:
        return rates
    peak = ceilings.f32_macs_per_s if cost.is_float else ceilings.int8_macs_per_s
    bandwidth = ceilings.read_bytes_per_s(work.weight_bytes)
    return rates | {
        "peak_share": None if macs is None else macs / peak,
        "bandwidth_share": None if read is None else read / bandwidth,
    }
