"""What shorter drafts would have given, from long ones: never too much, and little too little."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts, find_drafts
from tests.unit.tuning.synthetic_engine import SyntheticEngine, average

ENGINE = SyntheticEngine()
rows = some.lists(
    some.lists(some.integers(0, 7), min_size=1, max_size=40), min_size=1, max_size=8
).filter(lambda rows: sum(map(len, rows)) > 1)


def accept(stretches: list[list[int]], length: int = 7) -> DraftAcceptance:
    """Make the acceptance of requests from how many tokens of each draft were accepted."""
    requests = [
        RequestDrafts(
            prompt_id=str(number),
            drafts=len(own),
            accepted=tuple(sum(one > place for one in own) for place in range(length)),
        )
        for number, own in enumerate(stretches)
    ]
    return DraftAcceptance(kind="code", draft_length=length, requests=tuple(requests))


def write_text(tokens: int, stay: float, chance: Random) -> list[float]:
    """Write tokens that are easy or hard in runs: how likely each is met by a draft."""
    easy, text = True, []
    for _ in range(tokens):
        easy = easy if chance.random() < stay else not easy
        text.append(0.95 if easy else 0.35)
    return text


def walk(text: list[float], length: int, fading: float, chance: Random) -> DraftAcceptance:
    """Draft along a text; a token is harder to meet the later it comes in a draft."""
    at, stretches = 0, []
    while at + length + 1 < len(text):
        accepted = 0
        while accepted < length and chance.random() < text[at + accepted] * fading**accepted:
            accepted += 1
        stretches.append(accepted)
        at += accepted + 1
    pages = [stretches[first : first + 50] for first in range(0, len(stretches), 50)]
    return accept(pages, length)


@pytest.mark.parametrize("stay", [0.5, 0.8, 0.95])
@pytest.mark.parametrize("fading", [1.0, 0.96])
def test_shorter_drafts_are_predicted_a_little_low_at_worst(stay: float, fading: float) -> None:
    chance = Random(5)
    text = write_text(30000, stay, chance)
    long = walk(text, 15, fading, chance)
    for length in (1, 3, 6, 10):
        truth = average(walk(text, length, fading, chance), length)
        assert -0.045 < long.expect(length).value / truth - 1 < 0.015
        if (stay, fading, length) == (0.95, 1.0, 3):
            # Where tokens come in runs, the first places alone would be far too low.
            assert average(long, length) < 0.9 * truth


@given(rows, some.integers(1, 6))
def test_longer_drafts_never_give_less_and_never_more_than_they_hold(
    stretches: list[list[int]], length: int
) -> None:
    acceptance = accept(stretches)
    here, longer = acceptance.expect(length), acceptance.expect(length + 1)
    assert 1 <= here.value <= longer.value + 1e-9
    assert here.value <= length + 1 + 1e-9
    assert here.error >= 0.03 * here.value * (1 - length / 7)


@given(rows)
def test_the_measured_length_is_as_measured(stretches: list[list[int]]) -> None:
    acceptance = accept(stretches)
    drafts = [one for own in stretches for one in own]
    assert acceptance.total.drafts == len(drafts)
    assert acceptance.expect(7).value == pytest.approx(1 + sum(drafts) / len(drafts))
    assert sum(acceptance.total.by_position) == pytest.approx(sum(drafts) / len(drafts))


def test_positions_that_no_draft_reached_may_be_missing() -> None:
    request = RequestDrafts(prompt_id="a", drafts=10, accepted=(6, 2))
    acceptance = DraftAcceptance(kind="code", draft_length=7, requests=(request,))
    assert acceptance.total.by_position == (0.6, 0.2, 0, 0, 0, 0, 0)
    assert acceptance.expect(7).value == pytest.approx(1.8)


def test_the_error_is_that_of_prompts_and_holds_the_truth() -> None:
    chance = Random(2)
    truth, held = ENGINE.give_tokens("code", 7), 0
    for _ in range(150):
        found = ENGINE.draft("code", 7, chance, prompts=8, drafts=40).expect(7)
        held += abs(found.value - truth) <= 1.96 * found.error
    assert 0.9 <= held / 150 <= 0.995


def test_a_prompt_that_is_asked_again_tells_nothing_new() -> None:
    once = ENGINE.draft("code", 7, Random(3), prompts=8)
    thrice = once.model_copy(update={"requests": once.requests * 3})
    assert thrice.expect(7).error > 0.9 * once.expect(7).error


def test_the_drafts_that_tell_most_are_taken() -> None:
    chance = Random(4)
    long, short = (ENGINE.draft("code", length, chance, prompts=40) for length in (15, 5))
    few = ENGINE.draft("code", 5, chance, prompts=2)
    assert find_drafts([long, short], "code", 4) is short
    assert find_drafts([long, few], "code", 4) is long
    assert find_drafts([long, short], "code", 6) is long
    assert find_drafts([long, short], "code", 16) is None
    assert find_drafts([long, short], "prose", 3) is None


def test_a_slow_request_has_few_tokens_a_step_or_slow_steps() -> None:
    quick = RequestDrafts(prompt_id="a", drafts=10, accepted=(10, 10, 10))
    poor = RequestDrafts(prompt_id="b", drafts=10, accepted=(0, 0, 0))
    late = RequestDrafts(prompt_id="c", drafts=10, accepted=(10, 10, 10), pace=1.5)
    requests = (quick, poor, late)
    acceptance = DraftAcceptance(kind="code", draft_length=3, requests=requests)
    assert acceptance.pace_tokens(3) == pytest.approx([1 / 4, 1, 1.5 / 4])
    assert acceptance.pace_tokens(1) == pytest.approx([1 / 2, 1, 1.5 / 2])
