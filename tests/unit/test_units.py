"""Figures are rounded for people, and unknown stays unknown."""

import pytest

from slipstream.units import show_bandwidth, show_bytes, show_number, version_tuple


def test_unknown_is_said_and_never_zero() -> None:
    shown = {show_bytes(None), show_bandwidth(None), show_number(None, "W")}
    assert shown == {"unknown"}
    assert show_bytes(0) == "0.0 GiB"


def test_known_figures_carry_their_unit() -> None:
    assert show_bytes(3 * 2**29) == "1.5 GiB"
    assert show_bandwidth(273_000_000_000) == "273 GB/s"
    assert show_number(11.17, "W") == "11 W"
    assert show_number(20) == "20"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.32.0", (0, 32, 0)),
        ("0.31.2rc1.dev5+g0ab", (0, 31, 2)),
        ("0.32.0+cpu", (0, 32, 0)),
        ("12.1", (12, 1, 0)),
        ("dev", (0, 0, 0)),
    ],
)
def test_a_version_is_read_whatever_build_it_names(text: str, version: tuple[int, ...]) -> None:
    assert version_tuple(text) == version
