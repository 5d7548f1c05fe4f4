"""What is chosen on machines of every size, and what the refusals say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.config import (
    BackendName,
    CacheConfig,
    ComputeConfig,
    EngineConfig,
    ModelConfig,
    SchedulerConfig,
    parse_size,
)
from octavo.dtypes import QuantFormat
from octavo.engine.machine import MachineLimits, read_machine_limits
from octavo.engine.memory_plan import (
    MemoryWish,
    ModelFacts,
    format_size,
    plan_memory,
    weights_bytes,
)
from octavo.engine.resolve import resolve
from octavo.errors import CapacityError, InvalidRequest
from octavo.kv_layout import KVLayout
from octavo.weights.source import TensorInfo

MIB, GIB = 2**20, 2**30
SMOLLM2 = ModelFacts(
    trained_len=8192,
    layout=KVLayout(30, 3, 64),  # 23,040 bytes a token
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49152,
    weights_bytes=95 * MIB,
    file_bytes=98 * MIB,
)
WISH = MemoryWish(
    max_model_len=None, max_num_seqs=64, max_num_batched_tokens=512, kv_cache_memory_bytes=None
)


def machine(memory: int, **changes: object) -> MachineLimits:
    return MachineLimits(4, memory, "the test", **changes)  # type: ignore[arg-type]


def config(**groups: object) -> EngineConfig:
    return EngineConfig(model=ModelConfig(model="m"), **groups)  # type: ignore[arg-type]


def kv_bytes(plan) -> int:
    return plan.num_blocks * SMOLLM2.layout.block_bytes


@pytest.mark.parametrize(
    ("wish", "memory", "expected"),
    [
        (replace(WISH, max_num_seqs=2), 64 * GIB, 2 * 8192 * 23040),  # what is needed
        (WISH, 8 * GIB, 2 * GIB),  # a quarter
        (WISH, 64 * GIB, 4 * GIB),  # 4 GiB
        (replace(WISH, kv_cache_memory_bytes=512 * MIB), 8 * GIB, 512 * MIB),
    ],
)
def test_default_kv_memory_is_the_least_of_need_a_quarter_and_4_gib(wish, memory, expected) -> None:
    plan = plan_memory(SMOLLM2, wish, machine(memory))
    assert expected - SMOLLM2.layout.block_bytes < kv_bytes(plan) <= expected
    assert plan.max_model_len == 8192
    assert not plan.is_lowered


def test_context_gives_way_first_then_sequences() -> None:
    plan = plan_memory(SMOLLM2, WISH, machine(400 * MIB))
    assert plan.max_model_len < 8192
    assert plan.max_num_seqs == 64
    assert plan.is_lowered
    assert plan.total_bytes <= 400 * MIB
    plan = plan_memory(SMOLLM2, replace(WISH, kv_cache_memory_bytes=600 * 23040), machine(8 * GIB))
    assert (plan.max_model_len, plan.max_num_seqs, plan.num_blocks) == (592, 37, 37)  # SCH-05


def test_table_shows_asked_available_and_chosen() -> None:
    table = plan_memory(SMOLLM2, WISH, machine(400 * MIB)).table().splitlines()
    assert table[0].split() == ["asked", "available", "chosen"]
    assert [line.split("  ")[0] for line in table[1:]] == [
        "context", "sequences", "KV cache", "weights", "activations", "overhead", "total",
    ]  # fmt: skip
    assert "8192 tokens" in table[1]


def test_cli_07_context_larger_than_memory_is_refused_with_a_command_that_fits() -> None:
    asked = replace(WISH, max_model_len=100_000_000)
    with pytest.raises(CapacityError, match="100000000 tokens needs") as error:
        plan_memory(SMOLLM2, asked, machine(8 * GIB))
    fitting = int(re.search(r"--max-model-len (\d+)", str(error.value))[1])  # type: ignore[index]
    assert (
        plan_memory(SMOLLM2, replace(asked, max_model_len=fitting), machine(8 * GIB)).max_model_len
        == fitting
    )
    with pytest.raises(CapacityError, match="kv-cache-memory-bytes") as error:
        plan_memory(SMOLLM2, replace(WISH, max_model_len=120_000), machine(8 * GIB))
    size = parse_size(re.search(r"--kv-cache-memory-bytes (\S+)", str(error.value))[1])  # type: ignore[index]
    wish = replace(WISH, max_model_len=120_000, kv_cache_memory_bytes=size)
    assert plan_memory(SMOLLM2, wish, machine(8 * GIB)).max_model_len == 120_000


def test_kv_memory_that_is_too_large_or_too_small_is_refused_with_one_that_fits() -> None:
    for asked in (7 * GIB + 900 * MIB, 1000):
        with pytest.raises(CapacityError, match="would fit with") as error:
            plan_memory(SMOLLM2, replace(WISH, kv_cache_memory_bytes=asked), machine(8 * GIB))
        size = parse_size(re.search(r"--kv-cache-memory-bytes (\S+)", str(error.value))[1])  # type: ignore[index]
        plan_memory(SMOLLM2, replace(WISH, kv_cache_memory_bytes=size), machine(8 * GIB))


def test_model_that_does_not_fit_at_all_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        CapacityError, match=r"does not fit: \S+MiB are missing.*weights 95MiB, 150MiB available"
    ):
        plan_memory(SMOLLM2, WISH, machine(150 * MIB))


def test_address_space_limit_counts_the_mapped_file() -> None:
    free = plan_memory(SMOLLM2, WISH, machine(8 * GIB))
    tight = plan_memory(SMOLLM2, WISH, machine(8 * GIB, address_space_bytes=1 * GIB))
    assert tight.total_bytes + SMOLLM2.file_bytes <= 1 * GIB < free.total_bytes


def test_weights_count_as_packed() -> None:
    tensors = [
        TensorInfo("m", (64, 256), QuantFormat.Q4_1, 0, 0),
        TensorInfo("r", (64, 256), QuantFormat.Q2_K, 0, 0),
        TensorInfo("v", (256,), QuantFormat.F32, 0, 0),
    ]
    assert weights_bytes(tensors, BackendName.NATIVE) == 64 * 256 * (5.0 + 4.0) / 8 + 1024
    assert weights_bytes(tensors, BackendName.REFERENCE) == 64 * 256 * 8 + 1024


@pytest.mark.parametrize("size", [1, 23040, 5 * MIB, 95 * MIB + 1, 9 * GIB, 40 * GIB])
def test_sizes_read_back(size) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.05, abs=1024)


def test_resolve_fills_in_everything_and_warns_beyond_the_trained_length() -> None:
    plain = resolve(config(), SMOLLM2, machine(8 * GIB))
    assert (plain.num_threads, plain.max_model_len, plain.max_num_seqs, plain.max_step_s) == (
        4,
        8192,
        64,
        0.2,
    )
    assert plain.warnings == ()
    trained = EngineConfig(model=ModelConfig(model="m", max_model_len=0))
    assert resolve(trained, SMOLLM2, machine(8 * GIB)).max_model_len == 8192
    longer = EngineConfig(model=ModelConfig(model="m", max_model_len=16384))
    assert "8192" in resolve(longer, SMOLLM2, machine(8 * GIB)).warnings[0]
    many = resolve(config(compute=ComputeConfig(num_threads=9)), SMOLLM2, machine(8 * GIB))
    assert "--num-threads 4" in many.warnings[0]


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        (EngineConfig(model=ModelConfig(model="m", max_model_len=-1)), "max_model_len"),
        (EngineConfig(model=ModelConfig(model="m", max_model_len=1)), "max_model_len"),
        (config(scheduler=SchedulerConfig(max_num_seqs=0)), "max_num_seqs"),
        (config(scheduler=SchedulerConfig(max_num_batched_tokens=0)), "max_num_batched_tokens"),
        (config(scheduler=SchedulerConfig(max_step_ms=0)), "max_step_ms"),
        (config(compute=ComputeConfig(num_threads=0)), "num_threads"),
    ],
)
def test_cli_07_values_out_of_range_are_refused_by_name(wrong, param) -> None:
    with pytest.raises(InvalidRequest, match=param) as error:
        resolve(wrong, SMOLLM2, machine(8 * GIB))
    assert error.value.param == param


def test_kv_memory_below_one_block_is_refused() -> None:
    with pytest.raises(CapacityError):
        resolve(config(cache=CacheConfig(kv_cache_memory_bytes=0)), SMOLLM2, machine(8 * GIB))


class Root:
    """A fake /proc and /sys."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\n")
        self.write(
            "proc/self/status",
            "VmSize: 1048576 kB\nVmData: 524288 kB\nCpus_allowed_list:\t0-3,8-11\n",
        )

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(tmp_path)


def test_affinity_and_available_memory_without_cgroups(root) -> None:
    limits = read_machine_limits(root.path)
    assert limits == MachineLimits(8, 8 * GIB, "memory available on the machine", None)


def test_cgroup_v2_limits_of_every_level_count(root) -> None:
    root.write("proc/self/cgroup", "0::/outer/inner\n")
    root.write("sys/fs/cgroup/outer/cpu.max", "250000 100000\n")
    root.write("sys/fs/cgroup/outer/memory.max", f"{2 * GIB}\n")
    root.write("sys/fs/cgroup/outer/memory.current", f"{1 * GIB}\n")
    root.write("sys/fs/cgroup/outer/memory.stat", f"anon 5\ninactive_file {512 * MIB}\n")
    root.write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    root.write("sys/fs/cgroup/outer/inner/memory.max", "max\n")
    limits = read_machine_limits(root.path)
    assert (limits.num_cores, limits.memory_bytes) == (3, 2 * GIB - 512 * MIB)
    assert limits.memory_source == "cgroup memory limit"


def test_cgroup_v2_seen_from_inside_a_container(root) -> None:
    root.write("proc/self/cgroup", "0::/../../elsewhere\n")
    root.write("sys/fs/cgroup/memory.max", f"{1 * GIB}\n")
    root.write("sys/fs/cgroup/memory.current", "0\n")
    root.write("sys/fs/cgroup/cpu.max", "50000 100000\n")
    limits = read_machine_limits(root.path)
    assert (limits.num_cores, limits.memory_bytes) == (1, 1 * GIB)


def test_cgroup_v1_limits_count_and_its_huge_number_means_none(root) -> None:
    root.write("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n")
    root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "200000\n")
    root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\n")
    root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", f"{3 * GIB}\n")
    root.write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", f"{1 * GIB}\n")
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    limits = read_machine_limits(root.path)
    assert (limits.num_cores, limits.memory_bytes) == (2, 2 * GIB)
    root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\n")
    assert read_machine_limits(root.path).num_cores == 8


def test_resource_limits_count(root) -> None:
    root.write(
        "proc/self/limits",
        "Limit Soft Limit Hard Limit Units\n"
        f"Max data size             {1 * GIB}            unlimited            bytes\n"
        f"Max address space         {4 * GIB}            unlimited            bytes\n",
    )
    limits = read_machine_limits(root.path)
    assert (limits.memory_bytes, limits.memory_source) == (512 * MIB, "RLIMIT_DATA")
    assert limits.address_space_bytes == 3 * GIB


def test_this_machine_has_limits() -> None:
    limits = read_machine_limits()
    assert limits.num_cores >= 1
    assert limits.memory_bytes > 0
