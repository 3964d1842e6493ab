"""The CPU is read from the kernel's text, on x86, on ARM and on a Mac."""

import pytest

from slipstream.hardware.processor import count_numa_nodes, parse_cpuinfo, parse_sysctl

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


def test_hyper_threads_are_not_counted_as_cores() -> None:
    processor = parse_cpuinfo(XEON, architecture="x86_64", usable_threads=3, numa_nodes=1)
    assert processor.cores == 2
    assert processor.usable_threads == 3
    assert processor.model == "Intel(R) Xeon(R) Processor"


def test_only_features_that_matter_are_kept() -> None:
    processor = parse_cpuinfo(XEON, architecture="x86_64", usable_threads=4, numa_nodes=1)
    assert processor.features == ("amx_bf16", "amx_tile", "avx2", "avx512f")


def test_an_arm_chip_is_named_by_its_kinds_of_core() -> None:
    processor = parse_cpuinfo(SPARK, architecture="aarch64", usable_threads=20, numa_nodes=1)
    assert processor.model == "10x Cortex-A725 + 10x Cortex-X925"
    assert processor.cores == 20
    assert processor.features == ("asimd", "bf16", "i8mm", "sve2")


def test_an_arm_core_without_a_name_keeps_its_numbers() -> None:
    text = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xfff"
    processor = parse_cpuinfo(text, architecture="aarch64", usable_threads=1, numa_nodes=None)
    assert processor.model == "1x 0x41:0xfff"


def test_a_text_that_says_nothing_leaves_everything_unknown() -> None:
    processor = parse_cpuinfo("", architecture="riscv64", usable_threads=None, numa_nodes=None)
    assert processor.model is None
    assert processor.cores is None
    assert processor.features == ()


def test_a_mac_answers_through_sysctl() -> None:
    text = "machdep.cpu.brand_string: Apple M4 Max\nhw.physicalcpu: 16\nhw.logicalcpu: 16\n"
    processor = parse_sysctl(text, architecture="arm64")
    assert processor.model == "Apple M4 Max"
    assert processor.cores == 16


def test_a_mac_that_says_nothing_stays_unknown() -> None:
    processor = parse_sysctl("", architecture="arm64")
    assert processor.model is None
    assert processor.cores is None


@pytest.mark.parametrize(
    ("online", "count"), [("0\n", 1), ("0-1\n", 2), ("0-1,4,6-7", 5), ("", None), ("none", None)]
)
def test_numa_nodes_are_counted_from_the_kernels_list(online: str, count: int | None) -> None:
    assert count_numa_nodes(online) == count
