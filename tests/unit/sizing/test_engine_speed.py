"""A replica's speed: tokens of a step, steps of an answer, where drafts stop paying."""

from random import Random
from statistics import fmean

import pytest

from slipstream.errors import InvalidInputError
from slipstream.sizing.engine_speed import DraftYield, make_geometric, make_yield
from slipstream.steering.drafts import Drafts
from tests.unit.sizing.pieces import make_speed


def draw_exactly(drafts: DraftYield, tokens: int, random: Random) -> int:
    """Draw the steps of an answer draft by draft."""
    steps = 0
    while tokens > 0:
        tokens -= 1
        steps += 1
        for before, here in zip((1.0, *drafts.by_position), drafts.by_position, strict=False):
            if tokens == 0 or random.random() > here / before:
                break
            tokens -= 1
    return steps


@pytest.mark.parametrize(("mean", "length"), [(2.63, 3), (2.63, 15), (5.67, 7)])
def test_steps_are_drawn_as_often_as_draft_by_draft(mean: float, length: int) -> None:
    drafts = DraftYield(
        kind="code", draft_length=length, by_position=make_geometric(mean, 15)[:length]
    )
    exact, quick = Random(1), Random(2)
    counted = sorted(draw_exactly(drafts, 127, exact) for _ in range(1000))
    drawn = sorted(drafts.draw_steps(127, quick) for _ in range(1000))
    assert fmean(drawn) == pytest.approx(fmean(counted), rel=0.02)
    assert drawn[950] == pytest.approx(counted[950], rel=0.05)


def test_an_answer_never_takes_more_steps_than_tokens_nor_fewer_than_whole_drafts() -> None:
    drafts = DraftYield(kind="code", draft_length=3, by_position=(0.5, 0.4, 0.3))
    random = Random(0)
    for tokens in (0, 1, 2, 5, 40):
        for _ in range(200):
            assert -(-tokens // 4) <= drafts.draw_steps(tokens, random) <= tokens


def test_requests_of_a_kind_differ_by_their_factors() -> None:
    alike = DraftYield(kind="code", draft_length=7, by_position=make_geometric(3.0, 7))
    apart = alike.model_copy(update={"factors": (0.6, 1.4)})
    spreads = []
    for drafts in (alike, apart):
        random = Random(3)
        steps = sorted(drafts.draw_steps(400, random) for _ in range(1000))
        spreads.append(steps[900] / steps[100])
    assert spreads[1] > 1.5 * spreads[0]


@pytest.mark.parametrize("mean", [1.0, 1.7, 5.67, 15.9])
def test_geometric_positions_have_the_mean_asked_for(mean: float) -> None:
    assert 1 + sum(make_geometric(mean, 15)) == pytest.approx(mean, abs=1e-6)


def test_positions_are_scaled_to_the_mean_that_is_known() -> None:
    drafts = make_yield("code", 2, [Drafts(drafts=100, accepted=(50, 25, 9))], 1.9)
    assert drafts.tokens_per_step == pytest.approx(1.9)
    assert len(drafts.by_position) == 2


def accept(drafts: int, tokens_per_step: float, length: int = 7) -> Drafts:
    """Return so many drafts with this mean, as evenly as counts allow."""
    shares = make_geometric(tokens_per_step, length)
    return Drafts(drafts=drafts, accepted=tuple(round(drafts * share) for share in shares))


def test_requests_differ_no_more_than_chance_leaves_over() -> None:
    few = make_yield("code", 2, [accept(8, rate, 2) for rate in (1.6, 1.9, 1.75)])
    many = make_yield("code", 2, [accept(900, rate, 2) for rate in (1.4, 2.1, 1.75)])
    assert max(few.factors) - min(few.factors) < 0.02
    assert max(many.factors) - min(many.factors) > 0.35


@pytest.mark.parametrize("rates", [(1.5, 3.0, 4.5), (2.9, 3.1), (1.2, 6.0), (2.0,)])
def test_drawn_requests_take_as_many_steps_as_those_they_were_made_of(
    rates: tuple[float, ...],
) -> None:
    """Answers of 4,000 tokens each: a mean of steps is a harmonic mean of tokens per step."""
    tokens = 4000
    requests = [accept(round(tokens / rate), rate) for rate in rates for _ in range(20)]
    drafts, random = make_yield("code", 7, requests), Random(1)
    drawn = fmean(drafts.draw_steps(tokens, random) for _ in range(4000))
    assert drawn == pytest.approx(fmean(one.drafts for one in requests), rel=0.01)


def test_drafts_stop_paying_at_the_batch_of_the_published_rates() -> None:
    """Break-even B = a (E - 1) / (b (k + 1 - E)): 45 for code and 12 for prose at k = 15."""
    speed = make_speed()
    assert speed.find_break_even("code", 15) == pytest.approx(45, abs=1)
    assert speed.find_break_even("prose", 15) == pytest.approx(12, abs=1)
    at = speed.find_break_even("prose", 15)
    assert at is not None
    drafted, plain = speed.find_cost(15).predict(at, 15), speed.find_cost(0).predict(at, 0)
    assert drafted / speed.count_tokens_per_step("prose", 15) == pytest.approx(plain)


def test_a_kind_without_acceptance_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidInputError, match="no acceptance for poems") as caught:
        make_speed().find_yield("poems", 3)
    assert "code, prose" in caught.value.hint
