"""`octavo perplexity`: the quality of a model, or of a KV type, on a text."""

from __future__ import annotations

import json as json_
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from octavo.api.llm import LLM
from octavo.api.perplexity import measure_perplexity
from octavo.cli.fetch import model_file
from octavo.cli.flags import with_flags
from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import InvalidRequest


@with_flags(cache=CacheConfig, compute=ComputeConfig)
def perplexity(
    model: str,
    file: Path,
    /,
    *,
    ctx: Annotated[
        int, Parameter(help="tokens per window; the second half is scored", validator=Number(gte=4))
    ] = 512,
    max_windows: Annotated[
        int | None, Parameter(help="windows at most; default: all", validator=Number(gte=1))
    ] = None,
    json: Annotated[
        bool, Parameter(help="print one JSON object", negative=(), show_default=False)
    ] = False,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> None:
    """Measure perplexity of MODEL on the text in FILE.

    The text is tokenised once without special tokens and cut into whole windows;
    where the model adds BOS it replaces the first token of each window; tokens
    ctx/2 .. ctx-1 are scored, each predicted from all before it in the window.

    Example: octavo perplexity smollm2 /usr/share/common-licenses/GPL-3 --max-windows 8 --json

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    file
        A UTF-8 text.
    """
    text = _read(file)
    model_file(model)
    resolved = ModelConfig(model=model, max_model_len=ctx)
    with LLM.from_config(EngineConfig(model=resolved, cache=cache, compute=compute)) as llm:
        result = measure_perplexity(llm, text, ctx=ctx, max_windows=max_windows)
    if json:
        report = {"ppl": result.perplexity, "tokens": result.num_tokens}
        sys.stdout.write(json_.dumps(report) + "\n")
    else:
        sys.stdout.write(f"perplexity {result.perplexity:.4f} over {result.num_tokens} tokens\n")


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not a UTF-8 text: see byte {error.start}") from None
