"""What a request says depends on what it is comparable with, and is bounded."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.steering.streams import (
    FORMS,
    Family,
    observe,
    solve_acceptance,
)
from tests.unit.steering.lines import make


def read(**changes: object) -> dict[Family, tuple[str, Any]]:
    return {one.family: (str(one.place), one.figure) for one in observe(make(**changes))}


def test_a_request_says_one_thing_per_family() -> None:
    assert read() == {
        "acceptance": ("code, drafts up to 7", pytest.approx(0.558, abs=0.001)),
        "first position": ("code, context 0 to 1k", pytest.approx(25 / 29)),
        "cached share": ("code", pytest.approx(256 / 300)),
        "step seconds": ("context 0 to 1k, drafts up to 7, batch up to 4", pytest.approx(1.9 / 29)),
        "first token seconds": ("batch up to 4, prompt up to 64", 0.41),
    }
    assert set(read()) == {*FORMS}


def test_what_says_too_little_is_left_out() -> None:
    assert "acceptance" not in read(drafts=3)
    assert "step seconds" not in read(steps=7)
    assert "cached share" not in read(prompt_tokens=100)
    assert {*read(first_seconds=None)} == {"acceptance", "first position", "cached share"}


def test_requests_without_drafts_are_comparable_in_time_only() -> None:
    said = read(drafts=0, drafted=0, accepted=[], batch=None, prompt_tokens=10**6)
    assert said["step seconds"][0] == "context 64k on, drafts up to 0, batch up to 1"
    assert said["first token seconds"][0] == "batch up to 1, prompt over 4096"


@given(rate=st.floats(0.02, 0.98), length=st.floats(1, 16))
def test_the_acceptance_of_a_token_does_not_depend_on_the_draft_length(
    rate: float, length: float
) -> None:
    whole = int(length)
    accepted = sum(rate**position for position in range(1, whole + 1))
    accepted += (length - whole) * rate ** (whole + 1)
    assert solve_acceptance(accepted, length) == pytest.approx(rate, abs=1e-3)


@pytest.mark.parametrize(("accepted", "length"), [(0, 7), (7, 7), (9, 7), (0, 0), (5, 0)])
def test_the_acceptance_of_a_token_is_a_share_whatever_was_counted(
    accepted: float, length: float
) -> None:
    assert 0 <= solve_acceptance(accepted, length) <= 1


@pytest.mark.parametrize("family", FORMS)
def test_a_figure_has_a_value_between_0_and_1_and_less_is_worse(family: Family) -> None:
    form = FORMS[family]
    good, usual, bad = (0.3, 0.4, 0.5) if form.is_time else (0.9, 0.4, 0.1)
    values = [form.to_value(figure, 0.4) for figure in (good, usual, bad)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3
    assert form.to_figure(values[2], 0.4) == pytest.approx(bad)
    for extreme in (0.0, 1e-300, 1e300):
        assert 0 <= form.to_value(extreme, 0.4) <= 1


def test_a_larger_margin_is_further_from_the_baseline() -> None:
    for form in FORMS.values():
        distances = [margin.share + margin.step for margin in form.margins]
        assert distances == sorted(distances)
        assert distances[0] > 0
