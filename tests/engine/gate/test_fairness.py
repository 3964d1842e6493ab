"""A key with one request after another does not wait behind a key with 64 at the same time.

It shares the engine's steps with those that have a seat, which on a processor takes time by itself:
so 64 are compared with as many as have a seat.
"""

import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from statistics import median
from types import MappingProxyType
from typing import Any

import pytest

from tests.engine.gate.gated_server import SEATS, Gated, wait_until
from tests.engine.gate.hostile import CHAT, HELLO
from tests.engine.gate.neighbour import Neighbour, Sample
from tests.engine.gate.percentiles import MOST_TIMES, percentile
from tests.engine.gate.wire import make_request

pytestmark = [pytest.mark.engine, pytest.mark.weekly]

CROWD = 64
SECONDS = 10
ATTEMPTS = 2
SHORT_ANSWER = 8


@contextmanager
def crowd(
    gated: Gated, count: int, fields: Mapping[str, Any] = MappingProxyType({})
) -> Iterator[Counter[int]]:
    """Have so many callers with one key ask all the time; return the statuses of their answers."""
    over, statuses = threading.Event(), Counter[int]()
    body = {
        "model": "target",
        "messages": [HELLO],
        "max_tokens": SHORT_ANSWER,
        "ignore_eos": True,
        **fields,
    }

    def ask() -> None:
        while not over.is_set():
            with suppress(TimeoutError):  # Of a queue that is longer than the client's patience.
                answer = gated.ask(CHAT, method="POST", key=gated.attacker, body=body)
                statuses[answer.status] += 1

    threads = [threading.Thread(target=ask) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield statuses
    finally:
        over.set()
        for thread in threads:
            thread.join()


# What one key floods the server with, each from as many connections as a key may have.
FLOODS: dict[str, dict[str, Any]] = {
    "short": {"max_tokens": SHORT_ANSWER},
    "n": {"n": 6, "max_tokens": 64},
    "long answers": {"max_tokens": 256},
    "long prompts": {"messages": [{**HELLO, "content": "a b " * 120}], "max_tokens": 8},
    "cut": {"messages": [{**HELLO, "content": "a b " * 2000}], "truncate_prompt_tokens": 400},
}
ASKED = 20
STEPS = "vllm:iteration_tokens_total_count"


@contextmanager
def slow_readers(gated: Gated) -> Iterator[None]:
    """Have as many as may be ask for long answers, and not read them."""
    body = {"model": "target", "messages": [HELLO], "max_tokens": 256, "stream": True}
    sent = make_request(CHAT, method="POST", key=gated.attacker, body=json.dumps(body).encode())
    with ExitStack() as open_ones:
        for _ in range(CROWD):
            one = open_ones.enter_context(socket.create_connection(("127.0.0.1", gated.port)))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            one.sendall(sent)
        yield


def ask_for_a_token(gated: Gated) -> tuple[list[float], float]:
    """Return the seconds of each answer, and those of a step if the engine had no pause."""
    body = {"model": "target", "messages": [HELLO], "max_tokens": 1}
    began, steps = time.monotonic(), gated.read_metric(STEPS)
    answers = [gated.ask(CHAT, method="POST", key=gated.neighbour, body=body) for _ in range(ASKED)]
    took, steps = time.monotonic() - began, gated.read_metric(STEPS) - steps
    assert {one.status for one in answers} == {200}
    return [one.seconds for one in answers], took / steps


def test_one_token_beside_floods_of_another_key(gated: Gated) -> None:
    """What is left is the engine's: its steps take longer with more in them, and long prompts."""
    alone, _ = ask_for_a_token(gated)
    found = {}
    for name, fields in FLOODS.items():
        with crowd(gated, CROWD, fields):
            time.sleep(12)  # Longer than a seat is kept for one who was away.
            found[name] = ask_for_a_token(gated)
    with slow_readers(gated):
        time.sleep(12)
        found["slow readers"] = ask_for_a_token(gated)
    twice = 2 * median(alone)
    sys.stdout.write(f"\nalone: median {twice * 500:.0f} ms, worst {max(alone) * 1000:.0f} ms")
    for name, (seconds, step) in found.items():
        middle, worst = median(seconds) * 1000, max(seconds) * 1000
        sys.stdout.write(f"\n{name:14} median {middle:5.0f} ms, worst {worst:5.0f} ms")
        sys.stdout.write(f", a step {step * 1000:.0f} ms")
    # The goal is one step beyond twice the time alone (docs/gate.md).
    assert all(median(seconds) < twice + 2 * step for seconds, step in found.values())
    assert all(max(seconds) < twice + 3 * step for seconds, step in found.values())


def find_p99(samples: list[Sample]) -> float:
    assert {one.status for one in samples} == {200}
    return percentile([one.first_token for one in samples], 0.99)


def test_one_request_beside_sixty_four(gated: Gated, neighbour: Neighbour) -> None:
    times = inf
    for _ in range(ATTEMPTS):
        alone = find_p99(neighbour.during([neighbour.watch(SECONDS)]))
        with crowd(gated, SEATS - 1):
            wait_until(lambda: gated.read_counts().in_flight >= SEATS - 1, within_seconds=10)
            seated = find_p99(neighbour.during([neighbour.watch(SECONDS)]))
        with crowd(gated, CROWD) as statuses:
            wait_until(lambda: gated.read_counts().waiting > SEATS, within_seconds=10)
            beside = find_p99(neighbour.during([neighbour.watch(SECONDS)]))
            counts = gated.read_counts()
        sys.stdout.write(
            f"\nfirst token, p99: alone {alone * 1000:.0f} ms, beside {SEATS - 1} of another key "
            f"{seated * 1000:.0f} ms, beside {CROWD} {beside * 1000:.0f} ms; "
            f"{counts.in_flight} in flight, {counts.waiting} waiting, crowd {dict(statuses)}\n"
        )
        assert {*statuses} == {200}
        assert counts.in_flight <= SEATS
        times = min(times, beside / seated)
        if times < MOST_TIMES:
            break
    assert times < MOST_TIMES
