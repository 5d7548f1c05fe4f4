"""`octavo build`: a model's packed weights in a file that later starts read instead of packing."""

from __future__ import annotations

import json as json_
import sys
import time
from pathlib import Path
from typing import Annotated

from cyclopts import CycloptsError, Parameter

from octavo.api.builds import check_build, make_build
from octavo.cli.fetch import model_file, readable_size
from octavo.cli.progress import download_progress
from octavo.config import from_env
from octavo.errors import InvalidRequest


def build(
    model: str,
    /,
    *,
    output: Annotated[
        Path | None,
        Parameter(help="file to write; default: a place in the store, where later starts find it"),
    ] = None,
    verify: Annotated[
        bool,
        Parameter(
            help="write nothing: check all of a build, and the whole model against it",
            negative=(),
            show_default=False,
        ),
    ] = False,
    num_threads: Annotated[
        int | None,
        Parameter(name=["--num-threads", "--threads"], help="threads; default: granted cores"),
    ] = None,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
) -> None:
    """Pack MODEL's weights into one file. Later starts of MODEL read it instead of packing.

    A build belongs to one model file and one version of the packing: if either
    changes, starts say so and pack, until the build is made anew.

    Example: octavo build gemma3:270m

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    """
    if num_threads is not None and num_threads < 1:
        raise CycloptsError(msg=f"--num-threads must be at least 1, got {num_threads}")
    path, _ = model_file(model)
    home = from_env().home
    started = time.monotonic()
    try:
        if verify:
            report = check_build(home, path, output=output, num_threads=num_threads)
        else:
            with download_progress() as progress:
                report = make_build(
                    home, path, output=output, num_threads=num_threads, progress=progress
                )
    except InvalidRequest as error:
        if error.param != "output":
            raise
        raise CycloptsError(msg=f"--{error.message}") from None
    if json:
        facts = {
            "path": str(report.path),
            "file_bytes": report.file_bytes,
            "num_tensors": report.num_tensors,
        }
        sys.stdout.write(json_.dumps(facts, ensure_ascii=False) + "\n")
        return
    size = f"{readable_size(report.file_bytes)}, {report.num_tensors} tensors"
    seconds = time.monotonic() - started
    done = "is sound" if verify else "written"
    sys.stdout.write(f"{report.path} {done}: {size} in {seconds:.1f} s\n")
