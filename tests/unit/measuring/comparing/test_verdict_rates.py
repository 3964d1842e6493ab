"""How often a verdict errs, on servers that are made up; `pytest -s` shows the rates.

`SLIPSTREAM_SIMULATED_RUNS=400` makes the figures of docs/comparing-errors.md again.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from slipstream.measuring.comparing.blocks import Block, read_blocks
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.statistics import find_quantile
from slipstream.measuring.comparing.verdict import Verdict
from tests.unit.measuring.comparing.simulated_server import Server, measure

MANY = int(os.environ.get("SLIPSTREAM_SIMULATED_RUNS", "0"))
DRAWS = 400 if MANY else 200

SERVER = Server(kinds=("chat", "code"), concurrencies=(1, 8), prompts=10)
WILD = replace(SERVER, last_noise=0.05)
CROWD = replace(WILD, kinds=tuple("abcdef"), concurrencies=(1, 4, 16), start_noise=0.01)
CALM = replace(SERVER, start_noise=0.003, drift=0.003)


def run(server: Server, runs: int, orders: Sequence[str]) -> Iterator[Verdict]:
    for seed in range(MANY or runs):
        yield judge(measure(server, seed, *orders), arms=("A", "B"), seed=seed, draws=DRAWS)


def tell(*words: object) -> None:
    sys.stdout.write(f"\n{' '.join(map(str, words))}")


def has_difference(verdict: Verdict) -> bool:
    return any(found.outcome in ("faster", "slower") for found in verdict.findings)


@pytest.mark.parametrize(
    ("server", "runs", "orders"),
    [
        pytest.param(SERVER, 100, ["ABBA"], id="one round"),
        pytest.param(SERVER, 30, ["ABBA"] * 2, id="two rounds"),
        pytest.param(SERVER, 20, ["ABBA", "AAAA"], id="one round and a control"),
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
        for _ in range(DRAWS):
            a, b = chance.choices((0, 3), k=2), chance.choices((1, 2), k=2)
            again = chance.choices(rows, k=len(rows))
            drawn.append(sum(row[b[0]] + row[b[1]] - row[a[0]] - row[a[1]] for row in again))
        if find_quantile(drawn, 0.025) > 0 or find_quantile(drawn, 0.975) < 0:
            return True
    return False


def test_the_made_up_servers_would_fool_a_plain_bootstrap() -> None:
    runs = range(MANY or 30)
    fooled = fmean(is_fooled(measure(SERVER, seed, "ABBA"), Random(seed)) for seed in runs)
    tell(f"a plain bootstrap tells identical arms apart in {fooled:.1%}")
    assert fooled > 0.1


@pytest.mark.parametrize(
    ("speed_up", "rounds", "least"),
    [(1.05, 1, 0), (1.2, 1, 0.6), (2.0, 1, 1), (1.05, 3, 0.05), (1.2, 3, 0.95), (2.0, 3, 1)],
)
def test_a_true_speed_up_is_found_and_the_intervals_hold_it(
    speed_up: float, rounds: int, least: float
) -> None:
    server = replace(SERVER, speed_up=lambda kind, concurrency: speed_up)
    verdicts = list(run(server, 16, ["ABBA"] * rounds))
    findings = [found for verdict in verdicts for found in verdict.findings]
    overall = fmean(found.outcome == "faster" for found in findings if found.kind is None)
    apart = fmean(found.outcome == "faster" for found in findings if found.kind is not None)
    held = fmean(found.speed_up.low <= speed_up <= found.speed_up.high for found in findings)
    together = fmean(
        all(found.speed_up.low <= speed_up <= found.speed_up.high for found in verdict.findings)
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
    found = [verdict.break_evens[0] for verdict in run(server, 20, ["ABBA"] * 2)]
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
