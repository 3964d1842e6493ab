"""A candidate's gate: it has to win overall, and to lose on no kind that matters."""

import numpy as np
import pytest

from slipstream.learning.candidate import find_gain, find_objection, find_own_share
from slipstream.training.cpu.batches import CHOICES, StateFile, TrainSample
from tests.unit.learning.stub_job import walk

SHARES = {"code": 0.8, "prose": 0.16, "translation": 0.04}
BEFORE = walk({"code": 2.0, "prose": 1.5, "translation": 1.5})


@pytest.mark.parametrize(
    ("after", "objection"),
    [
        ({"code": 2.4, "prose": 1.5, "translation": 1.5}, None),
        ({"code": 2.4, "prose": 1.43, "translation": 1.5}, None),
        ({"code": 3.0, "prose": 1.4, "translation": 1.5}, "of prose, which has 16%"),
        ({"code": 2.4, "prose": 1.5, "translation": 1.0}, None),
        ({"code": 2.04, "prose": 1.5, "translation": 1.5}, "it gains 1.6%"),
        ({}, "it gains 0.0%"),
    ],
)
def test_more_than_a_twentieth_lost_on_a_kind_with_traffic_is_not_offered(
    after: dict[str, float], objection: str | None
) -> None:
    found = find_objection(BEFORE, walk(after), SHARES)
    assert (found is None) == (objection is None)
    assert objection is None or objection in (found or "")


def test_a_gain_is_weighed_by_traffic_and_of_unknown_traffic_evenly() -> None:
    after = walk({"code": 2.2, "prose": 1.5})
    assert find_gain(BEFORE, after, {"code": 1.0}) == pytest.approx(0.1)
    assert find_gain(BEFORE, after, {"prose": 1.0}) == pytest.approx(0.0)
    assert find_gain(BEFORE, after, {}) == pytest.approx(1.1**0.5 - 1)


def test_text_is_the_targets_own_if_the_target_finds_it_likely() -> None:
    """A state file of one sample whose likeliest tokens are those of the text, or are not."""
    tokens = np.arange(10, 20)
    sample = TrainSample(tokens=tokens, response_start=4, number=0)

    def make_states(likeliest: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> StateFile:
        choices = np.repeat(likeliest[:, None], CHOICES, 1).astype(np.int32)
        shares = np.zeros((len(tokens), CHOICES), np.float16)
        rows = np.concatenate([choices.view(np.uint16), shares.view(np.uint16)], 1)
        return StateFile(np.ascontiguousarray(rows), (0, len(tokens)))

    assert find_own_share(sample, make_states(np.roll(tokens, -1))) == 1.0
    assert find_own_share(sample, make_states(tokens)) == 0.0
    half = np.where(tokens % 2, np.roll(tokens, -1), 0)
    assert find_own_share(sample, make_states(half)) == 0.5
