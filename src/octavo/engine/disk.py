"""Opens the disk tier of an engine: what its blocks depend on, and where they lie."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from octavo.cache.block_files import BlockFiles
from octavo.cache.disk_tier import DiskTier
from octavo.config import EngineConfig
from octavo.engine.resolve import ResolvedConfig
from octavo.engine.runner import ModelRunner
from octavo.errors import InvalidRequest
from octavo.kv_layout import BLOCK_SIZE
from octavo.ops.numerics import NUMERICS
from octavo.weights.identity import identify
from octavo.weights.source import WeightSource

_logger = logging.getLogger(__name__)


def origin_of(weights: WeightSource, digest: str | None) -> dict[str, str]:
    """What tells a model from all others, and the numbers it is used with, those of rope among them.

    `digest` is the SHA-256 that the store vouches for. A file elsewhere goes by what a build of it goes by: size, time
    of last change, samples of its tensors.
    Raises: ModelError if a file is gone.
    """
    architecture = str(weights.metadata["general.architecture"])
    header = {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in sorted(weights.metadata.items())
        if key.startswith(f"{architecture}.")
    }
    if digest is not None:
        return {"model": f"sha256 {digest}", "header": repr(header)}
    identity = identify(weights)
    stamps = " ".join(f"{stamp.num_bytes} {stamp.mtime_ns}" for stamp in identity.stamps)
    return {"model": f"fingerprint {identity.fingerprint} {stamps}", "header": repr(header)}


def open_disk(
    config: EngineConfig, resolved: ResolvedConfig, runner: ModelRunner, origin: Mapping[str, str]
) -> DiskTier | None:
    """The disk tier that the configuration asks for; the engine closes it. `origin`: what `origin_of` says.

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
        **origin,
        "kernels": runner.kernel_table,
        "activations": config.compute.activation_precision.value,
        "kv_dtype": layout.dtype.name,
        "block": f"{BLOCK_SIZE} tokens, {layout!r}",
        "numerics": str(NUMERICS),
    }
    try:
        files = BlockFiles(directory, facts, runner.read_block(0).nbytes, resolved.model_name)
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
