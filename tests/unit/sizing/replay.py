"""Loads that a real engine served once, and the same loads simulated.

`experiments/check-sizing` records them: the ledger's lines, and what the clients measured.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from slipstream.measuring.client.completions import Request
from slipstream.measuring.workloads import load_workload
from slipstream.sizing.demand import Arrival
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.ledger_speed import take_ledger
from slipstream.sizing.simulation import ServedRequest, SimulatedPool, Simulation
from slipstream.steering.ledger import LedgerLine

SEEDS = 20
ANSWER_TOKENS = (8, 32)
PROMPT_CHARACTERS = (30, 160)
SHARES = (0.5, 0.95)


@dataclass(frozen=True, slots=True)
class Load:
    """Arrivals at a rate for some seconds; a bursty one comes in groups of about four."""

    name: str
    rate: float
    fits: bool = False
    bursty: bool = False
    replicas: int = 1
    seed: int = 0


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


@dataclass(frozen=True, slots=True)
class Pair:
    """A request as its client sent it, and its line in the ledger."""

    at: float
    ttft: float
    line: LedgerLine


def list_loads(rates: Sequence[float]) -> list[Load]:
    """List the loads in the order in which they run: fitted and tested ones in turns."""
    low, middle, high = rates
    return [
        Load("low", low, fits=True, seed=1),
        Load("middle", middle, seed=2),
        Load("high", high, fits=True, seed=3),
        Load("bursty", middle, bursty=True, seed=4),
        Load("middle again", middle, seed=2),
        Load("two replicas", 2 * middle, replicas=2, seed=5),
        Load("two replicas, bursty", 2 * middle, bursty=True, replicas=2, seed=6),
    ]


def draw_arrivals(load: Load, seconds: float) -> list[float]:
    chance = random.Random(load.seed)
    gaps: list[float] = []
    while sum(gaps) < seconds:
        group = 4 if load.bursty and chance.random() < 0.25 else 1
        wait = chance.expovariate(load.rate / (1.75 if load.bursty else 1))
        gaps += [wait, *[0.02] * (group - 1)]
    return [at for at in accumulate(gaps) if at < seconds]


def make_requests(count: int, seed: int) -> list[Request]:
    chance = random.Random(seed)
    by_kind = {
        kind: [
            str(one.messages[-1]["content"])
            for one in load_workload([kind]).prompts
            if len(one.messages) == 1
        ]
        for kind in ("code", "prose")
    }
    requests = []
    for number in range(count):
        kind = ("code", "prose")[number % 2]
        text = chance.choice(by_kind[kind])[: chance.randint(*PROMPT_CHARACTERS)]
        requests.append(
            Request(
                messages=({"role": "user", "content": f"[{seed}.{number}] {text}"},),
                max_tokens=chance.randint(*ANSWER_TOKENS),
                extra={"ignore_eos": True},
            )
        )
    return requests


def compare(folder: Path, arm: str, *, seconds: float, users: int) -> list[Row]:
    """Fit on the loads that fit, simulate all of them, and return the figures of both."""
    loads = {one.name: one for one in list_loads(json.loads((folder / "rates.json").read_text()))}
    recorded = (folder / f"{arm}.jsonl").read_text().splitlines()
    measured = {one["load"]: one for one in map(json.loads, recorded)}
    pairs = {name: pair(loads[name], seconds, one) for name, one in measured.items()}
    fitted = [pairs[name] for name in measured if loads[name].fits]
    speed = take_ledger([one.line for load in fitted for one in load], arm)
    lone = [value for load in fitted for value in find_overhead(load)]
    speed = speed.model_copy(
        update={"overhead_seconds": max(0.0, median(lone)), "max_sequences": users}
    )
    length = 0 if arm == "plain" else max(speed.lengths)
    return [
        Row(arm, name, loads[name].fits, figure, real, simulated)
        for name, one in measured.items()
        for figure, real, simulated in list_figures(
            one, simulate(speed, length, loads[name].replicas, pairs[name])
        )
    ]


def pair(load: Load, seconds: float, measured: dict[str, Any]) -> list[Pair]:
    """Find each request's line: the first one left, in the order of time, with as many tokens.

    The ledger's clock begins when the engine's core takes a request up, which it does between two
    steps: when a request really came, only its client knows.
    """
    arrivals = draw_arrivals(load, seconds)
    requests = make_requests(len(arrivals), load.seed)
    left = sorted(
        (LedgerLine.model_validate(line) for line in measured["lines"]),
        key=lambda line: line.at - line.seconds,
    )
    pairs = []
    for at, request, ttft in zip(arrivals, requests, measured["ttft"], strict=True):
        line = next(one for one in left if one.tokens == request.max_tokens)
        left.remove(line)
        pairs.append(Pair(at, ttft, line))
    return pairs


def find_overhead(pairs: Sequence[Pair]) -> list[float]:
    """List what a first token took outside of the core, of requests that met an idle engine."""
    found, busy_until = [], 0.0
    for one in pairs:
        if one.at > busy_until:
            found.append(one.ttft - (one.line.first_seconds or 0.0))
        busy_until = max(busy_until, one.at + one.ttft + one.line.seconds)
    return found


def simulate(
    speed: EngineSpeed, length: int, replicas: int, pairs: Sequence[Pair]
) -> list[list[ServedRequest]]:
    """Simulate the recorded arrivals, once for every seed."""
    lines = [one.line for one in pairs]
    known = {one.kind for one in speed.yields} or {line.kind for line in lines}
    usual = max(known, key=lambda kind: sum(line.kind == kind for line in lines))
    arrivals = [
        Arrival(
            one.at,
            one.line.kind if one.line.kind in known else usual,
            one.line.uncached_tokens,
            one.line.tokens,
        )
        for one in pairs
    ]
    runs = []
    for seed in range(SEEDS):
        served: list[ServedRequest] = []
        pool = SimulatedPool(speed, length, replicas, tuple(sorted(known)))
        Simulation([pool], seed=seed, keep=served.append).run(arrivals)
        runs.append(served)
    return runs


def list_figures(
    real: dict[str, Any], runs: Sequence[Sequence[ServedRequest]]
) -> Iterator[tuple[str, float, float]]:
    for share in SHARES:
        first = [np.quantile([one.first_seconds for one in run], share) for run in runs]
        yield f"ttft p{100 * share:.0f}", np.quantile(real["ttft"], share), median(first)
        rest = [np.quantile([find_tpot(one) for one in run], share) for run in runs]
        yield f"tpot p{100 * share:.0f}", np.quantile(real["tpot"], share), median(rest)
    rates = [
        sum(one.tokens for one in run) / max(one.arrived + one.seconds for one in run)
        for run in runs
    ]
    yield "tokens/s", real["tokens_per_second"], median(rates)


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
