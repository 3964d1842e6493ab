"""Hostile requests: nothing dies, too much is refused at once, and neighbours do not feel it."""

import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import cycle
from statistics import median

import pytest

from slipstream.vllm_plugin.gate.constraints.measuring import WORKER
from tests.engine.gate.corpus import BROKEN, CORPUS, KNOWN, LIMITS
from tests.engine.gate.gated_server import Gated, describe_process, probe
from tests.engine.gate.hostile import Hostile
from tests.engine.gate.neighbour import Neighbour
from tests.engine.gate.percentiles import MOST_TIMES, Comparison, compare_neighbour
from tests.engine.gate.wire import Answer, exchange
from tests.slowness import measure_slowness

pytestmark = pytest.mark.engine

ROUNDS = int(os.environ.get("CORPUS_ROUNDS", "2"))
AT_ONCE_SECONDS = 0.2
# How long the API server may answer nobody: what a probe of /livez waits, which needs no engine.
MOST_STALL_SECONDS = 1
TURNS = 4
TURN_SECONDS = 5


def shuffle(requests: Sequence[Hostile], seed: int) -> list[Hostile]:
    return random.Random(seed).sample(requests, len(requests))


def send(gated: Gated, hostile: Hostile) -> Answer:
    return exchange(gated.port, hostile.with_key(gated.attacker))


def test_rounds_of_the_corpus_kill_nothing(gated: Gated) -> None:
    assert len(CORPUS) >= 280
    assert len({hostile.name for hostile in CORPUS}) == len(CORPUS)
    processes = gated.list_processes()
    statuses: Counter[int] = Counter()
    seconds: dict[str, list[float]] = defaultdict(list)
    stalls: dict[str, float] = {}
    with probe(gated) as waits:
        for number in range(ROUNDS):
            for hostile in shuffle(CORPUS, seed=number):
                waits[:] = [0.0]
                answer = send(gated, hostile)
                stalls[hostile.name] = max(stalls.get(hostile.name, 0), *waits)
                told = (hostile.name, answer.status, answer.body[:200])
                assert answer.status in hostile.expected, told
                assert answer.status < 500 or hostile.name in KNOWN, told
                statuses[answer.status] += 1
                seconds[hostile.name].append(answer.seconds)
    begun = gated.list_processes() - processes
    assert processes <= gated.list_processes()
    assert {WORKER in command for command in map(describe_process, begun) if command} <= {True}
    assert gated.ask("/health").status == 200
    at_once = [hostile for hostile in (*LIMITS, *BROKEN) if 429 not in hostile.expected]
    refused = {hostile.name: seconds[hostile.name] for hostile in at_once}
    by_median = sorted(refused, key=lambda name: median(refused[name]), reverse=True)
    sys.stdout.write(
        f"\n{len(CORPUS)} requests x {ROUNDS}: by status {dict(statuses)}"
        f"\n{len(refused)} past a limit or broken and not measured, ms (median, longest):"
    )
    for name in by_median[:5]:
        times = refused[name]
        sys.stdout.write(f"\n  {median(times) * 1000:6.1f} {max(times) * 1000:6.1f}  {name}")
    sys.stdout.write(f"\n  {max(map(max, refused.values())) * 1000:.1f} ms at the very most")
    stalled = sorted(stalls, key=lambda name: stalls[name], reverse=True)
    longest = [f"\n  {stalls[name] * 1000:6.1f}  {name}" for name in stalled[:5]]
    sys.stdout.write(f"\nlongest /livez beside them, ms:{''.join(longest)}\n")
    slowness = measure_slowness()
    assert median(refused[by_median[0]]) < AT_ONCE_SECONDS * slowness
    assert stalls[stalled[0]] < MOST_STALL_SECONDS * slowness


@pytest.mark.weekly
def test_an_attacker_past_the_limits_is_not_felt_next_door(
    gated: Gated, neighbour: Neighbour
) -> None:
    sent: Counter[int] = Counter()

    requests = cycle(shuffle(LIMITS, seed=0))

    def attack() -> None:
        sent[send(gated, next(requests)).status] += 1

    def measure() -> Comparison:
        quiet, hostile = [], []
        for _ in range(TURNS):
            quiet.append(neighbour.watch(TURN_SECONDS))
            hostile.append(neighbour.watch(TURN_SECONDS, attack))
        return Comparison(neighbour.during(quiet), neighbour.during(hostile))

    neighbour.watch(1)
    assert compare_neighbour("attacked all the time", measure) < MOST_TIMES
    sys.stdout.write(f"by status {dict(sent)}\n")
    assert sent
    assert set(sent) <= {400, 413, 429, 431}
