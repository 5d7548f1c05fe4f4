"""`octavo bench`: speed of the engine, of servers, and model files to measure with."""

from __future__ import annotations

import json as json_
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, CycloptsError, Parameter

from octavo.bench.claims import bench_claims
from octavo.bench.client import Target
from octavo.bench.compare import compare_reports, read_report
from octavo.bench.engine import bench_engine
from octavo.bench.machine import run_facts
from octavo.bench.make_model import RandomModelConfig
from octavo.bench.make_model import make_model as write_model
from octavo.bench.ops import bench_ops
from octavo.bench.options import ClaimsConfig, LoadConfig, MeasureConfig, OpsConfig, WorkloadConfig
from octavo.bench.serve import bench_serve
from octavo.bench.tables import claims_table, compare_table, engine_table, ops_table, serve_table
from octavo.cli.exits import EXIT_FAILED, EXIT_OK, fail
from octavo.cli.fetch import model_file, readable_size
from octavo.cli.flags import with_flags
from octavo.cli.progress import download_progress
from octavo.config import (
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    from_env,
)
from octavo.errors import InvalidRequest

_ABOUT: Final = """Measure speed: of the engine in this process, of any
OpenAI-compatible server, and of one report against another.

Example: octavo bench engine smollm2 --threads 2 --json"""

_AsJson = Annotated[bool, Parameter(help="print one JSON object", negative=(), show_default=False)]
_PlotFile = Annotated[Path | None, Parameter(help="write a picture here (needs the extra 'plot')")]

app = App(name="bench", help=_ABOUT, help_format="plaintext")


@app.command
@with_flags(
    run=MeasureConfig,
    scheduler=SchedulerConfig,
    cache=CacheConfig,
    compute=ComputeConfig,
)
def engine(
    model: str,
    /,
    *,
    plot: _PlotFile = None,
    json: _AsJson = False,
    run: MeasureConfig,
    scheduler: SchedulerConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> None:
    """Measure MODEL in this process, through scheduler, sampler, detokeniser and all.

    prefill: one prompt of --prompt tokens. decode: requests decoded together after
    128 prompt tokens. mixed: requests of 128 + --gen tokens from start to end. Each
    in tokens/s, best and median of the rounds; prompts are fresh random ids. What the
    machine allows is measured in the same run, and each figure's share of it shown.

    Example: octavo bench engine smollm2 --threads 2 --batch 1,8,32 --json

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    draw = None if plot is None else _plotter("plot_engine")
    model_file(model)
    config = EngineConfig(
        model=ModelConfig(model=model), scheduler=scheduler, cache=cache, compute=compute
    )
    report = bench_engine(config, run, on_figure=_say) | _run_facts()
    _write(report, engine_table(report), as_json=json)
    if draw is not None:
        draw(report, plot)


@app.command
@with_flags(run=OpsConfig, scheduler=SchedulerConfig, cache=CacheConfig, compute=ComputeConfig)
def ops(
    model: str,
    /,
    *,
    json: _AsJson = False,
    run: OpsConfig,
    scheduler: SchedulerConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> None:
    """Show where a step of MODEL spends its time, operation by operation.

    For the prompt of --prompt tokens and each batch size: milliseconds a step, share
    of the step, multiply-accumulates and bytes of weights a second, and their share of
    what the machine allows; then waiting, and the time outside the model. The rows sum
    to the wall time of a step.

    Example: octavo bench ops smollm2 --threads 2 --batch 1,32

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    model_file(model)
    config = EngineConfig(
        model=ModelConfig(model=model), scheduler=scheduler, cache=cache, compute=compute
    )
    report = bench_ops(config, run, on_figure=_say) | _run_facts()
    _write(report, ops_table(report), as_json=json)


@app.command
@with_flags(run=ClaimsConfig, cache=CacheConfig, compute=ComputeConfig)
def claims(
    model: str,
    /,
    *,
    json: _AsJson = False,
    run: ClaimsConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> None:
    """Measure with MODEL what is claimed of engines like this one, a row a claim.

    Each with the number that guides to serving claim, the one measured here, and the
    command that repeats it: continuous batching, batches of 8, paged KV, chunked
    prefill, several decode steps a call, int8x2 activations.

    Example: octavo bench claims smollm2 --threads 2 --only continuous,paged

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    model_file(model)
    config = EngineConfig(model=ModelConfig(model=model), cache=cache, compute=compute)
    given = _without_flags(sys.argv[1:], only=1, json=0)

    def command(key: str) -> str:
        return shlex.join(["octavo", *given, "--only", key])

    report = bench_claims(config, run, command, on_figure=_say) | _run_facts()
    _write(report, claims_table(report), as_json=json)


@app.command
@with_flags(workload=WorkloadConfig, load=LoadConfig)
def serve(
    *,
    url: Annotated[str, Parameter(help="an OpenAI-compatible server")] = "http://127.0.0.1:8000",
    model: Annotated[
        str | None, Parameter(help="name the server knows; default: the first it lists")
    ] = None,
    plot: _PlotFile = None,
    json: _AsJson = False,
    workload: WorkloadConfig,
    load: LoadConfig,
) -> int:
    """Send streamed completions to a server; report latencies, throughput and goodput.

    A closed loop of clients (--concurrency) or an open one (--rate, --trace); lists
    sweep. Latencies count from when a request was due. OCTAVO_API_KEY is sent if set.

    Example: octavo bench serve --url http://127.0.0.1:8000 --concurrency 1,8,32 --json
    """
    draw = None if plot is None else _plotter("plot_serve")
    target = _target(url)
    report = bench_serve(target, model, workload, load, on_level=_say) | _run_facts()
    _write(report, serve_table(report), as_json=json)
    runs = report["runs"]
    assert isinstance(runs, list)
    if not any(run["num_completed"] for run in runs):
        return fail("no request was answered", EXIT_FAILED)
    if draw is not None:
        draw(report, plot)
    return EXIT_OK


@app.command
def compare(a: Path, b: Path, /, *, json: _AsJson = False) -> None:
    """Compare two reports of `bench engine` or `bench serve`, figure by figure.

    Example: octavo bench compare ours.json theirs.json

    Parameters
    ----------
    a
        A file with a JSON report; those of the peers' scripts work too.
    b
        The one to divide by.
    """
    ratios = compare_reports(read_report(a), read_report(b))
    report = {"a": str(a), "b": str(b), "figures": [ratio.to_dict() for ratio in ratios]}
    _write(report, compare_table(ratios, (a.name, b.name)), as_json=json)


@app.command
@with_flags(config=RandomModelConfig)
def make_model(
    out: Path,
    /,
    *,
    tokenizer_from: Annotated[
        str, Parameter(help="catalog name or .gguf file whose tokenizer is taken")
    ] = "smollm2",
    json: _AsJson = False,
    config: RandomModelConfig,
) -> None:
    """Write a GGUF file with random weights: the size and speed of a real model.

    Example: octavo bench make-model --size 3b --type q4_k_m random-3b.gguf

    Parameters
    ----------
    out
        The file to write.
    """
    path, _ = model_file(tokenizer_from)
    with download_progress() as progress:
        facts = write_model(out, path, config, on_progress=progress)
    size = readable_size(int(str(facts["file_bytes"])))
    line = (
        f"{out}: {facts['name']}, {facts['num_parameters']:,} parameters, {facts['type']}, {size}"
    )
    _write(facts, [line], as_json=json)


def _target(url: str) -> Target:
    try:
        return Target.parse(url, from_env().api_key)
    except InvalidRequest as error:
        raise CycloptsError(msg=f"--{error}") from None


def _run_facts() -> dict[str, object]:
    return run_facts(shlex.join(["octavo", *sys.argv[1:]]))


def _without_flags(words: Iterable[str], **num_values: int) -> list[str]:
    """A command line without these flags and the words that follow each."""
    kept = []
    num_skipped = 0
    for word in words:
        name, is_joined, _ = word.removeprefix("--").partition("=")
        if num_skipped:
            num_skipped -= 1
        elif word.startswith("--") and name in num_values:
            num_skipped = 0 if is_joined else num_values[name]
        else:
            kept.append(word)
    return kept


def _plotter(name: str) -> Callable[..., None]:
    """A function of bench.plot, found before anything is measured for it."""
    try:
        from octavo.bench import plot  # matplotlib is an extra
    except ImportError:
        raise CycloptsError(
            msg="--plot needs matplotlib: pip install 'octavo[plot]', or leave it out"
        ) from None
    draw: Callable[..., None] = getattr(plot, name)
    return draw


def _say(what: str) -> None:
    """What is measured now, where someone watches."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{what}", end="", file=sys.stderr, flush=True)


def _write(report: Mapping[str, Any], lines: Iterable[str], *, as_json: bool) -> None:
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if as_json:
        sys.stdout.write(json_.dumps(report) + "\n")
        return
    for line in lines:
        sys.stdout.write(line + "\n")
