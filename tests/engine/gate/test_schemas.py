"""Schemas that take long to compile, from a client that leaves: nobody else waits for them."""

import json
import sys
import threading
from collections import Counter
from itertools import count
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.constraints.measuring import WORKER
from tests.engine.gate.corpus_of_schemas import COSTLY
from tests.engine.gate.gated_server import Gated, describe_process, wait_until
from tests.engine.gate.hostile import CHAT, HELLO
from tests.engine.gate.wire import connect, make_request

pytestmark = pytest.mark.engine

LEAVES_AFTER_SECONDS = 0.5
ATTEMPTS = 10
# The longest compile that passes, on this machine beside an engine at work, and no queue of them.
MOST_SECONDS_MORE = 6
_numbers = count()


def make_chat(schema: dict[str, Any] | None) -> dict[str, Any]:
    document: dict[str, Any] = {"model": "target", "messages": [HELLO], "max_tokens": 16}
    if schema is not None:
        form = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
        document["response_format"] = form
    return document


def make_ordinary() -> dict[str, Any]:
    """Make an ordinary schema that nobody has sent."""
    name = f"p{next(_numbers)}"
    return {"type": "object", "properties": {name: {"type": "string"}}, "required": [name]}


def ask(gated: Gated, schema: dict[str, Any] | None) -> float:
    """Have the neighbour ask, and return the seconds that the answer took."""
    answer = gated.ask(CHAT, method="POST", key=gated.neighbour, body=make_chat(schema))
    assert answer.status == 200, answer.body[:200]
    return answer.seconds


def send_and_leave(gated: Gated, schema: dict[str, Any]) -> int | None:
    """Send as the attacker, leave soon, and return the status if there was an answer by then."""
    body = json.dumps(make_chat(schema)).encode()
    with connect(gated.port) as connection:
        connection.sendall(make_request(CHAT, method="POST", key=gated.attacker, body=body))
        connection.settimeout(LEAVES_AFTER_SECONDS)
        try:
            return int(connection.recv(64).split()[1])
        except TimeoutError:
            return None


def measure(gated: Gated) -> tuple[float, float]:
    """Return the seconds of the neighbour's new schema and of its plain answer."""
    return ask(gated, make_ordinary()), ask(gated, None)


def tell(what: str, seconds: tuple[float, float]) -> None:
    sys.stdout.write(f"\n{what}: schema {seconds[0]:.2f} s, plain answer {seconds[1]:.2f} s\n")


def count_children(gated: Gated) -> int:
    """Count the processes that measure a schema at the moment, beside the one that starts them."""
    found = [one for one in gated.list_processes() if WORKER in describe_process(one)]
    return len(found) - 1


def test_the_schema_that_stalled_the_engine_never_reaches_it(gated: Gated) -> None:
    """It took 27 s of processor time, and the neighbour waited for 12 to 14 s."""
    measure(gated)
    alone = measure(gated)
    attack = COSTLY["ten lengths in 401 bytes"]
    statuses = {send_and_leave(gated, attack) for _ in range(ATTEMPTS)}
    ended = wait_until(lambda: count_children(gated) == 0, within_seconds=30)
    beside = measure(gated)
    tell("alone", alone)
    tell(f"after {ATTEMPTS} attacks, the last ended {ended:.1f} s after its client left", beside)
    assert statuses <= {None, 400, 429}


@pytest.mark.weekly
def test_the_costliest_that_passes_are_few_and_do_not_stall_the_neighbour(gated: Gated) -> None:
    measure(gated)
    alone, beside = measure(gated), []
    statuses: Counter[int] = Counter()

    def attack() -> None:
        for number in range(ATTEMPTS):
            body = make_chat({"type": "string", "maxLength": 100, "title": str(number)})
            answer = gated.ask(CHAT, method="POST", key=gated.attacker, body=body)
            statuses[answer.status] += 1

    attacking = threading.Thread(target=attack)
    attacking.start()
    while attacking.is_alive():
        beside.append(measure(gated))
    longest = max(one[0] for one in beside), max(one[1] for one in beside)
    tell("alone", alone)
    tell(f"beside {ATTEMPTS} costly schemas, by status {dict(statuses)}", longest)
    assert set(statuses) <= {200, 429}
    assert statuses[429] >= ATTEMPTS - 5
    assert longest[0] < alone[0] + MOST_SECONDS_MORE
    assert longest[1] < alone[1] + MOST_SECONDS_MORE
    assert gated.ask("/health").status == 200
