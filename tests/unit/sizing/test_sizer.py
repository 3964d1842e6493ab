"""A demand is sized: fewer replicas with drafts, more for tighter goals, one that fails."""

from functools import cache

import pytest

from slipstream.sizing.arithmetic import PoolLoad, count_replicas
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.money import MachinePrice
from slipstream.sizing.service_goal import ServiceGoal, parse_service_goal
from slipstream.sizing.sizer import Sizer
from slipstream.sizing.sizing import Sizing
from tests.unit.sizing.pieces import make_demand, make_speed

GOAL = parse_service_goal(["ttft<2s@p95", "tpot<100ms@p95"])


@cache
def size(
    speed: EngineSpeed | None = None,
    goal: ServiceGoal = GOAL,
    *,
    simulate: bool = False,
    price: MachinePrice | None = None,
    share: float = 1.0,
) -> Sizing:
    demand = make_demand().grow(share)
    sizer = Sizer(demand, goal, speed or make_speed(), price=price or MachinePrice())
    return sizer.size(simulate=simulate)


def test_drafts_take_fewer_replicas_and_the_count_is_the_border() -> None:
    sizing = size()
    best = sizing.best
    assert best is not None
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
    sizing = size(goal=parse_service_goal(["tpot<1ms@p95"]))
    assert sizing.best is None
    assert len(sizing.missed) == 2


def test_throughput_alone_fills_replicas_further_than_a_limit_does() -> None:
    full, limited = size(goal=ServiceGoal()).best, size().best
    assert full is not None
    assert limited is not None
    assert full.replicas <= limited.replicas
    assert full.pools[0].busy_share < 0.85


def test_the_simulation_corrects_the_count_and_fails_a_replica() -> None:
    sizing = size(make_speed(start_seconds=120.0), simulate=True, share=0.15)
    best = sizing.best
    assert best is not None
    assert best.holds
    assert best.simulated is not None
    assert best.simulated.ttft.p95 is not None
    assert best.simulated.ttft.p95 <= 2
    computed = size(share=0.15).best
    assert computed is not None
    assert best.replicas == pytest.approx(computed.replicas, rel=0.25)
    assert sizing.outage is not None
    assert sizing.outage.figures.lost > 0
    assert sizing.outage.spares >= 1
    assert sizing.outage.spares_hold


def test_a_million_tokens_cost_what_the_machines_do() -> None:
    sizing = size(price=MachinePrice(per_hour=2.0))
    assert sizing.best is not None
    expected = sizing.best.replicas * 2.0 / (10 * 400 * 3600) * 1e6
    assert sizing.best.cost_per_million == pytest.approx(expected)


def test_a_kind_without_acceptance_is_sized_plain_and_said_so() -> None:
    demand = make_demand()
    kinds = (*demand.kinds[:1], demand.kinds[1].model_copy(update={"kind": "poems"}))
    sizer = Sizer(
        demand.model_copy(update={"kinds": kinds}), GOAL, make_speed(), price=MachinePrice()
    )
    sizing = sizer.size(simulate=False)
    assert [option.style for option in sizing.options] == ["plain"]
    assert any("poems" in caution for caution in sizing.cautions)


def test_a_sizing_is_read_back_as_it_was_written() -> None:
    sizing = size()
    assert Sizing.model_validate_json(sizing.to_json()) == sizing


def test_pools_of_one_fleet_are_corrected_where_they_are_busiest() -> None:
    speed = make_speed(by_prompt_token=0.002)
    goal = parse_service_goal(["ttft<3s@p95"])
    demand = make_demand(1.0, 0.05)
    sizing = Sizer(demand, goal, speed, price=MachinePrice()).size()
    mixed = next(one for one in sizing.options if one.style == "mixed")
    by_kind = {pool.kinds[0]: pool.replicas for pool in mixed.pools}
    assert by_kind["prose"] <= 2 < by_kind["code"]
