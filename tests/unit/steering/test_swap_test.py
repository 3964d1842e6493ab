"""A worse drafter is seen within few requests, and one that is as good is not called worse."""

from random import Random

import pytest

from slipstream.steering.ledger import LedgerLine
from slipstream.steering.swap_test import FALSE_ALARMS, SwapTest, count_accepted
from tests.unit.steering.lines import make

LENGTH = 7
KINDS = ("code", "prose", "structured")
# Mean acceptance of a position given the one before, by kind; requests scatter around it.
USUAL = {"code": 0.62, "prose": 0.42, "structured": 0.7}
SPREAD = 8.0
TEMPLATE = make(cached_tokens=0)


def draw(
    chance: Random, kind: str, quality: float, *, length: int = LENGTH, batch: float = 3.0
) -> LedgerLine:
    """Draw a request whose text is easier or harder than others of its kind."""
    mean = USUAL[kind] * quality
    rate = chance.betavariate(SPREAD * mean, SPREAD * (1 - mean)) if mean > 0 else 0.0
    steps, accepted = chance.randint(5, 25), [0] * length
    for _ in range(steps):
        for position in range(length):
            if chance.random() >= rate:
                break
            accepted[position] += 1
    counts = {"steps": steps, "drafts": steps if length else 0, "accepted": tuple(accepted)}
    return TEMPLATE.model_copy(update={"kind": kind, "batch": batch, **counts})


def swap(seed: int, quality: float, requests: int, *, before: int = 300) -> SwapTest:
    chance = Random(seed)
    test = SwapTest([draw(chance, chance.choice(KINDS), 1.0) for _ in range(before)])
    for _ in range(requests):
        test.add(draw(chance, chance.choice(KINDS), quality))
        if test.verdict is not None:
            break
    return test


def test_steps_that_copied_say_nothing_of_a_drafter() -> None:
    drafted = make(steps=40, copies=0, accepted=[20, 10])
    copying = make(steps=60, copies=20, copied=400, copied_accepted=400, accepted=[20, 10])
    assert count_accepted(drafted) == count_accepted(copying) == 30 / 40
    assert count_accepted(make(steps=5, drafts=0, accepted=[], copies=5)) is None


def test_of_500_swaps_for_an_equal_drafter_at_most_one_in_a_hundred_is_called_worse() -> None:
    tests = [swap(seed, 1.0, 100, before=100) for seed in range(500)]
    assert sum(test.verdict == "worse" for test in tests) <= FALSE_ALARMS * len(tests)
    assert all(test.requests > 20 for test in tests)


def test_a_noise_drafter_is_seen_within_25_requests() -> None:
    tests = [swap(seed, 0.0, 100) for seed in range(50)]
    assert {test.verdict for test in tests} == {"worse"}
    assert max(test.requests for test in tests) <= 25
    old, new = tests[0].means or (0.0, 1.0)
    assert (old > 0.5, new) == (True, 0)


def test_a_drafter_with_two_thirds_of_the_acceptance_is_seen() -> None:
    tests = [swap(seed, 0.66, 250) for seed in range(40)]
    assert sum(test.verdict == "worse" for test in tests) >= 36


def test_a_better_drafter_is_called_as_good() -> None:
    tests = [swap(seed, 1.25, 250) for seed in range(20)]
    assert {test.verdict for test in tests} == {"as-good"}


def test_other_kinds_of_traffic_are_no_fault_of_the_drafter() -> None:
    chance = Random(1)
    test = SwapTest([draw(chance, chance.choice(KINDS), 1.0) for _ in range(300)])
    for _ in range(300):
        test.add(draw(chance, "prose", 1.0))
    assert test.verdict != "worse"
    assert 50 < test.requests < 150  # as many as there were of this kind before


def test_shorter_drafts_at_a_higher_load_are_no_fault_of_the_drafter() -> None:
    chance = Random(1)
    kinds = [chance.choice(KINDS) for _ in range(200)]
    light = [draw(chance, kind, 1.0) for kind in kinds]
    test = SwapTest(light + [draw(chance, kind, 1.0, length=1, batch=8.0) for kind in kinds])
    for kind in kinds:
        test.add(draw(chance, kind, 1.0, length=1, batch=8.0))
        test.add(draw(chance, kind, 1.0, length=0, batch=32.0))
    assert test.verdict != "worse"
    assert test.requests > 20


def test_a_drafter_for_which_the_controller_stopped_drafting_is_worse() -> None:
    chance = Random(1)
    test = SwapTest([draw(chance, chance.choice(KINDS), 1.0) for _ in range(100)])
    for _ in range(30):
        test.add(draw(chance, chance.choice(KINDS), 1.0, length=0))
    assert test.verdict == "worse"


@pytest.mark.parametrize("before", [0, 5])
def test_without_enough_requests_before_nothing_is_decided(before: int) -> None:
    test = swap(1, 0.0, 100, before=before)
    assert not test.can_decide
    assert test.verdict is None
    assert test.means is None


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "as-good"), (0.05, "as-good"), (0.0, None)])
def test_a_drafter_of_which_nothing_was_accepted_gives_way_to_any_that_accepts_more(
    share: float, verdict: str | None
) -> None:
    chance = Random(1)
    test = SwapTest([draw(chance, "code", 0.0) for _ in range(200)])
    for _ in range(200):
        test.add(draw(chance, "code", share))
    assert test.verdict == verdict


@pytest.mark.parametrize("change", [{"steps": 0}, {"cached_tokens": 200}, {"kind": "tools"}])
def test_a_request_that_says_nothing_is_not_compared(change: dict[str, int | str]) -> None:
    test = SwapTest([TEMPLATE] * 20)
    test.add(TEMPLATE.model_copy(update=change))
    assert test.requests == 0
    test.add(TEMPLATE)
    assert test.requests == 1
