"""A demand is sized: fewer replicas with drafts, more for tighter goals, one that fails."""

from functools import cache

import pytest

from slipstream.errors import UsageError
from slipstream.sizing.arithmetic import PoolLoad, count_replicas
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.sizer import Sizer
from slipstream.sizing.sizing import MachinePrice, SizeOption, Sizing, parse_price
from slipstream.tuning.goal import Goal
from tests.unit.sizing.pieces import make_demand, make_goal, make_speed

GOAL = make_goal("ttft<2s@p95", "tpot<100ms@p95")


@cache
def size(
    speed: EngineSpeed | None = None,
    goal: Goal = GOAL,
    *,
    simulate: bool = False,
    price: MachinePrice | None = None,
    share: float = 1.0,
) -> Sizing:
    demand = make_demand().grow(share)
    sizer = Sizer(demand, goal, speed or make_speed(), price=price or MachinePrice())
    return sizer.size(simulate=simulate)


def find_best(sizing: Sizing) -> SizeOption:
    assert sizing.best is not None
    return sizing.best


def test_drafts_take_fewer_replicas_and_the_count_is_the_border() -> None:
    sizing = size()
    best = find_best(sizing)
    assert best.style != "plain"
    (plain,) = (one for one in sizing.options if one.style == "plain")
    assert plain.replicas > 1.5 * best.replicas
    drafted = next(one for one in sizing.options if one.style == "drafted")
    length = drafted.pools[0].draft_length
    for replicas, holds in ((drafted.replicas, True), (drafted.replicas - 1, False)):
        assert PoolLoad(make_speed(), length, make_demand(), replicas).meets(GOAL) == holds


def test_no_other_draft_length_needs_fewer() -> None:
    drafted = next(one for one in size().options if one.style == "drafted")
    speed = make_speed()
    for length in range(1, 16):
        fewer = count_replicas(speed, length, make_demand(), GOAL, fewer_than=drafted.replicas)
        assert fewer is None


def test_an_uncertain_speed_widens_the_interval() -> None:
    narrow, wide = (size(make_speed(error=error)).options for error in (0.02, 0.3))
    one, other = (next(o for o in options if o.style == "drafted") for options in (narrow, wide))
    assert other.low < one.low <= one.replicas
    assert one.high is not None
    assert other.high is None or other.high > one.high >= one.replicas


def test_a_goal_below_one_step_is_held_by_no_number_of_replicas() -> None:
    sizing = size(goal=make_goal("tpot<1ms@p95"))
    assert sizing.best is None
    assert len(sizing.missed) == 2


def test_throughput_alone_fills_replicas_further_than_a_limit_does() -> None:
    full, limited = find_best(size(goal=make_goal("throughput"))), find_best(size())
    assert full.replicas <= limited.replicas
    assert full.pools[0].busy_share < 0.85


def test_the_simulation_corrects_the_count_and_fails_a_replica() -> None:
    sizing = size(make_speed(start_seconds=120.0), simulate=True, share=0.15)
    best = find_best(sizing)
    assert best.meets_goal
    assert best.simulated is not None
    assert (best.simulated.reached[0] or 9) <= 2
    assert best.replicas == pytest.approx(find_best(size(share=0.15)).replicas, rel=0.25)
    assert sizing.outage is not None
    assert sizing.outage.figures.lost > 0
    assert sizing.outage.spares >= 1
    assert sizing.outage.with_spares.meets_goal


def test_a_million_tokens_cost_what_the_machines_do() -> None:
    best = find_best(size(price=parse_price("2")))
    assert best.cost_per_million == pytest.approx(best.replicas * 2.0 / (10 * 400 * 3600) * 1e6)


def test_a_kind_without_acceptance_is_sized_plain_and_said_so() -> None:
    demand = make_demand()
    kinds = (*demand.kinds[:1], demand.kinds[1].model_copy(update={"kind": "poems"}))
    sizer = Sizer(
        demand.model_copy(update={"kinds": kinds}), GOAL, make_speed(), price=MachinePrice()
    )
    sizing = sizer.size(simulate=False)
    assert [option.style for option in sizing.options] == ["plain"]
    assert any("poems" in caution for caution in sizing.cautions)


def test_pools_of_one_fleet_are_corrected_where_they_are_busiest() -> None:
    speed = make_speed(per_prompt_token=0.002)
    goal = make_goal("ttft<3s@p95")
    demand = make_demand(1.0, 0.05)
    sizing = Sizer(demand, goal, speed, price=MachinePrice()).size()
    mixed = next(one for one in sizing.options if one.style == "mixed")
    by_kind = {pool.kinds[0]: pool.replicas for pool in mixed.pools}
    assert by_kind["prose"] <= 2 < by_kind["code"]


def test_the_record_has_the_arithmetic_that_the_report_shows() -> None:
    sizing = size()
    assert Sizing.model_validate_json(sizing.to_json()) == sizing
    (pool,) = find_best(sizing).pools
    load = PoolLoad(make_speed(), pool.draft_length, make_demand(), pool.replicas)
    assert (pool.arrivals, pool.steps) == (load.arrivals, load.steps)
    assert pool.step_seconds == load.step(pool.mean_batch)
    by_count = {one.replicas: one.seconds for one in sizing.by_count}
    assert min(by_count) < pool.replicas < max(by_count)
    for (first, token), enough in (
        (by_count[pool.replicas], True),
        (by_count[min(by_count)], False),
    ):
        assert (first is not None and first <= 2 and token is not None and token <= 0.1) == enough


@pytest.mark.parametrize(
    ("text", "hourly", "currency"),
    [
        ("0.5", 0.5, ""),
        (" 2.25 EUR ", 2.25, "EUR"),
        ("3$", 3.0, "$"),
        ("4383/0.5y", 1.0, ""),
        ("4383CHF / 0.5y + 200W * 0.25", 1.05, "CHF"),
        ("1EUR+500w*.2", 1.1, "EUR"),
    ],
)
def test_a_price_is_by_the_hour_or_over_years_with_its_power(
    text: str, hourly: float, currency: str
) -> None:
    price = parse_price(text)
    assert price.hourly == pytest.approx(hourly)
    assert price.currency == currency
    assert price.per_million(10, 2e6) == pytest.approx(5 * hourly)
    assert MachinePrice().per_million(10, 2e6) is None


@pytest.mark.parametrize(
    "text", ["", "EUR", "0", "-1", "5/y", "5/0y", "5+200W", "5*2", "1e400", "nan"]
)
def test_half_of_a_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_price(text)
