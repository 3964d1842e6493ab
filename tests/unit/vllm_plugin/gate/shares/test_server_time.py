"""A key with costly bodies or much text leaves the event loop and the tokenizer to others."""

import asyncio
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.vllm_plugin.gate.answers import Receive, Refusal, Scope, Send
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.shares.server_time import PAUSE_TIMES, TOKENIZING_BYTES, ServerTime
from tests.unit.vllm_plugin.gate.callers.test_key_ring import new_key
from tests.unit.vllm_plugin.gate.pieces import make_gate, read_all
from tests.unit.vllm_plugin.gate.shares.test_fair_shares import Client
from tests.unit.vllm_plugin.gate.virtual_time import now, virtually

TOKENIZE_SECONDS = 1.0
ANSWER_SECONDS = 100.0


@virtually
async def test_a_key_pauses_after_a_body_that_took_long(tmp_path: Path) -> None:
    spent = 0.0
    server = ServerTime(clock=lambda: spent)
    begun: list[tuple[str, float]] = []

    async def check(key: str, seconds: float, *, refused: bool = False) -> None:
        nonlocal spent
        with suppress(Refusal):
            async with server.check_body(key):
                begun.append((key, now()))
                spent += seconds
                if refused:
                    raise Refusal(400, "faulty")

    started = now()
    costly = [check("costly", 0.1, refused=number == 0) for number in range(3)]
    await asyncio.gather(*costly, *(check("quick", 0.001) for _ in range(3)))
    assert [at - started for key, at in begun if key == "quick"] == [0, 0, 0]
    pauses = [round((at - started) / (PAUSE_TIMES * 0.1), 2) for key, at in begun if key[0] == "c"]
    assert pauses == [0, 1, 2]


class TokenizingEngine:
    """Tokenizes one text after the other, and then takes long to answer."""

    def __init__(self) -> None:
        self.tokenizer, self.waiting, self.most_waiting = asyncio.Lock(), 0, 0
        self.state = SimpleNamespace(engine_client=self)
        self.routes: tuple[Any, ...] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await read_all(receive)
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        async with self.tokenizer:
            await asyncio.sleep(TOKENIZE_SECONDS * len(body) / TOKENIZING_BYTES)
        self.waiting -= 1
        await asyncio.create_task(self.generate(send))

    async def generate(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        await asyncio.sleep(ANSWER_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def make_tokenizing(folder: Path) -> tuple[Gate, str, str, TokenizingEngine]:
    keys = [new_key(folder / "keys.json")[1] for _ in range(2)]
    engine = TokenizingEngine()
    gate = make_gate(folder, engine, keys_file=folder / "keys.json", seats=32)
    gate._read_engine(engine)
    return gate, keys[0], keys[1], engine


@virtually
async def test_the_tokenizer_is_not_filled_by_one_key(tmp_path: Path) -> None:
    """Answers go on for long: what counts is what is not tokenized yet."""
    gate, flood, single, engine = make_tokenizing(tmp_path)
    text = [{"role": "user", "content": "a" * (TOKENIZING_BYTES // 3)}]
    others = [asyncio.create_task(Client(gate, flood, messages=text).ask()) for _ in range(16)]
    await asyncio.sleep(TOKENIZE_SECONDS / 10)
    client = Client(gate, single)
    asked = asyncio.create_task(client.ask())
    await asyncio.sleep(2 * TOKENIZE_SECONDS)
    assert 0 < client.first_token < TOKENIZE_SECONDS
    assert engine.most_waiting <= 3
    await asyncio.sleep(16 * TOKENIZE_SECONDS / 3)
    assert engine.waiting == 0
    for task in (*others, asked):
        task.cancel()


@virtually
async def test_one_who_leaves_before_the_tokenizer_leaves_his_seat(tmp_path: Path) -> None:
    gate, flood, _, engine = make_tokenizing(tmp_path)
    text = [{"role": "user", "content": "a" * (2 * TOKENIZING_BYTES - 1000)}]
    clients = [Client(gate, flood, messages=text) for _ in range(3)]
    asked = [asyncio.create_task(client.ask()) for client in clients]
    await asyncio.sleep(TOKENIZE_SECONDS / 10)
    clients[1].gone.set()
    await asyncio.wait_for(asked[1], TOKENIZE_SECONDS / 10)
    await asyncio.sleep(4 * TOKENIZE_SECONDS)
    assert (engine.most_waiting, clients[2].status) == (1, 200)
    for task in asked:
        task.cancel()
