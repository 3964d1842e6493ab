"""Memory is read in the kernel's units, and a limit that is none is not a limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.hardware.memory import parse_cgroup_limit, parse_meminfo

MEMINFO = """\
MemTotal:       127600748 kB
MemFree:         1000000 kB
MemAvailable:   118566368 kB
SwapTotal:      16777212 kB
HugePages_Total:       0
"""


def test_figures_are_in_bytes() -> None:
    memory = parse_meminfo(MEMINFO, limit_bytes=None)
    assert memory.total_bytes == 127600748 * 1024
    assert memory.available_bytes == 118566368 * 1024
    assert memory.swap_bytes == 16777212 * 1024


def test_a_kernel_without_a_figure_leaves_it_unknown() -> None:
    memory = parse_meminfo("MemTotal: 5 kB\n", limit_bytes=7)
    assert memory.total_bytes == 5 * 1024
    assert memory.available_bytes is None
    assert memory.limit_bytes == 7


@given(some.integers(min_value=0, max_value=2**50))
def test_every_size_survives(kilobytes: int) -> None:
    memory = parse_meminfo(f"MemTotal:       {kilobytes} kB\n", limit_bytes=None)
    assert memory.total_bytes == kilobytes * 1024


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("4294967296\n", 4294967296),
        ("max\n", None),
        ("9223372036854771712\n", None),
        (None, None),
    ],
)
def test_a_limit_is_read_from_both_kinds_of_cgroup(text: str | None, limit: int | None) -> None:
    assert parse_cgroup_limit(text) == limit
