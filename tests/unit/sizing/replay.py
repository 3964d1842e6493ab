"""Loads that a real engine served once, and the same loads simulated.

`experiments/check-sizing` recorded them. A line of the file is a load: when each request came, what
its client measured, and its line in the ledger.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from slipstream.sizing.demand import Arrival
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.measured_speed import take_ledger
from slipstream.sizing.simulation import ServedRequest, SimulatedPool, Simulation
from slipstream.steering.ledger import LedgerLine

SEEDS = 20
SHARES = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A load that was served; requests come in the order of `at`."""

    load: str
    fits: bool
    replicas: int
    tokens_per_second: float
    at: list[float]
    ttft: list[float]
    tpot: list[float]
    lines: list[LedgerLine]


@dataclass(frozen=True, slots=True)
class Row:
    """A figure of a load, measured and simulated."""

    arm: str
    load: str
    fitted: bool
    figure: str
    real: float
    simulated: float

    @property
    def off(self) -> float:
        return self.simulated / self.real - 1


def read_recorded(file: Path) -> list[Recorded]:
    """Read the loads of an arm."""
    found = []
    for line in file.read_text().splitlines():
        load = json.loads(line)
        lines = [LedgerLine.model_validate(one) for one in load.pop("lines")]
        found.append(Recorded(**load, lines=lines))
    return found


def compare(folder: Path, arm: str, *, users: int) -> list[Row]:
    """Fit on the loads that fit, simulate all of them, and return the figures of both."""
    loads = read_recorded(folder / f"{arm}.jsonl")
    fitted = [load for load in loads if load.fits]
    speed = take_ledger([line for load in fitted for line in load.lines], arm)
    lone = [value for load in fitted for value in find_overhead(load)]
    speed = speed.model_copy(
        update={"overhead_seconds": max(0.0, median(lone)), "max_sequences": users}
    )
    length = 0 if arm == "plain" else max(speed.lengths)
    return [
        Row(arm, load.load, load.fits, figure, real, simulated)
        for load in loads
        for figure, real, simulated in list_figures(load, simulate(speed, length, load))
    ]


def find_overhead(load: Recorded) -> list[float]:
    """List what a first token took outside of the core, of requests that met an idle engine."""
    found, busy_until = [], 0.0
    for at, ttft, line in zip(load.at, load.ttft, load.lines, strict=True):
        if at > busy_until:
            found.append(ttft - (line.first_seconds or 0.0))
        busy_until = max(busy_until, at + ttft + line.seconds)
    return found


def simulate(speed: EngineSpeed, length: int, load: Recorded) -> list[list[ServedRequest]]:
    """Simulate the recorded arrivals, once for every seed."""
    known = {one.kind for one in speed.yields} or {line.kind for line in load.lines}
    usual = max(known, key=lambda kind: sum(line.kind == kind for line in load.lines))
    arrivals = [
        Arrival(at, line.kind if line.kind in known else usual, line.uncached_tokens, line.tokens)
        for at, line in zip(load.at, load.lines, strict=True)
    ]
    runs = []
    for seed in range(SEEDS):
        served: list[ServedRequest] = []
        pool = SimulatedPool(speed, length, load.replicas, tuple(sorted(known)))
        Simulation([pool], seed=seed, keep=served.append).run(arrivals)
        runs.append(served)
    return runs


def list_figures(
    real: Recorded, runs: Sequence[Sequence[ServedRequest]]
) -> Iterator[tuple[str, float, float]]:
    for share in SHARES:
        for name, figure, measured in (
            ("ttft", find_ttft, real.ttft),
            ("tpot", find_tpot, real.tpot),
        ):
            found = [np.quantile([figure(one) for one in run], share) for run in runs]
            shown = f"{name} p{100 * share:.0f}"
            yield shown, float(np.quantile(measured, share)), float(np.median(found))
    rates = [
        sum(one.tokens for one in run) / max(one.arrived + one.seconds for one in run)
        for run in runs
    ]
    yield "tokens/s", real.tokens_per_second, median(rates)


def find_ttft(one: ServedRequest) -> float:
    return one.first_seconds


def find_tpot(one: ServedRequest) -> float:
    return (one.seconds - one.first_seconds) / (one.tokens - 1)


def rank_arms(rows: Sequence[Row]) -> tuple[int, int, int]:
    """Count where plain and drafted come in the engine's order, where not, and what is noise."""
    by_name = {(row.arm, row.load, row.figure): row for row in rows}
    counts = {"right": 0, "wrong": 0, "noise": 0}
    for row in rows:
        other = by_name.get(("drafted", row.load, row.figure))
        if row.arm != "plain" or other is None:
            continue
        floor = max(find_noise(by_name, arm, row.figure) for arm in ("plain", "drafted"))
        by_engine, by_model = row.real / other.real, row.simulated / other.simulated
        is_noise = abs(by_engine - 1) <= floor
        same = (by_engine > 1) == (by_model > 1)
        counts["noise" if is_noise else "right" if same else "wrong"] += 1
    return counts["right"], counts["wrong"], counts["noise"]


def find_noise(rows: dict[tuple[str, str, str], Row], arm: str, figure: str) -> float:
    """Return by how much the same load differs, measured twice."""
    return abs(rows[arm, "middle", figure].real / rows[arm, "middle again", figure].real - 1)
