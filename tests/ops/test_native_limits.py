"""The limits probe on every kernel table; what a recorded model needs at least."""

from __future__ import annotations

import pytest

from octavo.errors import CapacityError
from octavo.kv_layout import KVLayout
from octavo.models.table import load_model, read_config
from octavo.ops.native import NativeBackend
from octavo.ops.native.limits import cpu_features, measure_ceilings
from tests.ops.native_backends import ISAS, native
from tests.tiny_models import tiny_source


def test_the_cpu_has_what_its_tables_need() -> None:
    assert ("avx2" in ISAS) == ({"avx2", "fma", "f16c"} <= set(cpu_features()))


def test_ceilings_come_in_order_with_every_size() -> None:
    settings = [(isa, threads) for isa in ISAS for threads in (1, 2)]
    found = measure_ceilings(settings, [2**20, 4096, 4096], seconds=0.01, fill_s=1.0)
    assert [(c.kernel_table, c.num_threads) for c in found] == settings
    for ceilings in found:
        assert [read.num_bytes for read in ceilings.reads] == [4096, 2**20]
        assert min(read.bytes_per_s for read in ceilings.reads) > 1e6
        assert min(ceilings.int8_macs_per_s, ceilings.f32_macs_per_s) > 1e6
        has_bf16 = "avx512_bf16" in cpu_features() and ceilings.kernel_table.startswith("avx512")
        assert (ceilings.bf16_macs_per_s is not None) == has_bf16
    assert measure_ceilings([], [], seconds=1.0, fill_s=1.0) == []


def test_memory_that_is_not_there_is_an_error() -> None:
    with pytest.raises(CapacityError):
        measure_ceilings([("scalar", 1)], [2**62], seconds=0.01, fill_s=1.0)
    with pytest.raises(ValueError, match="at least 512 bytes"):
        measure_ceilings([("scalar", 1)], [8], seconds=0.01, fill_s=1.0)
    with pytest.raises(ValueError, match="no kernel table sse9"):
        measure_ceilings([("sse9", 1)], [4096], seconds=0.01, fill_s=1.0)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_work_is_counted_from_the_matrices_of_the_model(architecture: str) -> None:
    source = tiny_source(architecture)
    config = read_config(source)  # type: ignore[arg-type]
    backend = native(ISAS[0])
    model = load_model(source, backend.ops).model  # type: ignore[arg-type]
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim)
    executor = backend.compile(model, layout, 4, 32)
    work = executor.work
    assert work is not None
    matrices = [info for name, info in source.tensors.items() if len(info.shape) == 2]
    embedding = source.tensors["token_embd.weight"]
    body = sum(
        info.num_elements for info in matrices if not info.name.startswith(("token_embd", "output"))
    )
    assert work.body.int8_macs + work.body.float_macs == body
    assert work.head.int8_macs + work.head.float_macs == embedding.num_elements
    assert sum(work.kv_bytes) == layout.token_bytes
    assert len(work.windows) == config.num_layers
    assert any(work.windows) == (architecture == "gemma3")
    assert work.weight_bytes > 0


def test_an_executor_is_measured_with_its_weights_in_place() -> None:
    source = tiny_source("llama")
    config = read_config(source)  # type: ignore[arg-type]
    backend = native(ISAS[-1], 1)
    model = load_model(source, backend.ops).model  # type: ignore[arg-type]
    layout = KVLayout(config.num_layers, config.num_kv_heads, config.head_dim)
    executor = backend.compile(model, layout, 4, 32)
    ceilings = executor.measure_ceilings(0.01)
    assert ceilings is not None
    assert (ceilings.kernel_table, ceilings.num_threads) == (ISAS[-1], 1)
    assert ceilings.reads[0].bytes_per_s > 1e6
    executor.close()
    with pytest.raises(RuntimeError, match="closed"):
        executor.measure_ceilings(0.01)
    assert isinstance(backend, NativeBackend)
