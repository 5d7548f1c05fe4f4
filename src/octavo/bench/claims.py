"""`bench claims`: what is claimed of engines like this one, each with the number claimed and the number measured here.

Claims and their numbers are those of two guides to serving language models, called the deployment guide and the
optimisation guide; where none of them has a number, the claim is our own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from octavo.bench import experiments
from octavo.bench.experiments import (
    NUM_PLACES,
    Experiment,
    Figures,
    medians,
    output_lengths,
    prefix_room,
)
from octavo.bench.gaps import gap_room
from octavo.bench.loaded import SLACK_TOKENS, OnFigure, loaded_engine
from octavo.bench.options import CONTEXT_TOKENS, ClaimsConfig
from octavo.config import ActivationPrecision, BackendName, EngineConfig
from octavo.errors import InvalidRequest

Command = Callable[[str], str]
"""The command that measures one claim, by its key."""

_WHOLE_STEP_MS: Final = 10**6


@dataclass(frozen=True, slots=True)
class Claim:
    """A claim, what its sources say of it in numbers, the figures that show it here, and how they are told."""

    key: str
    claim: str
    claimed: str
    figures: tuple[str, ...]
    tell: Callable[[Figures], str]


def _tell_continuous(f: Figures) -> str:
    return (
        f"{f['continuous'] / f['static']:.2f}x: {f['continuous']:.0f} tok/s, in waves that wait for their longest "
        f"{f['static']:.0f}"
    )


def _tell_batch(f: Figures) -> str:
    one, many = f["decode_1"], f[f"decode_{NUM_PLACES}"]
    return (
        f"{many / one:.2f}x: {many:.0f} tok/s, one request {one:.0f}; "
        f"a token every {1000 * NUM_PLACES / many:.1f} ms for each, alone {1000 / one:.1f} ms"
    )


def _tell_paged(f: Figures) -> str:
    return (
        f"{f['paged'] / f['reserved']:.2f}x: {f['paged']:.0f} requests, with {f['reserved_len']:.0f} tokens reserved for each "
        f"{f['reserved']:.0f}; "
        f"{f['paged_used']:.0%} of what they hold is in use, of reservations {f['reserved_used']:.0%}"
    )


def _tell_chunked(f: Figures) -> str:
    return (
        f"longest wait for a token {f['reading_ms']:.0f} ms, with the prompt in one step {f['whole_ms']:.0f} ms; "
        f"without a long prompt {f['quiet_ms']:.0f} ms"
    )


def _tell_prefix(f: Figures) -> str:
    return (
        f"first token after {f['prefix_warm_ms']:.0f} ms instead of {f['prefix_cold_ms']:.0f} ms "
        f"({f['prefix_cold_ms'] / f['prefix_warm_ms']:.1f}x); of the prompts of {f['prefix_requests']:.0f} requests "
        f"{f['prefix_computed']:.1%} is computed, all of it in {f['prefix_all_s']:.1f} s"
    )


def _tell_runs(f: Figures) -> str:
    return (
        f"{f['granted_us']:.0f} us a step ({f['granted_share']:.1%} of it), "
        f"step by step {f['single_us']:.0f} us ({f['single_share']:.1%})"
    )


def _tell_int8x2(f: Figures) -> str:
    return (
        f"{f['int8x2_decode'] / f['int8_decode']:.2f}x the speed of int8 in decoding "
        f"({f['int8x2_decode']:.0f} / {f['int8_decode']:.0f} tok/s), "
        f"{f['int8x2_prefill'] / f['int8_prefill']:.2f}x in reading a prompt "
        f"({f['int8x2_prefill']:.0f} / {f['int8_prefill']:.0f})"
    )


CLAIMS: Final = (
    Claim(
        "continuous",
        "continuous batching gives more tokens a second than static batches",
        "2-4x (deployment guide), 2-5x (optimisation guide)",
        ("continuous", "static"),
        _tell_continuous,
    ),
    Claim(
        "batch",
        "8 requests decoded together give close to 8 times the tokens of one, each hardly slower",
        "close to 8x (optimisation guide)",
        ("decode_1", "decode_8"),
        _tell_batch,
    ),
    Claim(
        "paged",
        "paged KV holds more requests than reservations of the longest length do",
        "2-4x the requests (optimisation guide); 96 % of the memory in use instead of 20-40 % (deployment guide)",
        ("paged", "reserved", "reserved_len", "paged_used", "reserved_used"),
        _tell_paged,
    ),
    Claim(
        "chunked",
        "chunked prefill keeps a long prompt from holding up others",
        "no number (optimisation guide)",
        ("quiet_ms", "reading_ms", "whole_ms"),
        _tell_chunked,
    ),
    Claim(
        "prefix",
        "requests that share a prompt compute it once",
        "50-80 % off the time to the first token (deployment guide); 5-10x for similar requests (optimisation guide)",
        (
            "prefix_cold_ms",
            "prefix_warm_ms",
            "prefix_all_s",
            "prefix_requests",
            "prefix_computed",
        ),
        _tell_prefix,
    ),
    Claim(
        "runs",
        "several decode steps in one call leave less time outside the model",
        "no number (our own)",
        ("granted_us", "granted_share", "single_us", "single_share"),
        _tell_runs,
    ),
    Claim(
        "int8x2",
        "two int8 terms for each activation, close to float32, cost little speed",
        "no number (our own)",
        ("int8_decode", "int8x2_decode", "int8_prefill", "int8x2_prefill"),
        _tell_int8x2,
    ),
)
_KEYS: Final = tuple(claim.key for claim in CLAIMS)


def bench_claims(
    config: EngineConfig,
    run: ClaimsConfig,
    command: Command,
    *,
    on_figure: OnFigure = lambda _: None,
) -> dict[str, object]:
    """Measure the chosen claims; returns the report, a row each.

    Raises: InvalidRequest for an unknown claim, CapacityError if the requests do not fit the KV cache together, and
    what loading raises.
    """
    chosen = _chosen(run, config)
    # Reported of the engine with the given options, which is loaded whatever is asked.
    places = replace(config, scheduler=replace(config.scheduler, max_num_seqs=NUM_PLACES))
    figures, facts = _measure_given(places, run, chosen, on_figure)
    if "chunked" in chosen:
        figures |= _measure_whole(places, run, on_figure)
    if "int8x2" in chosen:
        figures |= _measure_other(places, run, on_figure)
    rows = [
        {
            "key": claim.key,
            "claim": claim.claim,
            "claimed": claim.claimed,
            "ours": claim.tell(figures),
            "figures": {name: figures[name] for name in claim.figures},
            "command": command(claim.key),
        }
        for claim in CLAIMS
        if claim.key in chosen
    ]
    return {
        "benchmark": "claims",
        "model": Path(config.model.model).name,
        "repeat": run.repeat,
        "claims": rows,
        **facts,
    }


def _chosen(run: ClaimsConfig, config: EngineConfig) -> tuple[str, ...]:
    if run.only is None:
        is_native = config.compute.backend is BackendName.NATIVE
        return _KEYS if is_native else tuple(key for key in _KEYS if key != "int8x2")
    keys = tuple(key.strip() for key in run.only.split(","))
    unknown = [key for key in keys if key not in _KEYS]
    if unknown:
        raise InvalidRequest(
            f"only {run.only!r}: no claim {unknown[0]!r}; there are {', '.join(_KEYS)}",
            param="only",
        )
    return keys


def _measure_given(
    config: EngineConfig, run: ClaimsConfig, chosen: Collection[str], on_figure: OnFigure
) -> tuple[Figures, dict[str, object]]:
    by_key: dict[str, Experiment] = {
        "continuous": experiments.continuous,
        "batch": experiments.batch,
        "chunked": experiments.chunked,
        "prefix": experiments.prefix,
        "runs": experiments.runs,
    }
    wanted = [experiment for key, experiment in by_key.items() if key in chosen]
    longest = _longest(run)
    with loaded_engine(config, longest=longest, num_seqs=NUM_PLACES, seed=run.seed) as loaded:
        figures = medians(loaded, run, wanted, on_figure)
        if "int8x2" in chosen:
            own = medians(loaded, run, [experiments.precision], on_figure)
            figures |= _prefixed(config.compute.activation_precision, own)
        if "paged" in chosen:
            figures |= experiments.paged(loaded.info.block_size, run)
        return figures, loaded.facts()


def _measure_whole(config: EngineConfig, run: ClaimsConfig, on_figure: OnFigure) -> Figures:
    """The same as `chunked`, by an engine that reads every prompt in one step."""
    scheduler = replace(
        config.scheduler,
        max_num_batched_tokens=run.long_prompt + NUM_PLACES,
        max_step_ms=_WHOLE_STEP_MS,
    )
    whole = replace(config, scheduler=scheduler)
    with loaded_engine(whole, longest=_longest(run), num_seqs=NUM_PLACES, seed=run.seed) as loaded:
        return {"whole_ms": medians(loaded, run, [experiments.chunked], on_figure)["reading_ms"]}


def _measure_other(config: EngineConfig, run: ClaimsConfig, on_figure: OnFigure) -> Figures:
    """The speed of the activation precision that was not given."""
    given = config.compute.activation_precision
    [other] = [precision for precision in ActivationPrecision if precision is not given]
    changed = replace(config, compute=replace(config.compute, activation_precision=other))
    longest = _longest(run)
    with loaded_engine(changed, longest=longest, num_seqs=NUM_PLACES, seed=run.seed) as loaded:
        return _prefixed(other, medians(loaded, run, [experiments.precision], on_figure))


def _longest(run: ClaimsConfig) -> int:
    """Tokens of the longest request."""
    return max(
        gap_room(run.long_prompt),
        prefix_room(run),
        CONTEXT_TOKENS + run.gen + 1 + SLACK_TOKENS,
        CONTEXT_TOKENS + max(output_lengths(run)),
    )


def _prefixed(precision: ActivationPrecision, figures: Figures) -> Figures:
    return {f"{precision.value}_{name}": value for name, value in figures.items()}
