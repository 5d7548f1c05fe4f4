"""`octavo run-batch`: answer a file of requests in OpenAI's batch format."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

from cyclopts import CycloptsError, Parameter

from octavo.api.async_llm import AsyncLLM
from octavo.cli.batch_files import Results, count_lines, digest, read_lines
from octavo.cli.exits import EXIT_INTERRUPTED, EXIT_OK
from octavo.cli.fetch import model_file
from octavo.cli.flags import with_flags
from octavo.cli.progress import count_progress
from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.server.batch import (
    MAX_LINE_BYTES,
    BadLine,
    BatchAnswerer,
    BatchRequest,
    parse_line,
    refusal,
)

_READ_AHEAD: Final = 2
"""Requests in flight per sequence that the engine decodes: the next are ready when one ends."""


@with_flags(
    model_options=ModelConfig,
    scheduler=SchedulerConfig,
    cache=CacheConfig,
    compute=ComputeConfig,
)
def run_batch(
    first: Annotated[str | None, Parameter(show=False)] = None,
    second: Annotated[str | None, Parameter(show=False)] = None,
    /,
    *,
    input_file: Annotated[
        Path | None, Parameter(name=["--input-file", "-i"], help="requests, one JSON object a line")
    ] = None,
    output_file: Annotated[
        Path, Parameter(name=["--output-file", "-o"], help="results; those in it are kept")
    ],
    model: Annotated[
        str | None, Parameter(help="catalog name or path of a .gguf file, as MODEL")
    ] = None,
    model_options: ModelConfig,
    scheduler: SchedulerConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> int:
    """Answer the requests in FILE with MODEL: octavo run-batch FILE MODEL -o RESULTS.

    FILE has OpenAI's batch format, a line a request: custom_id, method, url (/v1/chat/completions
    or /v1/completions) and body. RESULTS gets a line for each, in the order in which they end;
    custom_id tells them apart. A bad request is an error in its line and stops nothing. The same
    command goes on where it was interrupted: what RESULTS has is not computed again.
    Exit codes: 0 all lines have a result, 1 failed, 2 wrong usage, 4 not enough memory, 130 interrupted.

    Example: octavo run-batch in.jsonl smollm2 -o out.jsonl
    """
    source, name = _operands(first, second, input_file, model)
    config = EngineConfig(
        model=replace(model_options, model=name), scheduler=scheduler, cache=cache, compute=compute
    )
    if source.resolve() == output_file.resolve():
        raise CycloptsError(msg="the results would overwrite the requests: choose another -o")
    with source.open("rb"), Results(output_file) as results:  # what cannot be read is told at once
        model_file(name)
        with AsyncLLM.from_config(config) as llm:
            return _run(llm, source, results)


def _operands(
    first: str | None, second: str | None, source: Path | None, model: str | None
) -> tuple[Path, str]:
    """The input and the model, each from its flag, or else from the next operand. Raises: CycloptsError."""
    given = [operand for operand in (first, second) if operand is not None]
    if source is None and given:
        source = Path(given.pop(0))
    if model is None and given:
        model = given.pop(0)
    if source is None or model is None or given:
        raise CycloptsError(msg="give one FILE (or -i FILE) and one MODEL (or --model MODEL)")
    return source, model


@dataclass(slots=True)
class _Tally:
    """Lines that got a result in this run, and how many of those are errors."""

    done: int = 0
    failed: int = 0


def _run(llm: AsyncLLM, source: Path, results: Results) -> int:
    tally = _Tally()
    found = results.num_lines
    if found:
        print(f"{found} results are there already and kept", file=sys.stderr)
    with count_progress("requests", lambda: count_lines(source)) as report:

        def written(is_good: bool) -> None:
            tally.done += 1
            tally.failed += not is_good
            report(found + tally.done)

        try:
            asyncio.run(_answer_all(llm, source, results, written))
            code = EXIT_OK
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
    end = "; interrupted: the same command goes on from here" if code else ""
    print(f"{tally.done} answered, {tally.failed} of them errors{end}", file=sys.stderr)
    return code


async def _answer_all(
    llm: AsyncLLM, source: Path, results: Results, written: Callable[[bool], None]
) -> None:
    """Answer what has no result yet. As many lines are in memory as there are workers."""
    answerer = BatchAnswerer(llm)
    requests = _open_requests(source, results, written)

    async def work() -> None:
        for request in requests:
            line, is_good = await answerer.answer(request)
            results.append(line)
            written(is_good)
            await asyncio.sleep(0)  # a run of refused requests must not keep Ctrl-C waiting

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(_READ_AHEAD * llm.info.max_num_seqs):
                group.create_task(work())
    except ExceptionGroup as errors:  # a dead engine or a full disk, told by every worker
        raise errors.exceptions[0] from None


def _open_requests(
    source: Path, results: Results, written: Callable[[bool], None]
) -> Iterator[BatchRequest]:
    """The requests without a result. Lines that are no request get theirs here."""
    seen: set[bytes] = set()
    for number, line in read_lines(source, MAX_LINE_BYTES):
        if number in results.refused_lines:
            continue
        try:
            request = parse_line(line)
            key = digest(request.custom_id)
            if key in seen:
                raise BadLine(
                    "duplicate_custom_id", "a line before has the same custom_id", request.custom_id
                )
        except BadLine as error:
            results.append(refusal(error, number))
            written(False)
            continue
        seen.add(key)
        if key not in results.answered:
            yield request
