"""`octavo cache`: what a directory of `--kv-disk` holds."""

from __future__ import annotations

import json as json_
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Final

from cyclopts import App, CycloptsError, Parameter

from octavo.api.disk_cache import StoredBlocks, StoredPrefix
from octavo.api.disk_cache import warm as warm_up
from octavo.cli.exits import EXIT_OK
from octavo.cli.fetch import model_file, readable_size
from octavo.cli.flags import with_flags
from octavo.config import CacheConfig, ComputeConfig, EngineConfig, ModelConfig
from octavo.errors import InvalidRequest

_ABOUT: Final = """Look after the prompts that --kv-disk keeps: list them, compute one in
advance, keep it for good, remove it. Servers may go on meanwhile.

Example: octavo cache ls --kv-disk /var/cache/octavo"""

_NUM_SHOWN: Final = 20
_ID_CHARS: Final = 12

_Directory = Annotated[Path, Parameter(name="--kv-disk", help="the directory")]
_AsJson = Annotated[bool, Parameter(help="print one JSON object", negative=(), show_default=False)]

app = App(name="cache", help=_ABOUT, help_format="plaintext")


@app.command
def ls(
    *,
    kv_disk: _Directory,
    all: Annotated[
        bool,
        Parameter(help="show all, not only those used last", negative=(), show_default=False),
    ] = False,
    json: _AsJson = False,
) -> None:
    """List the prompts that are stored, used last first.

    Prompts that begin alike share what they have in common; a size counts all of a prompt.

    Example: octavo cache ls --kv-disk /var/cache/octavo
    """
    stored = StoredBlocks(kv_disk.expanduser())
    prefixes = stored.prefixes()
    if json:
        report = {"num_bytes": stored.num_bytes, "prefixes": [asdict(p) for p in prefixes]}
        sys.stdout.write(json_.dumps(report) + "\n")
        return
    shown = prefixes if all else prefixes[:_NUM_SHOWN]
    for prefix in shown:
        sys.stdout.write(_line(prefix) + "\n")
    more = f" ({len(prefixes) - len(shown)} more: --all)" if len(prefixes) > len(shown) else ""
    sys.stdout.write(f"{len(prefixes)} prompts, {readable_size(stored.num_bytes)}{more}\n")


@app.command
@with_flags(model_options=ModelConfig, cache=CacheConfig, compute=ComputeConfig)
def warm(
    model: str,
    file: Path,
    /,
    *,
    system: Annotated[
        bool,
        Parameter(
            help="the text is the system message of chats, not a prompt as it is",
            negative=(),
            show_default=False,
        ),
    ] = False,
    pin: Annotated[
        bool, Parameter(help="keep it, however long unused", negative=(), show_default=False)
    ] = False,
    model_options: ModelConfig,
    cache: CacheConfig,
    compute: ComputeConfig,
) -> int:
    """Compute the prompt in FILE with MODEL and store it, so that servers find it.

    A server finds what was computed with the same model, kernels and flags.

    Example: octavo cache warm smollm2 system.txt --system --pin --kv-disk /var/cache/octavo

    Parameters
    ----------
    model
        Catalog name or path of a .gguf file.
    file
        A UTF-8 text.
    """
    if cache.kv_disk is None:
        raise CycloptsError(msg="--kv-disk is missing: it names the directory")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"{file} is not a UTF-8 text: see byte {error.start}") from None
    model_file(model)
    config = EngineConfig(model=model_options, cache=cache, compute=compute)
    prefix = warm_up(config, text, is_system=system)
    if prefix is None:
        raise InvalidRequest(f"{file}: nothing was stored; a prompt needs 17 tokens at least")
    if pin:
        prefix = StoredBlocks(Path(cache.kv_disk).expanduser()).pin(prefix.prefix_id)
    sys.stdout.write(f"{prefix.prefix_id[:_ID_CHARS]}\n")
    verb = "stored and pinned" if pin else "stored"
    print(f"{verb}: {prefix.num_tokens} tokens of {file}", file=sys.stderr)
    return EXIT_OK


@app.command
def pin(
    prefix: str,
    /,
    *,
    kv_disk: _Directory,
    off: Annotated[
        bool,
        Parameter(help="let it go when its turn comes", negative=(), show_default=False),
    ] = False,
) -> None:
    """Keep a prompt, however long unused. It still counts as part of --kv-disk-size.

    Example: octavo cache pin 3fa4b2c1 --kv-disk /var/cache/octavo

    Parameters
    ----------
    prefix
        The beginning of its id, as `octavo cache ls` shows it.
    """
    stored = StoredBlocks(kv_disk.expanduser())
    found = stored.unpin(prefix) if off else stored.pin(prefix)
    state = "no longer pinned" if off else "pinned"
    print(f"{found.prefix_id[:_ID_CHARS]} is {state}: {found.num_tokens} tokens", file=sys.stderr)


@app.command
def rm(
    prefix: str | None = None,
    /,
    *,
    kv_disk: _Directory,
    all: Annotated[
        bool, Parameter(help="remove everything", negative=(), show_default=False)
    ] = False,
    model: Annotated[
        str | None, Parameter(help="remove what belongs to the model of this name")
    ] = None,
) -> None:
    """Remove a prompt and what continues it, pinned or not; what others share stays.

    Example: octavo cache rm 3fa4b2c1 --kv-disk /var/cache/octavo

    Parameters
    ----------
    prefix
        The beginning of its id, as `octavo cache ls` shows it.
    """
    if sum((prefix is not None, all, model is not None)) != 1:
        raise CycloptsError(msg="name one thing to remove: an id, --model NAME or --all")
    stored = StoredBlocks(kv_disk.expanduser())
    freed = stored.remove_all(model) if prefix is None else stored.remove(prefix)
    print(f"removed {readable_size(freed)}", file=sys.stderr)


def _line(prefix: StoredPrefix) -> str:
    used = time.strftime("%Y-%m-%d %H:%M", time.localtime(prefix.last_use_s))
    note = "  pinned" if prefix.is_pinned else ""
    return (
        f"{prefix.prefix_id[:_ID_CHARS]}  {prefix.num_tokens:>7} tokens  "
        f"{readable_size(prefix.num_bytes):>9}  {prefix.kv_dtype:<9} {used}  {prefix.model}{note}"
    )
