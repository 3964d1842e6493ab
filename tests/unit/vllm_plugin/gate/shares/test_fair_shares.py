"""Keys share the engine's seats by weight, and nobody waits because of somebody else.

The engine in its place has seats and a queue, as the real one, and gives its tokens by the clock,
which is virtual: what these tests find does not depend on the machine.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.access.gate_file import KeyDefaults
from slipstream.vllm_plugin.gate.answers import Message, Receive, Scope, Send
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.shares import fair_shares
from tests.unit.vllm_plugin.gate.callers.test_key_ring import NOW, keyed_gate, new_key
from tests.unit.vllm_plugin.gate.pieces import CHAT, HELLO, make_gate, make_scope, read_all
from tests.unit.vllm_plugin.gate.virtual_time import now, virtually

FIRST_TOKEN_SECONDS = 0.05
ANSWER_SECONDS = 0.25


class SeatedEngine:
    """Answers as many sequences at the same time as it has seats; others queue, first come."""

    def __init__(self, seats: int, seconds: float = ANSWER_SECONDS) -> None:
        self.seats, self.seconds = asyncio.Semaphore(seats), seconds
        self.running = self.most_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        document = json.loads(await read_all(receive))
        self.running += document.get("n", 1)
        self.most_inside = max(self.most_inside, self.running)
        await asyncio.gather(*(self._answer(send) for _ in range(document.get("n", 1))))
        self.running -= document.get("n", 1)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _answer(self, send: Send) -> None:
        async with self.seats:
            await asyncio.sleep(FIRST_TOKEN_SECONDS)
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"data: a\n\n", "more_body": True})
            await asyncio.sleep(self.seconds - FIRST_TOKEN_SECONDS)


class Client:
    """One request: its status, and when its first token came."""

    def __init__(self, gate: Gate, key: str, **fields: Any) -> None:
        self.status, self.first_token = 0, 0.0
        self.gone = asyncio.Event()
        self._gate, self._key = gate, key
        body = json.dumps(HELLO | fields).encode()
        self._messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def ask(self) -> "Client":
        headers = [(b"x-api-key", self._key.encode())]
        began = now()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.status = message["status"]
                self.headers = dict(message["headers"])
            elif not self.first_token:
                self.first_token = now() - began

        scope = make_scope(CHAT.encode(), method="POST", headers=headers)
        await self._gate(scope, self._receive, send)
        return self

    async def _receive(self) -> Message:
        if self._messages:
            return self._messages.pop()
        await self.gone.wait()
        return {"type": "http.disconnect"}


def share_out(
    folder: Path, seats: int, keys: list[dict[str, Any]], **settings: Any
) -> tuple[Gate, list[str], SeatedEngine]:
    """Make a gate before an engine of so many seats, and a key for each of the terms."""
    file = folder / "keys.json"
    secrets = [new_key(file, **terms)[1] for terms in keys]
    engine = SeatedEngine(seats)
    gate = make_gate(folder, engine, keys_file=file, seats=seats, **settings)
    gate._shares._clock = now
    return gate, secrets, engine


async def keep_asking(gate: Gate, key: str, until: float, done: Counter[str]) -> None:
    while now() < until:
        client = await Client(gate, key).ask()
        assert client.status == 200
        done[key] += 1


@virtually
async def test_a_key_with_one_request_does_not_feel_a_key_with_sixty_four(tmp_path: Path) -> None:
    gate, (crowd, single), engine = share_out(tmp_path, 8, [{}, {}])
    alone = [(await Client(gate, single).ask()).first_token for _ in range(8)]
    until = now() + 20
    done: Counter[str] = Counter()
    others = [asyncio.create_task(keep_asking(gate, crowd, until, done)) for _ in range(64)]
    await asyncio.sleep(0.1)
    beside = []
    while now() < until - 1:
        beside.append((await Client(gate, single).ask()).first_token)
    await asyncio.gather(*others)
    assert len(beside) > 5
    assert max(beside) < 2 * max(alone)
    assert engine.most_inside <= 8


@pytest.mark.parametrize("seats", [4, 5, 1])
@virtually
async def test_weights_are_what_keys_get(tmp_path: Path, seats: int) -> None:
    """Three to one in whole seats, in parts of one, and with a single seat in turns."""
    gate, (heavy, light), engine = share_out(tmp_path, seats, [{"weight": 3}, {}])
    engine.seconds = 0.06
    until, done = now() + 20, Counter[str]()
    asking = [keep_asking(gate, key, until, done) for _ in range(10) for key in (light, heavy)]
    await asyncio.gather(*asking)
    # What was still waiting at the end was answered too, ten of each.
    assert (done[heavy] - 10) / (done[light] - 10) == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize(
    ("keys", "used"),
    [
        ([{}], 8),
        ([{}, {"routes": ("metrics",)}, {"expires": NOW}], 8),
        ([{}, {}], 7),
        ([{}] * 9, 6),
    ],
)
@virtually
async def test_a_key_alone_has_every_seat_but_a_few_for_those_who_are_away(
    tmp_path: Path, keys: list[dict[str, Any]], used: int
) -> None:
    gate, (one, *_), engine = share_out(tmp_path, 8, keys)
    await asyncio.gather(*(Client(gate, one).ask() for _ in range(16)))
    assert engine.most_inside == used


@pytest.mark.parametrize("answers", [1, 3])
@virtually
async def test_a_key_that_was_away_finds_a_way_in(tmp_path: Path, answers: int) -> None:
    """However many answers the others ask for, and however long they are."""
    gate, (crowd, single), engine = share_out(tmp_path, 4, [{}, {}])
    engine.seconds = 600
    others = [asyncio.create_task(Client(gate, crowd, n=answers).ask()) for _ in range(64)]
    await asyncio.sleep(60)
    asked = asyncio.create_task((client := Client(gate, single)).ask())
    await asyncio.sleep(2 * FIRST_TOKEN_SECONDS)
    assert client.first_token <= FIRST_TOKEN_SECONDS
    assert engine.most_inside == 4
    for task in (*others, asked):
        task.cancel()


@virtually
async def test_many_answers_get_their_seats_beside_a_crowd(tmp_path: Path) -> None:
    gate, (crowd, one), engine = share_out(tmp_path, 4, [{}, {}])
    until, done = now() + 20, Counter[str]()
    others = [asyncio.create_task(keep_asking(gate, crowd, until, done)) for _ in range(64)]
    await asyncio.sleep(1)
    for _ in range(5):
        client = await Client(gate, one, n=3).ask()
        assert (client.status, client.first_token < 4 * ANSWER_SECONDS) == (200, True)
    await asyncio.gather(*others)
    assert engine.most_inside == 4


@virtually
async def test_a_request_for_several_answers_takes_several_seats(tmp_path: Path) -> None:
    gate, (one, other), engine = share_out(tmp_path, 4, [{}, {}])
    await Client(gate, other).ask()
    crowd = [asyncio.create_task(Client(gate, one, n=2).ask()) for _ in range(6)]
    await asyncio.sleep(0.05)
    assert (await Client(gate, other).ask()).first_token < 2 * FIRST_TOKEN_SECONDS
    await asyncio.gather(*crowd)
    assert engine.most_inside <= 4


@pytest.mark.parametrize(("keys", "status"), [(1, 200), (2, 400)])
@virtually
async def test_more_answers_than_seats_are_for_a_key_that_is_the_only_one(
    tmp_path: Path, keys: int, status: int
) -> None:
    gate, (one, *_), _ = share_out(tmp_path, 2, [{}] * keys)
    assert (await Client(gate, one, n=8).ask()).status == status


@asynccontextmanager
async def full_house(folder: Path, **own: Any) -> AsyncIterator[tuple[Gate, str, SeatedEngine]]:
    """Have all seats taken by two keys, and yield another."""
    gate, (*crowd, key), engine = share_out(folder, 2, [{}, {}, {}], **own)
    engine.seconds = 0.6
    others = [asyncio.create_task(Client(gate, one).ask()) for one in crowd]
    await asyncio.sleep(0.02)
    yield gate, key, engine
    await asyncio.gather(*others)


@virtually
async def test_one_who_leaves_while_waiting_never_reaches_the_engine(tmp_path: Path) -> None:
    async with full_house(tmp_path) as (gate, key, engine):
        client = Client(gate, key)
        asked = asyncio.create_task(client.ask())
        await asyncio.sleep(0.05)
        counts = gate.run.accounting.describe()
        assert (counts.in_flight, counts.waiting) == (2, 1)
        client.gone.set()
        await asyncio.wait_for(asked, 0.2)
        assert client.status == 0
        assert gate.run.accounting.describe().waiting == 0
        assert (await Client(gate, key).ask()).status == 200
        assert engine.most_inside == 2


@virtually
async def test_nobody_waits_for_ever(tmp_path: Path) -> None:
    async with full_house(tmp_path, waiting_seconds=0.1) as (gate, key, _):
        client = await Client(gate, key).ask()
        assert (client.status, client.headers[b"retry-after"]) == (503, b"5")


@pytest.mark.parametrize("bound", [{"waiting_requests": 1}, {"waiting_bytes": 250}])
@virtually
async def test_not_everybody_waits(tmp_path: Path, bound: dict[str, int]) -> None:
    async with full_house(tmp_path, **bound) as (gate, key, _):
        clients = [Client(gate, key) for _ in range(3)]
        await asyncio.gather(*(client.ask() for client in clients))
        assert sorted(client.status for client in clients) == [200, 503, 503]


@virtually
async def test_a_cancelled_request_leaves_its_place(tmp_path: Path) -> None:
    async with full_house(tmp_path) as (gate, key, _):
        waiting = asyncio.create_task(Client(gate, key).ask())
        await asyncio.sleep(0.05)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert (await Client(gate, key).ask()).status == 200


@virtually
async def test_what_is_kept_for_one_who_stays_away_is_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fair_shares, "KEPT_SECONDS", 0.2)
    monkeypatch.setattr(fair_shares, "LOOK_AGAIN_SECONDS", 0.1)
    gate, (heavy, one, other), _ = share_out(tmp_path, 2, [{"weight": 10}, {}, {}])
    await asyncio.gather(Client(gate, heavy).ask(), Client(gate, heavy).ask())
    clients = [Client(gate, key) for key in (one, other)]
    await asyncio.wait_for(asyncio.gather(*(client.ask() for client in clients)), 2)
    assert [client.status for client in clients] == [200, 200]


@virtually
async def test_without_keys_the_engine_queues(tmp_path: Path) -> None:
    engine = SeatedEngine(2)
    gate = make_gate(tmp_path, engine, seats=2)
    await asyncio.gather(*(Client(gate, "").ask() for _ in range(6)))
    assert engine.most_inside == 6


@pytest.mark.parametrize(("used", "sent"), [(True, b"-3"), (False, None)])
@virtually
async def test_the_priority_is_the_keys_and_only_where_the_engine_orders_by_it(
    tmp_path: Path, used: bool, sent: bytes | None
) -> None:
    heard: list[dict[bytes, bytes]] = []

    async def engine(scope: Scope, receive: Receive, send: Send) -> None:
        heard.append(dict(scope["headers"]))
        await read_all(receive)

    own = {"priorities": used, "keys": KeyDefaults(priority=9)}
    gate, (key,) = keyed_gate(tmp_path, engine, {"priority": -3}, **own)
    headers = [(b"x-api-key", key.encode()), (b"x-vllm-priority", b"-100")]
    scope = make_scope(CHAT.encode(), method="POST", headers=headers)
    await gate(scope, Client(gate, key)._receive, lambda _: asyncio.sleep(0))
    assert heard[0].get(b"x-vllm-priority") == sent
