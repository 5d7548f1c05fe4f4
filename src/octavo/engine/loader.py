"""From a model file to a running engine: plan, load, compile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import assert_never

from octavo.config import DEFAULT_KV_DTYPE, BackendName, ComputeConfig, EngineConfig, format_size
from octavo.engine.builds import BuildPlace, find_build, packed_part, warn_unusable
from octavo.engine.disk import open_disk, origin_of
from octavo.engine.engine import Engine
from octavo.engine.kv_costs import describe_kv_type
from octavo.engine.machine import MachineLimits, read_machine_limits
from octavo.engine.memory_costs import (
    ModelFacts,
    exceeds_memory,
    mapped_facts,
    reserved_bytes,
    weights_bytes,
)
from octavo.engine.resolve import ResolvedConfig, resolve
from octavo.engine.runner import Clock, ModelRunner
from octavo.engine.scheduler import SchedulerLimits
from octavo.engine.share_log import start_share_log
from octavo.errors import UnusableBuild
from octavo.kv_layout import BLOCK_SIZE
from octavo.messages import EngineInfo
from octavo.models.base import ArchConfig
from octavo.models.table import load_model, read_config
from octavo.ops.native.backend import NativeBackend
from octavo.ops.protocol import AnyBackend
from octavo.ops.reference_backend import ReferenceBackend
from octavo.weights.build_file import BuildFile
from octavo.weights.quant import dequantize
from octavo.weights.source import WeightSource

_logger = logging.getLogger(__name__)


def _nothing() -> None:
    """Nobody waits for the plan."""


def load_engine(
    config: EngineConfig,
    weights: WeightSource,
    *,
    clock: Clock = time.perf_counter,
    limits: MachineLimits | None = None,
    build: BuildPlace | None = None,
    digest: str | None = None,
    on_planned: Callable[[], None] = _nothing,
) -> Engine:
    """Load a model: plan the memory from the header, give the weights to the backend, close their file.

    `limits` are those of this process where they are not given. `on_planned` is called once it is decided that the
    model will be loaded, before a weight is read. `build` is where packed weights may be: a sound
    build of this model is read in place of the tensors, any other costs a warning. `digest` is the SHA-256 of the
    model's file, if the store vouches for it.
    Raises: InvalidRequest, UnsupportedArchitecture, CorruptWeights, CapacityError; nothing stays held then.
    """
    started = clock()
    limits = read_machine_limits() if limits is None else limits
    arch = read_config(weights)
    facts = _facts(config, arch, weights)
    with ExitStack() as held, ExitStack() as opened:
        found = _open_build(config.compute, weights, build, opened)
        is_mapped = found is not None and exceeds_memory(facts, limits)
        resolved = resolve(config, mapped_facts(facts) if is_mapped else facts, limits)
        _logger.info("memory plan of %s\n%s", resolved.model_name, resolved.plan.table())
        for warning in resolved.warnings:
            _logger.warning(warning)
        on_planned()
        backend = _open_backend(config.compute, resolved.num_threads, held)
        origin = _give_build(backend, found, is_mapped)
        model = load_model(weights, backend.ops).model
        num_parameters, file_bytes = weights.num_parameters, weights.file_bytes
        kv_origin = {} if config.cache.kv_disk is None else origin_of(weights, digest)
        weights.close()
        executor = backend.compile(
            model, resolved.layout, resolved.num_blocks, resolved.max_num_batched_tokens
        )
        runner = ModelRunner(executor, clock, start_share_log(executor))
        info = EngineInfo(
            model_name=resolved.model_name,
            architecture=arch.architecture,
            vocab_size=arch.vocab_size,
            max_model_len=resolved.max_model_len,
            num_blocks=resolved.num_blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=resolved.max_num_seqs,
            num_parameters=num_parameters,
            kernel_table=runner.kernel_table,
            num_threads=resolved.num_threads,
            work=executor.work,
        )
        held.callback(executor.close)
        disk = open_disk(config, resolved, runner, kv_origin)
        engine = Engine(
            runner,
            info,
            SchedulerLimits(resolved.max_num_seqs, resolved.max_num_batched_tokens),
            max_step_s=resolved.max_step_s,
            is_caching=config.cache.enable_prefix_caching,
            disk=disk,
            on_close=held.pop_all().close,
        )
    _log_start(info, resolved, f"{format_size(file_bytes)}, {origin}", clock() - started)
    return engine


def _open_build(
    compute: ComputeConfig, weights: WeightSource, build: BuildPlace | None, opened: ExitStack
) -> BuildFile | None:
    if build is None or compute.backend is not BackendName.NATIVE:
        return None
    found = find_build(weights, build)
    return None if found is None else opened.enter_context(found)


def _give_build(backend: AnyBackend, build: BuildFile | None, is_mapped: bool) -> str:
    """Let the backend take the weights from the build. Returns, in words, where they will come from.

    Raises: UnusableBuild if it is damaged and the weights do not fit the memory, so that nothing can be packed.
    """
    if build is None or not isinstance(backend, NativeBackend):
        return "weights packed"
    try:
        backend.load_packed(packed_part(build), is_mapped=is_mapped)
    except (ValueError, UnusableBuild) as error:
        if is_mapped:
            raise UnusableBuild(f"{build.path}: {error}") from error
        warn_unusable(build.path, error)
        return "weights packed"
    if is_mapped:
        _logger.warning(
            "the weights are larger than the memory: they are mapped from %s and steps wait for the disk; "
            "a smaller model or quantisation avoids it",
            build.path,
        )
    return f"weights {'mapped' if is_mapped else 'read'} from the build {build.path}"


def _facts(config: EngineConfig, arch: ArchConfig, weights: WeightSource) -> ModelFacts:
    return ModelFacts(
        trained_len=arch.context_length,
        layout=arch.kv_layout(config.cache.kv_cache_dtype or DEFAULT_KV_DTYPE),
        hidden_size=arch.hidden_size,
        intermediate_size=arch.intermediate_size,
        vocab_size=arch.vocab_size,
        weights_bytes=weights_bytes(weights.tensors.values(), config.compute.backend),
        reserved_bytes=reserved_bytes(weights.tensors.values(), config.compute.backend),
    )


def _open_backend(compute: ComputeConfig, num_threads: int, held: ExitStack) -> AnyBackend:
    match compute.backend:
        case BackendName.NATIVE:
            native = NativeBackend(num_threads, compute.isa, compute.activation_precision)
            held.callback(native.close)
            return native
        case BackendName.REFERENCE:
            return ReferenceBackend(
                dequantize
            )  # multiplies float32 activations, whatever precision is asked
        case _:
            assert_never(compute.backend)


def _log_start(info: EngineInfo, resolved: ResolvedConfig, origin: str, seconds: float) -> None:
    _logger.info(
        "%s ready in %.2f s: %s, %.0f M parameters, file %s\n"
        "kernels %s, %d threads; %d tokens a step, prefill cut at %.0f ms while others decode\n%s",
        info.model_name,
        seconds,
        info.architecture,
        info.num_parameters / 1e6,
        origin,
        info.kernel_table,
        info.num_threads,
        resolved.max_num_batched_tokens,
        resolved.max_step_s * 1000,
        describe_kv_type(resolved.layout),
    )
