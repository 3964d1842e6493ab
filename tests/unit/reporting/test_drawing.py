"""Scales, axes and text of the charts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.reporting.drawing import Scale, draw, round_up, shorten

POSITIVE = st.floats(min_value=1e-6, max_value=1e6)


@given(low=POSITIVE, high=POSITIVE, value=POSITIVE, logarithmic=st.booleans())
def test_a_clipped_value_is_on_the_axis(
    low: float, high: float, value: float, logarithmic: bool
) -> None:
    scale = Scale(min(low, high), max(low, high), 10, 90, logarithmic)
    assert 10 - 1e-6 <= scale.clip(value) <= 90 + 1e-6


def test_a_logarithmic_scale_has_the_geometric_mean_in_its_middle() -> None:
    assert Scale(1, 16, 0, 100, logarithmic=True)(4) == pytest.approx(50)
    assert Scale(1, 16, 0, 100)(8.5) == pytest.approx(50)
    assert Scale(4, 4, 0, 100, logarithmic=True)(4) == 50
    # Two speeds that differ by the last bit have the same logarithm.
    assert Scale(27.064209376923795, 27.0642093769238, 0, 100, logarithmic=True)(27.0) == 50


@given(POSITIVE)
def test_an_axis_ends_a_little_above_the_largest_value(value: float) -> None:
    assert value * 0.999 <= round_up(value) <= 2 * value


def test_an_axis_without_values_ends_at_one() -> None:
    assert round_up(0) == 1


def test_attributes_cannot_be_left() -> None:
    assert draw("a", title='"><b>', x=1.04) == '<a title="&quot;&gt;&lt;b&gt;" x="1"/>'


def test_long_text_is_cut() -> None:
    assert shorten("dialogue", 66) == "dialogue"
    assert shorten("a-very-long-kind", 66) == "a-very-lo\u2026"
