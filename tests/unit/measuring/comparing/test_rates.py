"""How often verdicts err, on servers that are made up; `pytest -s` shows the rates.

`SLIPSTREAM_SIMULATED_RUNS=400` makes the figures of docs/measurements.md again.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean, quantiles

import pytest

from slipstream.measuring.comparing.blocks import Block, read_blocks
from slipstream.measuring.comparing.design import LETTERS, list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.verdict import SpeedFinding, Verdict
from tests.unit.measuring.comparing.simulated_server import Server, SpeedUp, measure

MANY = int(os.environ.get("SLIPSTREAM_SIMULATED_RUNS", "0"))
DRAWS = 1000 if MANY else 400

SERVER = Server(kinds=("chat", "code"), concurrencies=(1, 8), prompts=10)
WILD = replace(SERVER, last_noise=0.05)
CROWD = replace(WILD, kinds=tuple("abcdef"), concurrencies=(1, 4, 16), start_noise=0.01)
CALM = replace(SERVER, start_noise=0.003, drift=0.003)


UNSTEADY = replace(SERVER, unsteady="C")
STEPS = {"A": 1.0, "B": 1.5, "C": 1.3, "D": 1.0, "E": 0.8}


def run(server: Server, runs: int, orders: Sequence[str], arms: str = "AB") -> Iterator[Verdict]:
    for seed in range(MANY or runs):
        yield judge(measure(server, seed, *orders), arms=arms, seed=seed, draws=DRAWS)


def tell(*words: object) -> None:
    sys.stdout.write(f"\n{' '.join(map(str, words))}")


def list_findings(*verdicts: Verdict) -> list[SpeedFinding]:
    return [found for one in verdicts for pair in one.pairs for found in pair.findings]


def has_difference(verdict: Verdict) -> bool:
    return any(found.outcome in ("faster", "slower") for found in list_findings(verdict))


@pytest.mark.parametrize(
    ("server", "runs", "orders"),
    [
        pytest.param(SERVER, 100, ["ABBA"], id="one round"),
        pytest.param(SERVER, 30, ["ABBA"] * 2, id="two rounds"),
        pytest.param(WILD, 30, ["ABBA"], id="restarts that hit one concurrency"),
        pytest.param(CROWD, 6, ["ABBA"] * 3, id="six kinds"),
        pytest.param(CALM, 20, ["ABBA"], id="calm"),
    ],
)
def test_identical_arms_are_told_apart_in_at_most_one_of_twenty_runs(
    server: Server, runs: int, orders: list[str]
) -> None:
    told = [has_difference(verdict) for verdict in run(server, runs, orders)]
    tell(f"identical arms, {' '.join(orders)}: {len(told)} runs, told apart in {fmean(told):.1%}")
    assert fmean(told) <= 0.05


def is_fooled(blocks: list[Block], chance: Random) -> bool:
    """Return whether a plain bootstrap of starts and prompts finds a difference in some cell."""
    for prompts in read_blocks(blocks).speeds.values():
        rows, drawn = list(prompts.values()), list[float]()
        for _ in range(400):
            a, b = chance.choices((0, 3), k=2), chance.choices((1, 2), k=2)
            again = chance.choices(rows, k=len(rows))
            drawn.append(sum(row[b[0]] + row[b[1]] - row[a[0]] - row[a[1]] for row in again))
        low, *_, high = quantiles(drawn, n=40)
        if low > 0 or high < 0:
            return True
    return False


def test_the_made_up_servers_would_fool_a_plain_bootstrap() -> None:
    runs = range(MANY or 30)
    fooled = fmean(is_fooled(measure(SERVER, seed, "ABBA"), Random(seed)) for seed in runs)
    tell(f"a plain bootstrap tells identical arms apart in {fooled:.1%}")
    assert fooled > 0.1


@pytest.mark.parametrize(
    ("speed_up", "rounds", "least"),
    [(1.05, 1, 0), (1.2, 1, 0.8), (2.0, 1, 1), (1.2, 2, 0.95), (1.05, 3, 0.05), (1.2, 3, 0.95)],
)
def test_a_true_speed_up_is_found_and_the_intervals_hold_it(
    speed_up: float, rounds: int, least: float
) -> None:
    server = replace(SERVER, speed_up=lambda kind, concurrency: speed_up)
    verdicts = list(run(server, 40, ["ABBA"] * rounds))
    findings = list_findings(*verdicts)
    overall = fmean(found.outcome == "faster" for found in findings if found.kind is None)
    apart = fmean(found.outcome == "faster" for found in findings if found.kind is not None)
    held = fmean(found.speed_up.low <= speed_up <= found.speed_up.high for found in findings)
    together = fmean(
        all(
            found.speed_up.low <= speed_up <= found.speed_up.high
            for found in list_findings(verdict)
        )
        for verdict in verdicts
    )
    half = fmean(found.speed_up.high / found.speed_up.ratio - 1 for found in findings)
    tell(f"true {speed_up}, {rounds} rounds: found in {overall:.0%}, of single kinds {apart:.0%};")
    tell(f"  intervals hold it {held:.1%}, all at once {together:.1%}; half-width {half:.1%}")
    assert overall >= least
    assert fmean(found.outcome == "slower" for found in findings) <= 0.01
    assert held >= 0.95
    assert together >= 0.9


def test_the_break_even_is_found_and_its_interval_holds_it() -> None:
    server = replace(
        SERVER,
        kinds=("chat",),
        concurrencies=(1, 2, 4, 8, 16),
        speed_up=lambda kind, concurrency: 1.6 * concurrency**-0.25,
    )
    true = 1.6**4
    found = [verdict.pairs[0].break_evens[0] for verdict in run(server, 20, ["ABBA"] * 2)]
    held = fmean((one.low or 0) <= true <= (one.high or 16) for one in found)
    middle = sorted(one.concurrency or 16 for one in found)[len(found) // 2]
    tell(
        f"break-even at {true:.1f}: found {middle:.1f} in the middle; intervals hold it {held:.0%}"
    )
    assert middle == pytest.approx(true, rel=0.15)
    assert held >= 0.88


def test_kinds_that_differ_are_told_apart() -> None:
    gains = {"code": 2.2, "chat": 1.5, "prose": 0.7}
    server = replace(
        SERVER, kinds=tuple(sorted(gains)), speed_up=lambda kind, concurrency: gains[kind]
    )
    verdicts = list(run(server, 8, ["ABBA"] * 2))
    right = [
        verdict.answer == "use for some"
        and verdict.sentence.startswith("Use B instead of A for chat and code (")
        and ", but not for prose (0." in verdict.sentence
        for verdict in verdicts
    ]
    tell(f"kinds told apart in {fmean(right):.0%}: {verdicts[0].sentence}\n")
    assert fmean(right) >= 0.75


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
    verdicts = list(run(server, runs, list_rounds(arms, rounds), LETTERS[:arms]))
    apart = sum(map(has_difference, verdicts))
    won = sum(any(place.winner for place in verdict.places) for verdict in verdicts)
    rates = f"told apart in {apart / len(verdicts):.1%}, a winner in {won / len(verdicts):.1%}"
    tell(f"{request.node.callspec.id}: {len(verdicts)} runs, {rates}")
    assert won <= apart <= max(1, 0.05 * len(verdicts))


def always(speed_up: float) -> SpeedUp:
    return lambda kind, concurrency: speed_up


@pytest.mark.parametrize(("arms", "rounds", "least"), [(3, 1, 0), (3, 3, 0.4), (5, 3, 0.2)])
def test_the_fastest_arm_is_found_and_never_ruled_out(arms: int, rounds: int, least: float) -> None:
    server = replace(
        SERVER,
        speed_up=always(STEPS["B"]),
        others={arm: always(STEPS[arm]) for arm in "CDE"},
    )
    verdicts = list(run(server, 8, list_rounds(arms, rounds), LETTERS[:arms]))
    places = [place for verdict in verdicts for place in verdict.places]
    found = fmean(place.winner == "B" for place in places if place.kind is not None)
    overall = fmean(place.winner == "B" for place in places if place.kind is None)
    kept = fmean(all("B" in place.contenders for place in verdict.places) for verdict in verdicts)
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
