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
    format_size,
    parse_size,
)
from octavo.dtypes import QuantFormat
from octavo.engine.machine import ON_MACHINE, MachineLimits, read_machine_limits
from octavo.engine.memory_choice import MemoryWish
from octavo.engine.memory_costs import ModelFacts, reserved_bytes, weights_bytes
from octavo.engine.memory_plan import plan_memory
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
    reserved_bytes=132 * MIB,
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


class Layout(KVLayout):
    """As a KV type of `token` bytes a token would have it."""

    def __init__(self, token: int) -> None:
        super().__init__(30, 3, 64)
        object.__setattr__(self, "token", token)

    @property
    def block_bytes(self) -> int:
        return self.token * 16

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KVLayout) and self.block_bytes == other.block_bytes

    __hash__ = None


def flags_of(error: CapacityError) -> dict[str, str]:
    return dict(flag.split(" ") for flag in error.flags)


def following(wish: MemoryWish, error: CapacityError) -> MemoryWish:
    """The wish with what the refusal advises."""
    flags = flags_of(error)
    changes: dict[str, object] = {"is_strict": False}
    if "--max-model-len" in flags:
        changes["max_model_len"] = int(flags["--max-model-len"])
    if "--max-num-seqs" in flags:
        changes["max_num_seqs"] = int(flags["--max-num-seqs"])
    if "--max-num-batched-tokens" in flags:
        changes["max_num_batched_tokens"] = int(flags["--max-num-batched-tokens"])
    if "--kv-cache-memory-bytes" in flags:
        changes["kv_cache_memory_bytes"] = parse_size(flags["--kv-cache-memory-bytes"])
    assert f"It would fit with: {' '.join(error.flags)}" in str(error)
    return replace(wish, **changes)  # type: ignore[arg-type]


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
        "context", "sequences", "KV type", "KV cache", "weights", "activations", "overhead", "total",
        "limited by the test", "gave way: context 8192 -> 8144 tokens (saves 1080KiB)",
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
    small = replace(WISH, max_model_len=120_000, kv_cache_memory_bytes=1 * GIB)
    with pytest.raises(CapacityError, match="kv-cache-memory-bytes") as error:
        plan_memory(SMOLLM2, small, machine(8 * GIB))
    plan = plan_memory(SMOLLM2, following(small, error.value), machine(8 * GIB))
    assert plan.max_model_len == 120_000


def test_one_full_context_is_planned_for_even_above_the_share() -> None:
    plan = plan_memory(SMOLLM2, replace(WISH, max_model_len=120_000), machine(8 * GIB))
    assert (plan.max_model_len, plan.num_blocks) == (120_000, 7500)
    assert kv_bytes(plan) > 2 * GIB
    assert not plan.is_lowered


def test_kv_memory_that_is_too_large_or_too_small_is_refused_with_one_that_fits() -> None:
    for asked in (7 * GIB + 900 * MIB, 1000):
        with pytest.raises(CapacityError, match="would fit with") as error:
            plan_memory(SMOLLM2, replace(WISH, kv_cache_memory_bytes=asked), machine(8 * GIB))
        size = parse_size(re.search(r"--kv-cache-memory-bytes (\S+)", str(error.value))[1])  # type: ignore[index]
        plan_memory(SMOLLM2, replace(WISH, kv_cache_memory_bytes=size), machine(8 * GIB))


def test_model_that_does_not_fit_at_all_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        CapacityError,
        match=r"does not fit: 77MiB are missing.*needed 227MiB: KV cache 5760KiB, weights 95MiB, "
        r"activations 30MiB, overhead 96MiB; 150MiB available \(the test\)",
    ):
        plan_memory(SMOLLM2, WISH, machine(150 * MIB))


SMALLER = (Layout(12_000), Layout(7_000))
"""As int8 and int4 would be."""


def test_kv_type_gives_way_last_and_only_if_it_was_not_chosen() -> None:
    wish = replace(WISH, max_model_len=20_000, smaller_layouts=SMALLER)
    enough = plan_memory(SMOLLM2, wish, machine(800 * MIB))
    assert enough.layout == SMOLLM2.layout
    plan = plan_memory(SMOLLM2, wish, machine(500 * MIB))
    assert (plan.max_model_len, plan.max_num_seqs, plan.layout) == (20_000, 64, SMALLER[0])
    assert [str(f) for f in plan.fallbacks] == ["KV type f16 -> f16 (saves 211MiB)"]
    assert plan_memory(SMOLLM2, wish, machine(380 * MIB)).layout == SMALLER[1]
    with pytest.raises(CapacityError, match="a context of 20000 tokens needs 440MiB") as error:
        plan_memory(SMOLLM2, replace(wish, has_chosen_dtype=True), machine(500 * MIB))
    assert flags_of(error.value) == {"--max-model-len": flags_of(error.value)["--max-model-len"]}


def test_what_gave_way_is_printed_with_what_it_saves() -> None:
    wish = replace(WISH, kv_cache_memory_bytes=600 * 23040)
    plan = plan_memory(SMOLLM2, wish, machine(8 * GIB))
    assert plan.table().splitlines()[-2:] == [
        "gave way: context 8192 -> 592 tokens (saves 167MiB)",
        "gave way: sequences 64 -> 37 (saves 9720KiB)",
    ]


def test_strict_memory_refuses_what_would_give_way_with_what_would_fit() -> None:
    strict = replace(WISH, is_strict=True)
    assert not plan_memory(SMOLLM2, strict, machine(8 * GIB)).fallbacks
    for wish in (strict, replace(strict, kv_cache_memory_bytes=600 * 23040)):
        with pytest.raises(
            CapacityError, match="--strict-memory forbids: context 8192 ->"
        ) as error:
            plan_memory(SMOLLM2, wish, machine(400 * MIB))
        advised = replace(following(wish, error.value), is_strict=True)
        assert not plan_memory(SMOLLM2, advised, machine(400 * MIB)).fallbacks


WISHES = {
    "default": WISH,
    "strict": replace(WISH, is_strict=True),
    "long context": replace(WISH, max_model_len=32_768),
    "KV of a size": replace(WISH, kv_cache_memory_bytes=256 * MIB),
    "both": replace(WISH, max_model_len=32_768, kv_cache_memory_bytes=256 * MIB, is_strict=True),
    "large steps": replace(WISH, max_num_batched_tokens=8192),
    "smaller types": replace(WISH, max_model_len=32_768, smaller_layouts=SMALLER),
}


@pytest.mark.parametrize("name", WISHES)
@pytest.mark.parametrize("is_address", [False, True])
def test_from_too_small_to_ample_it_fits_or_says_what_would(name, is_address) -> None:
    wish = WISHES[name]
    outcomes = []
    for mib in [1, *range(40, 1200, 13), 2048, 4096, 65536]:

        def limits(room: int) -> MachineLimits:
            if is_address:
                return machine(1024 * GIB, address_space_bytes=room, address_space_limit=room)
            return MachineLimits(4, room, "cgroup memory limit")

        try:
            plan = plan_memory(SMOLLM2, wish, limits(mib * MIB))
        except CapacityError as error:
            if error.flags:
                outcomes.append("advised")
                plan = plan_memory(SMOLLM2, following(wish, error), limits(mib * MIB))
            else:
                outcomes.append("refused")
                raised = re.search(r"ulimit -v (\d+)|by (\S+),", str(error))
                assert raised, str(error)  # noqa: PT017
                room = int(raised[1]) * 1024 if raised[1] else mib * MIB + parse_size(raised[2])
                least = replace(
                    wish, max_model_len=256, max_num_seqs=1, kv_cache_memory_bytes=None, is_strict=False
                )  # fmt: skip
                plan = plan_memory(SMOLLM2, least, limits(room))
                mib = room / MIB
        else:
            outcomes.append("planned")
        assert plan.total_bytes <= mib * MIB
        assert plan.num_blocks >= plan.layout.num_blocks(plan.max_model_len)
    in_order = list(dict.fromkeys(outcomes))
    assert in_order in (
        ["refused", "advised", "planned"],
        ["refused", "planned"],
        ["refused", "advised"],
    )
    assert outcomes == sorted(outcomes, key=in_order.index)


def test_regions_are_filled_one_after_another() -> None:
    def tensor(mib: int) -> TensorInfo:
        return TensorInfo("m", (mib, MIB), QuantFormat.Q4_0, 0, 0)  # 9/16 byte a weight

    region = 64 * MIB + 2 * MIB
    assert reserved_bytes([tensor(10)] * 11, BackendName.NATIVE) == region
    assert reserved_bytes([tensor(10)] * 12, BackendName.NATIVE) == 2 * region
    assert reserved_bytes([tensor(160)], BackendName.NATIVE) == 92 * MIB


def test_address_space_limit_counts_whole_regions_and_stacks() -> None:
    free = plan_memory(SMOLLM2, WISH, machine(8 * GIB))
    tight = plan_memory(SMOLLM2, WISH, machine(8 * GIB, address_space_bytes=1 * GIB))
    assert tight.total_bytes <= 1 * GIB < free.total_bytes
    assert "RLIMIT_AS" in tight.table()
    assert "132MiB" in tight.table()


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
    assert (limits.memory_bytes, limits.memory_source) == (8 * GIB, ON_MACHINE)
    assert (limits.address_space_bytes, limits.address_space_limit) == (3 * GIB, 4 * GIB)
    assert limits.data_bytes == 512 * MIB
    assert limits.least == (512 * MIB, "RLIMIT_DATA")


def test_cgroup_v1_limit_of_groups_that_a_container_does_not_see(root) -> None:
    root.write("proc/self/cgroup", "4:memory:/elsewhere\n")
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", f"{1 * GIB}\n")
    root.write(
        "sys/fs/cgroup/memory/memory.stat",
        f"total_inactive_file {256 * MIB}\nhierarchical_memory_limit {2 * GIB}\n",
    )
    limits = read_machine_limits(root.path)
    assert (limits.memory_bytes, limits.memory_source) == (1280 * MIB, "cgroup memory limit")


def test_cgroup_v2_beside_version_1(root) -> None:
    root.write("proc/self/cgroup", "4:memory:/\n0::/job\n")
    root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", f"{4 * GIB}\n")
    root.write("sys/fs/cgroup/memory/memory.usage_in_bytes", "0\n")
    root.write("sys/fs/cgroup/unified/job/memory.max", f"{1 * GIB}\n")
    root.write("sys/fs/cgroup/unified/job/memory.current", "0\n")
    assert read_machine_limits(root.path).memory_bytes == 1 * GIB


@pytest.mark.parametrize("mib", [0, 64, 200, 300, 450, 700, 2048, 65536])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("level", ["", "/outer", "/outer/inner"])
def test_steps_of_a_cgroup_limit_at_any_level(root, mib, version, level) -> None:
    number, folder = ("4:memory:", "memory") if version == 1 else ("0::", "")
    names = (
        ("memory.limit_in_bytes", "memory.usage_in_bytes")
        if version == 1
        else ("memory.max", "memory.current")
    )
    root.write("proc/self/cgroup", f"{number}/outer/inner\n")
    for other in ("", "/outer", "/outer/inner"):
        group = f"sys/fs/cgroup/{folder}{other}"
        root.write(f"{group}/{names[0]}", "9223372036854771712\n" if version == 1 else "max\n")
        root.write(f"{group}/{names[1]}", f"{40 * MIB}\n")
    root.write(f"sys/fs/cgroup/{folder}{level}/{names[0]}", f"{(mib + 40) * MIB}\n")
    limits = read_machine_limits(root.path)
    is_bound = mib < 8192
    assert limits.memory_bytes == (mib * MIB if is_bound else 8 * GIB)
    assert ("cgroup" in limits.memory_source) == is_bound
    try:
        plan = plan_memory(SMOLLM2, WISH, limits)
    except CapacityError as error:
        assert mib < 233
        assert f"{format_size(mib * MIB)} available (cgroup memory limit)" in str(error)  # noqa: PT017
    else:
        assert mib >= 233
        assert plan.total_bytes <= limits.memory_bytes


def test_this_machine_has_limits() -> None:
    limits = read_machine_limits()
    assert limits.num_cores >= 1
    assert limits.memory_bytes > 0
