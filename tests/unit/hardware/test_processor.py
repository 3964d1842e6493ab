"""CPUs and memory are read from the kernel's text, on x86 and on ARM."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.hardware.processor import (
    parse_cpu_list,
    parse_cpuinfo,
    parse_meminfo,
    show_cpu_list,
)

XEON = "\n\n".join(
    f"processor\t: {thread}\n"
    "model name\t: Intel(R) Xeon(R) Processor\n"
    "physical id\t: 0\n"
    f"core id\t\t: {thread // 2}\n"
    "flags\t\t: fpu sse avx2 avx512f amx_bf16 amx_tile"
    for thread in range(4)
)

SPARK = "\n\n".join(
    f"processor\t: {core}\nFeatures\t: fp asimd bf16 i8mm sve2\n"
    f"CPU implementer\t: 0x41\nCPU part\t: {'0xd87' if core % 10 < 5 else '0xd85'}"
    for core in range(20)
)


@pytest.mark.parametrize(
    ("text", "model", "cores", "features"),
    [
        # Hyper-threads are no cores, and only features that matter are kept.
        (XEON, "Intel(R) Xeon(R) Processor", 2, ("amx_bf16", "amx_tile", "avx2", "avx512f")),
        (SPARK, "10x Cortex-A725 + 10x Cortex-X925", 20, ("asimd", "bf16", "i8mm", "sve2")),
        ("processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xfff", "1x 0x41:0xfff", 1, ()),
        ("", None, None, ()),
    ],
)
def test_a_processor_is_named_counted_and_known_by_its_features(
    text: str, model: str | None, cores: int | None, features: tuple[str, ...]
) -> None:
    processor = parse_cpuinfo(text, architecture="any", usable_threads=3, numa_nodes=1)
    assert (processor.model, processor.cores, processor.features) == (model, cores, features)
    assert processor.usable_threads == 3


@pytest.mark.parametrize(
    ("cpus", "text"),
    [((0,), "0"), (range(8, 15), "8-14"), ((4, 5, 6, 8), "4-6,8"), ((9, 1, 2), "1-2,9")],
)
def test_cpus_are_written_as_ranges(cpus: tuple[int, ...], text: str) -> None:
    assert show_cpu_list(cpus) == text


@given(some.sets(some.integers(0, 300), min_size=1))
def test_a_list_that_was_written_is_read_back(cpus: set[int]) -> None:
    assert parse_cpu_list(show_cpu_list(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["", "auto", "nobind", "0-3|4-7", "1-", "0,,1"])
def test_what_is_not_a_list_is_none(text: str) -> None:
    assert parse_cpu_list(text) is None


@given(some.integers(min_value=0, max_value=2**50))
def test_memory_is_read_in_the_kernels_units_and_unknown_where_it_says_nothing(
    kilobytes: int,
) -> None:
    text = f"MemTotal:       {kilobytes} kB\nSwapTotal: 16777212 kB\nHugePages_Total:       0\n"
    memory = parse_meminfo(text, limit_bytes=7)
    assert (memory.total_bytes, memory.swap_bytes) == (kilobytes * 1024, 16777212 * 1024)
    assert (memory.available_bytes, memory.limit_bytes) == (None, 7)
