"""What a request says depends on what it is comparable with, and is bounded."""

from typing import Any

import pytest

from slipstream.steering.change_detection import Likeness
from slipstream.steering.streams import FORMS, PILOT_REQUESTS, Family, Place, Stream, observe
from tests.unit.steering.lines import make


def read(**changes: object) -> dict[Family, tuple[str, Any]]:
    return {one.family: (str(one.place), one.figure) for one in observe(make(**changes))}


def test_a_request_says_one_thing_per_family() -> None:
    assert read() == {
        "accepted per draft": ("code, 7 drafted", pytest.approx(36 / 29)),
        "first position": ("code, context 0 to 1k", pytest.approx(25 / 29)),
        "cached share": ("code", pytest.approx(256 / 300)),
        "step seconds": ("context 0 to 1k, 7 drafted, batch up to 4", pytest.approx(1.9 / 29)),
        "first token seconds": ("batch up to 4, prompt up to 64", pytest.approx(0.41 / 44)),
    }
    assert set(read()) == {*FORMS}


def test_what_says_too_little_is_left_out() -> None:
    assert "accepted per draft" not in read(drafts=3)
    assert "step seconds" not in read(steps=7)
    assert "cached share" not in read(prompt_tokens=100)
    assert "first token seconds" not in read(cached_tokens=300)
    assert {*read(first_seconds=None)} == {"accepted per draft", "first position", "cached share"}


def test_requests_without_drafts_are_comparable_in_time_only() -> None:
    said = read(drafts=0, drafted=0, accepted=[], batch=None, prompt_tokens=10**6)
    assert said["step seconds"][0] == "context 64k on, 0 drafted, batch up to 1"
    assert said["first token seconds"][0] == "batch up to 1, prompt over 4096"
    assert str(Place(batch=64)) == "batch over 32"


@pytest.mark.parametrize("family", FORMS)
def test_a_figure_has_a_value_between_0_and_1_and_less_is_worse(family: Family) -> None:
    stream = Stream(family, 1e-3, Likeness())
    is_share = FORMS[family].scale == "share"
    for _ in range(0 if is_share else PILOT_REQUESTS):
        assert stream.to_value(0.4) is None
    good, usual, bad = (0.9, 0.4, 0.1) if FORMS[family].scale != "seconds" else (0.3, 0.4, 0.5)
    values = [stream.to_value(figure) or 0.0 for figure in (good, usual, bad)]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == 3
    assert stream.to_figures(values[1])[1] == pytest.approx(usual)
    for extreme in (0.0, 1e-300, 1e300):
        assert 0 <= (stream.to_value(extreme) or 0.0) <= 1


def test_a_pilot_that_says_nothing_is_taken_anew() -> None:
    stream = Stream("accepted per draft", 1e-3, Likeness())
    for figure in [0.0] * PILOT_REQUESTS + [2.0] * PILOT_REQUESTS:
        assert stream.to_value(figure) is None
    assert stream.to_value(2.0) == pytest.approx(1 / 3)
