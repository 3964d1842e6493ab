"""The simulated fleet does what an engine of those costs would: by hand, and by the arithmetic."""

from collections import Counter

import pytest

from slipstream.sizing.arithmetic import PoolLoad
from slipstream.sizing.demand import HOUR, Arrival, draw_requests
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.simulation import (
    Histogram,
    ReplicaFailure,
    Scaling,
    ServedRequest,
    SimulatedPool,
    Simulation,
)
from slipstream.sizing.sizing import Routing
from slipstream.steering.percentiles import Percentiles
from slipstream.steering.step_time import StepCost
from slipstream.tuning.goal import Figure
from tests.unit.sizing.pieces import make_demand, make_goal, make_speed

KINDS = ("code", "prose")


def make_plain(**changes: object) -> EngineSpeed:
    """Return an engine whose step takes 10 ms, 1 more per sequence and per prompt token."""
    return EngineSpeed.model_validate(
        {
            "source": "test",
            "drafting": None,
            "plain": StepCost(fixed=0.01, per_sequence=0.001),
            "yields": (),
            "per_prompt_token": 0.001,
            "prompt_source": "test",
            "error": 0.1,
            "max_sequences": 4,
        }
        | changes
    )


def serve(speed: EngineSpeed, *arrivals: Arrival, replicas: int = 1) -> list[ServedRequest]:
    served: list[ServedRequest] = []
    pool = SimulatedPool(speed, 0, replicas, KINDS)
    Simulation([pool], keep=served.append).run(arrivals)
    return sorted(served)


def test_a_lone_request_takes_its_prompt_and_its_steps() -> None:
    (one,) = serve(make_plain(), Arrival(5.0, "code", 20, 11))
    assert one.first_seconds == pytest.approx(0.01 + 0.001 + 0.020)
    assert one.seconds == pytest.approx(0.031 + 10 * 0.011)


def test_overhead_is_added_to_the_first_token_once() -> None:
    (one,) = serve(make_plain(overhead_seconds=0.5), Arrival(0.0, "code", 20, 11))
    assert one.first_seconds == pytest.approx(0.531)
    assert one.seconds - one.first_seconds == pytest.approx(0.11)


def test_a_prompt_waits_for_the_step_and_lengthens_the_next_for_both() -> None:
    first, second = serve(make_plain(), Arrival(0.0, "code", 20, 11), Arrival(0.035, "code", 30, 2))
    # The first one's steps end at 31, 42, ... ms: the second is read from 42 to 42 + 12 + 30 ms.
    assert second.first_seconds == pytest.approx(0.084 - 0.035)
    # One step at 11 ms, the shared one at 42, one of both at 12, then seven alone at 11.
    assert first.seconds == pytest.approx(0.031 + 0.011 + 0.042 + 0.012 + 7 * 0.011)


def test_a_long_prompt_is_read_in_chunks() -> None:
    (one,) = serve(make_plain(batched_tokens=100), Arrival(0.0, "code", 250, 1))
    # Steps that finish no prompt have no sequence of their own yet.
    assert one.first_seconds == pytest.approx(0.25 + 3 * 0.01 + 0.001)


def test_requests_beyond_the_sequences_wait_for_a_place() -> None:
    speed = make_plain(max_sequences=1)
    first, second = serve(speed, Arrival(0.0, "code", 1, 50), Arrival(0.001, "code", 1, 50))
    assert second.first_seconds > first.seconds


def test_every_request_ends_and_every_token_counts() -> None:
    arrivals = list(draw_requests(make_demand(), 200, seed=1))
    speed = make_speed()
    for length in (0, 4):
        figures = Simulation([SimulatedPool(speed, length, 25, KINDS)]).run(arrivals)
        assert figures.requests == len(arrivals)
        assert figures.tokens == sum(one.output_tokens for one in arrivals)
        assert 0 < figures.busy_share <= 1


def test_the_same_seed_gives_the_same_figures_and_another_one_others() -> None:
    arrivals = list(draw_requests(make_demand(), 100, seed=1))
    pool = SimulatedPool(make_speed(), 4, 25, KINDS)
    one, again, other = (Simulation([pool], seed=seed).run(arrivals) for seed in (7, 7, 8))
    assert one == again
    assert one != other


@pytest.mark.parametrize("length", [0, 4, 15])
def test_arithmetic_and_simulation_agree_on_one_replica(length: int) -> None:
    demand = make_demand(0.15, 0.05)
    load = PoolLoad(make_speed(), length, demand, 1)
    pool = SimulatedPool(make_speed(), length, 1, KINDS)
    figures = Simulation([pool]).run(draw_requests(demand, 12_000, seed=2))
    assert figures.mean_in_flight == pytest.approx(load.mean_sequences, rel=0.1)
    times: dict[Figure, Percentiles | None] = {"ttft": figures.ttft, "tpot": figures.tpot}
    for figure, served in times.items():
        assert served is not None
        for share, value in ((0.5, served.p50), (0.95, served.p95)):
            found = load.find_time(figure, share)
            # A request sees many batches: its mean time is less extreme than one batch's.
            assert found == pytest.approx(value, rel=0.15 if share < 0.9 else 0.35)


def test_the_emptier_of_two_keeps_replicas_more_even_than_chance() -> None:
    arrivals = [Arrival(0.001 * number, "code", 1, 200) for number in range(60)]
    pool = SimulatedPool(make_plain(max_sequences=64), 0, 20, KINDS)

    def find_slowest(routing: Routing) -> float:
        served: list[ServedRequest] = []
        Simulation([pool], routing=routing, keep=served.append).run(arrivals)
        return max(one.seconds for one in served)

    assert find_slowest("power-of-two") < 0.95 * find_slowest("random")


def test_a_failure_asks_again_what_had_no_token_and_cuts_off_the_rest() -> None:
    speed = make_plain(max_sequences=1)
    arrivals = [Arrival(0.0, "code", 1, 100), Arrival(0.01, "code", 1, 100)]
    simulation = Simulation([SimulatedPool(speed, 0, 1, KINDS)], failure=ReplicaFailure(0.2, 30.0))
    figures = simulation.run(arrivals)
    assert (figures.requests, figures.lost) == (1, 1)
    assert figures.ttft is not None
    assert figures.ttft.p50 == pytest.approx(30.2, rel=0.02)


def test_a_scaler_follows_the_load_as_fast_as_a_replica_starts() -> None:
    speed = make_speed()
    demand = make_demand(0.4, 0.4).model_copy(update={"hours": (0.1,) * 2 + (1.0,) * 2})
    slow, quick = (
        Simulation(
            [SimulatedPool(speed, 4, 1, KINDS)],
            scaling=Scaling(requests_per_replica=4, least=1, most=20, start_seconds=seconds),
        ).run(draw_requests(demand, 4 * HOUR, seed=3))
        for seconds in (1800.0, 60.0)
    )
    assert quick.most_replicas >= 4
    assert quick.machine_hours < 0.8 * 4 * quick.most_replicas
    assert slow.ttft is not None
    assert quick.ttft is not None
    assert slow.ttft.p99 > 3 * quick.ttft.p99


def test_a_pool_gets_its_own_kinds_only() -> None:
    served: dict[str, list[float]] = {"code": [], "prose": []}
    simulation = Simulation(
        [
            SimulatedPool(make_speed(), 8, 20, ("code",)),
            SimulatedPool(make_speed(), 0, 1, ("prose",)),
        ],
        keep=lambda one: served[one.kind].append(one.first_seconds),
    )
    simulation.run(draw_requests(make_demand(), 60, seed=4))
    assert max(served["code"]) < 1 < max(served["prose"])


def test_a_histogram_is_within_one_percent() -> None:
    histogram = Histogram()
    for number in range(1, 1001):
        histogram.add(number / 1000)
    assert histogram.find_quantile(0.95) == pytest.approx(0.95, rel=0.011)
    assert Histogram().find_quantile(0.5) is None


@pytest.mark.parametrize("share", [0.5, 0.97, 0.999])
def test_a_goal_is_judged_at_its_own_percentile(share: float) -> None:
    arrivals = list(draw_requests(make_demand(0.15, 0.05), 4000, seed=2))
    pool = SimulatedPool(make_speed(), 4, 1, KINDS)
    simulation = Simulation([pool])
    simulation.run(arrivals)
    reached = simulation.tpot.find_quantile(share)
    assert reached is not None
    for seconds, holds in ((0.98 * reached, False), (1.02 * reached, True)):
        goal = make_goal(f"tpot<{1000 * seconds:.6f}ms@p{100 * share:g}")
        figures = Simulation([pool], goal=goal).run(arrivals)
        assert figures.meets_goal == holds
        assert figures.reached == pytest.approx([reached])


@pytest.mark.parametrize(("begin", "end"), [(0, 1000), (200, 1000), (400, 520)])
def test_tokens_per_second_are_those_of_the_time_that_counts(begin: float, end: float) -> None:
    demand = make_demand(2.0, 0.0, prompt=100, answer=100)
    pool = SimulatedPool(make_plain(max_sequences=64, per_prompt_token=1e-4), 0, 2, ("code",))
    simulation = Simulation([pool], begin=begin, end=end)
    figures = simulation.run(draw_requests(demand, 1000, seed=0))
    assert figures.seconds == pytest.approx(end - begin, abs=5)
    assert figures.tokens_per_second == pytest.approx(demand.tokens_per_second, rel=0.1)


def test_every_hour_of_a_day_gets_its_share_of_the_busiest() -> None:
    hours = (0.1,) * 11 + (1.0,) + (0.1,) * 12
    demand = make_demand(0.5, 0.5).model_copy(update={"hours": hours})
    counts = Counter(int(one.at // HOUR) for one in draw_requests(demand, 24 * HOUR, seed=0))
    for hour, share in enumerate(hours):
        assert counts[hour] == pytest.approx(3600 * share, rel=0.17 if share < 1 else 0.05)
