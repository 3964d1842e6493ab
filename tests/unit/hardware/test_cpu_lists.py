"""CPUs are read and written as the kernel does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.hardware.cpu_lists import parse_cpu_list, show_cpu_list


@pytest.mark.parametrize(
    ("cpus", "text"),
    [((0,), "0"), (range(8, 15), "8-14"), ((4, 5, 6, 8), "4-6,8"), ((9, 1, 2), "1-2,9")],
)
def test_cpus_are_written_as_ranges(cpus: tuple[int, ...], text: str) -> None:
    assert show_cpu_list(cpus) == text


@given(st.sets(st.integers(0, 300), min_size=1))
def test_a_list_that_was_written_is_read_back(cpus: set[int]) -> None:
    assert parse_cpu_list(show_cpu_list(cpus)) == tuple(sorted(cpus))


@pytest.mark.parametrize("text", ["", "auto", "nobind", "0-3|4-7", "1-", "0,,1"])
def test_what_is_not_a_list_is_none(text: str) -> None:
    assert parse_cpu_list(text) is None
