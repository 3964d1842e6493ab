"""How often an arena errs, on servers that are made up; `pytest -s` shows the rates.

`SLIPSTREAM_SIMULATED_RUNS=400` makes the figures of docs/comparing-errors.md again.
"""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import pytest

from slipstream.measuring.comparing.design import LETTERS, list_rounds
from slipstream.measuring.comparing.ranking import rank
from slipstream.measuring.comparing.verdict import ArenaVerdict, Place
from tests.unit.measuring.comparing.simulated_server import Server, SpeedUp
from tests.unit.measuring.comparing.simulated_server import measure as simulate
from tests.unit.measuring.comparing.test_verdict_rates import (
    CALM,
    CROWD,
    DRAWS,
    MANY,
    SERVER,
    WILD,
    tell,
)

UNSTEADY = replace(SERVER, unsteady="C")
STEPS = {"A": 1.0, "B": 1.5, "C": 1.3, "D": 1.0, "E": 0.8}


def run(server: Server, runs: int, arms: int, rounds: int) -> Iterator[ArenaVerdict]:
    for seed in range(MANY or runs):
        blocks = simulate(server, seed, *list_rounds(arms, rounds))
        yield rank(blocks, arms=LETTERS[:arms], seed=seed, draws=DRAWS)


def has_difference(verdict: ArenaVerdict) -> bool:
    return any(
        found.outcome in ("faster", "slower") for pair in verdict.pairs for found in pair.findings
    )


@pytest.mark.parametrize(
    ("server", "arms", "rounds", "runs"),
    [
        pytest.param(SERVER, 3, 1, 10, id="three arms, one round"),
        pytest.param(SERVER, 3, 2, 6, id="three arms, two rounds"),
        pytest.param(SERVER, 5, 1, 6, id="five arms, one round"),
        pytest.param(SERVER, 5, 2, 4, id="five arms, two rounds"),
        pytest.param(WILD, 3, 1, 6, id="three arms, restarts that hit one concurrency"),
        pytest.param(WILD, 5, 1, 6, id="five arms, restarts that hit one concurrency"),
        pytest.param(CALM, 5, 1, 4, id="five arms, calm"),
        pytest.param(UNSTEADY, 3, 2, 6, id="three arms, one unsteady"),
        pytest.param(UNSTEADY, 5, 2, 4, id="five arms, one unsteady"),
        pytest.param(CROWD, 5, 3, 1, id="five arms, six kinds"),
    ],
)
def test_equal_arms_have_a_false_winner_in_at_most_one_of_twenty_runs(
    server: Server, arms: int, rounds: int, runs: int, request: pytest.FixtureRequest
) -> None:
    verdicts = list(run(server, runs, arms, rounds))
    apart = sum(map(has_difference, verdicts))
    won = sum(any(place.winner for place in verdict.places) for verdict in verdicts)
    rates = f"told apart in {apart / len(verdicts):.1%}, a winner in {won / len(verdicts):.1%}"
    tell(f"{request.node.callspec.id}: {len(verdicts)} runs, {rates}")
    assert won <= apart <= max(1, 0.05 * len(verdicts))


def always(speed_up: float) -> SpeedUp:
    return lambda kind, concurrency: speed_up


def is_right(place: Place) -> bool:
    """Return whether the truly fastest arm is among those that may be."""
    return "B" in place.contenders


@pytest.mark.parametrize(("arms", "rounds", "least"), [(3, 1, 0), (3, 3, 0.4), (5, 3, 0.2)])
def test_the_fastest_arm_is_found_and_never_ruled_out(arms: int, rounds: int, least: float) -> None:
    server = replace(
        SERVER,
        speed_up=always(STEPS["B"]),
        others={arm: always(STEPS[arm]) for arm in "CDE"},
    )
    verdicts = list(run(server, 4, arms, rounds))
    places = [place for verdict in verdicts for place in verdict.places]
    found = fmean(place.winner == "B" for place in places if place.kind is not None)
    overall = fmean(place.winner == "B" for place in places if place.kind is None)
    kept = fmean(all(map(is_right, verdict.places)) for verdict in verdicts)
    missed = sum(
        not all(
            found.speed_up.low <= STEPS[pair.arms[1]] / STEPS[pair.arms[0]] <= found.speed_up.high
            for pair in verdict.pairs
            for found in pair.findings
        )
        for verdict in verdicts
    )
    tell(f"{arms} arms, {rounds} rounds: found for a kind in {found:.0%}, over all {overall:.0%};")
    tell(f"  never ruled out in {kept:.1%}, {missed} of {len(verdicts)} runs miss a true ratio")
    assert overall >= least
    assert kept >= 0.95
    assert missed <= max(1, 0.05 * len(verdicts))
