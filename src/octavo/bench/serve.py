"""`bench serve`: load on any OpenAI-compatible server, and what its clients see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict

import httpx
import msgspec
import numpy as np

from octavo import __version__
from octavo.api.limits import best_ceilings
from octavo.bench.arrivals import poisson_arrivals, read_trace
from octavo.bench.client import Client, Target
from octavo.bench.load import Loaded, closed_loop, open_loop
from octavo.bench.machine import cpu_facts
from octavo.bench.options import Level, LoadConfig, WorkloadConfig
from octavo.bench.stats import summarise
from octavo.bench.workload import WorkItem, make_workload
from octavo.errors import OctavoError

OnLevel = Callable[[str], None]
"""Told what is about to run."""


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def bench_serve(
    target: Target,
    model: str | None,
    workload: WorkloadConfig,
    load: LoadConfig,
    *,
    on_level: OnLevel = lambda _: None,
) -> dict[str, object]:
    """Run every level of the sweep; returns the report. `model` None takes the first the server lists.

    The limits of this machine are measured first where the server runs on it.
    Raises: InvalidRequest for a bad trace, OctavoError if the server cannot be reached or does not answer the warm-up.
    """
    trace = () if load.trace is None else tuple(read_trace(load.trace))
    name = model or first_model(target)
    limits = None
    if load.limits and target.is_local:
        on_level("limits")
        limits = {"ceilings": [asdict(best_ceilings())]}
    runs = asyncio.run(_sweep(target, name, workload, load, load.levels(trace), on_level))
    return {
        "benchmark": "serve",
        "client": f"octavo {__version__}",
        "url": target.url,
        "model": name,
        "workload": msgspec.to_builtins(asdict(workload)),
        "machine": cpu_facts(),
        "limits": limits,
        "runs": runs,
    }


def first_model(target: Target) -> str:
    """The first model the server lists. Raises: OctavoError."""
    url = f"{target.url}/models"
    try:
        answer = httpx.get(url, headers=target.headers, timeout=30)
        answer.raise_for_status()
        models = msgspec.json.decode(answer.content, type=_Models).data
    except (httpx.HTTPError, msgspec.MsgspecError) as error:
        raise OctavoError(f"{url}: {error or type(error).__name__}") from error
    if not models:
        raise OctavoError(f"{url} lists no models: name one with --model")
    return models[0].id


async def _sweep(
    target: Target,
    model: str,
    workload: WorkloadConfig,
    load: LoadConfig,
    levels: Sequence[Level],
    on_level: OnLevel,
) -> list[dict[str, object]]:
    rng = np.random.default_rng(workload.seed)
    runs = []
    with Client(target) as client:
        await _warm_up(client, _encode(target, model, workload, load.num_warmup, rng))
        for level in levels:
            on_level(level.label)
            count = load.num_requests if level.arrivals is None else len(level.arrivals)
            requests = _encode(target, model, workload, count, rng)
            cpu_s = time.process_time()
            loaded = await _run(client, requests, level, load.timeout, rng)
            cpu_s = time.process_time() - cpu_s
            runs.append(_report(level, loaded, len(requests), cpu_s, load))
    return runs


async def _warm_up(client: Client, requests: Sequence[bytes]) -> None:
    for request in requests:
        record = await client.send(request, time.perf_counter())
        if record.error is not None:
            raise OctavoError(f"the server did not answer the warm-up request: {record.error}")


async def _run(
    client: Client,
    requests: Sequence[bytes],
    level: Level,
    timeout_s: float,
    rng: np.random.Generator,
) -> Loaded:
    clock = time.perf_counter
    if level.concurrency is not None:
        return await closed_loop(
            client.send, requests, level.concurrency, timeout_s=timeout_s, clock=clock
        )
    arrivals = level.arrivals
    if arrivals is None:
        arrivals = tuple(poisson_arrivals(level.rate or 1.0, len(requests), rng))
    return await open_loop(client.send, requests, arrivals, timeout_s=timeout_s, clock=clock)


def _report(
    level: Level, loaded: Loaded, num_requests: int, cpu_s: float, load: LoadConfig
) -> dict[str, object]:
    duration_s = loaded.duration_s(time.perf_counter())
    figures = summarise(
        loaded.records, num_requests=num_requests, duration_s=duration_s, slo=load.slo
    )
    return {
        "level": level.label,
        "loop": "open" if level.concurrency is None else "closed",
        "concurrency": level.concurrency,
        "rate": level.rate,
        "is_cut": loaded.is_cut,
        **figures,
        "client_cpu_s": cpu_s,
    }


def _encode(
    target: Target, model: str, workload: WorkloadConfig, count: int, rng: np.random.Generator
) -> list[bytes]:
    """Requests as they go over the wire: nothing is serialised while the clock runs."""
    return [
        target.post("/completions", _body(model, item, ignore_eos=workload.ignore_eos))
        for item in make_workload(workload, count, rng)
    ]


def _body(model: str, item: WorkItem, *, ignore_eos: bool) -> bytes:
    return msgspec.json.encode(
        {
            "model": model,
            "prompt": item.prompt,
            "max_tokens": item.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **({"ignore_eos": True} if ignore_eos else {}),
        }
    )
