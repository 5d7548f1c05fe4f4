"""Opens the disk tier of an engine: what its blocks depend on, and where they lie."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from octavo.cache.block_files import BlockFiles
from octavo.cache.disk_tier import DiskTier
from octavo.config import EngineConfig
from octavo.engine.resolve import ResolvedConfig
from octavo.engine.runner import ModelRunner
from octavo.errors import InvalidRequest
from octavo.kv_layout import BLOCK_SIZE
from octavo.models.base import ArchConfig
from octavo.ops.numerics import NUMERICS
from octavo.weights.identity import identify
from octavo.weights.source import WeightSource

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KVOrigin:
    """What computes the blocks: a model, and its numbers as they are used, those of rope among them."""

    model_key: str
    arch: ArchConfig


def model_key_of(weights: WeightSource, digest: str | None) -> str:
    """What tells a model from all others: its digest in the store, or of a file elsewhere what a build goes by.

    Raises: ModelError if a file is gone.
    """
    if digest is not None:
        return f"sha256 {digest}"
    identity = identify(weights)
    stamps = " ".join(f"{stamp.num_bytes} {stamp.mtime_ns}" for stamp in identity.stamps)
    return f"fingerprint {identity.fingerprint} {stamps}"


def open_disk(
    config: EngineConfig, resolved: ResolvedConfig, runner: ModelRunner, origin: KVOrigin
) -> DiskTier | None:
    """The disk tier that the configuration asks for; the engine closes it.

    Raises: InvalidRequest for a directory that cannot be used, or a size that holds no block.
    """
    cache = config.cache
    if cache.kv_disk is None:
        return None
    if not cache.enable_prefix_caching:
        raise InvalidRequest(
            "kv_disk keeps prefixes: it needs enable_prefix_caching", param="kv_disk"
        )
    directory = Path(cache.kv_disk).expanduser()
    layout = resolved.layout
    facts = {
        "model": origin.model_key,
        "architecture": repr(origin.arch),
        "kernels": runner.kernel_table,
        "activations": config.compute.activation_precision.value,
        "kv_dtype": layout.dtype.name,
        "block": f"{BLOCK_SIZE} tokens, {layout!r}",
        "numerics": str(NUMERICS),
    }
    try:
        files = BlockFiles(directory, facts, layout.block_bytes, resolved.model_name)
        if cache.kv_disk_size < files.file_bytes:
            raise InvalidRequest(
                f"kv_disk_size {cache.kv_disk_size} holds no block: one has {files.file_bytes} bytes",
                param="kv_disk_size",
            )
        tier = DiskTier(files, cache.kv_disk_size, runner)
    except OSError as error:
        raise InvalidRequest(
            f"kv_disk {directory}: {error.strerror or error}", param="kv_disk"
        ) from error
    _logger.info(
        "KV blocks of %d prompt tokens found in %s, which keeps up to %.1f GiB",
        tier.num_known * BLOCK_SIZE,
        directory,
        cache.kv_disk_size / 2**30,
    )
    return tier
