"""Warm is when the time of a token is flat; a proof counts drafts; a probe has little patience."""

import asyncio
import json
import os
from contextlib import suppress
from typing import Any

import httpx
import pytest

from slipstream.errors import EngineError
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.own_listener import OwnListener
from slipstream.serving.supervision import generation
from slipstream.serving.supervision.generation import Asker, is_flat, prove, warm_up


class Engine:
    """Answers as told, and remembers what it was asked."""

    def __init__(self, *, accepted: list[int] | None = None, refuse: str = "") -> None:
        self.asked: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.accepted, self.refuse = accepted or [], refuse

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.keys.add(request.headers.get("authorization"))
        if request.url.path == "/metrics":
            done = len(self.asked)
            text = (
                f'vllm:spec_decode_num_drafts_total{{engine="0",name="a }} b"}} {8.0 * done}\n'
                f'vllm:spec_decode_num_accepted_tokens_total{{engine="0",name="a }} b"}} '
                f"{float(sum(self.accepted[:done]))}\n"
                'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0"} 99.0\n'
            )
            return httpx.Response(200, text=text)
        body = json.loads(request.content)
        self.asked.append(body)
        if self.refuse and self.refuse in body:
            return httpx.Response(400, text="not here")
        usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": 1}
        return httpx.Response(
            200, json={"usage": usage | {"completion_tokens": body["max_tokens"]}}
        )


def listen_here(port: int) -> OwnListener:
    """Return an address of this machine, at which the engine is this process."""
    address = Address(f"http://127.0.0.1:{port}", "127.0.0.1", port)
    return OwnListener(address, lambda: [os.getpid()])


def make_asker(engine: Any) -> Asker:
    asker = Asker(listen_here(0), "model", "key")
    asker._client = httpx.AsyncClient(
        base_url="http://engine",
        transport=httpx.MockTransport(engine),
    )
    return asker


@pytest.mark.parametrize(
    ("times", "flat"),
    [
        ([], False),
        ([1.0, 1.0], False),
        ([1.0, 1.0, 1.0], True),
        ([9.0, 1.0, 1.0, 1.2], True),
        ([1.0, 1.0, 1.3], False),
        ([3.0, 2.0, 1.0], False),
    ],
)
def test_flat_is_the_last_three_within_a_quarter(times: list[float], flat: bool) -> None:
    assert is_flat(times) is flat


def test_warm_up_meets_what_is_compiled_at_its_first_use() -> None:
    engine, said = Engine(), list[str]()
    warm = asyncio.run(warm_up(make_asker(engine), 4096, said.append))
    assert len(engine.asked[0]["prompt"].split()) == int(1024 * 0.7)
    first_uses = {"top_p", "top_k", "seed", "presence_penalty", "frequency_penalty"}
    first_uses |= {"repetition_penalty", "logprobs", "echo", "structured_outputs"}
    assert first_uses <= {field for body in engine.asked for field in body}
    assert warm.requests == len(engine.asked) == len(said)
    assert engine.keys == {"Bearer key"}


def test_a_short_context_gets_a_shorter_prompt() -> None:
    engine = Engine()
    asyncio.run(warm_up(make_asker(engine), 512, lambda _: None))
    assert len(engine.asked[0]["prompt"].split()) == int(256 * 0.7)


def test_a_kind_of_request_that_is_refused_is_told_and_ends_nothing() -> None:
    engine, said = Engine(refuse="structured_outputs"), list[str]()
    warm = asyncio.run(warm_up(make_asker(engine), 4096, said.append))
    assert warm.requests == len(engine.asked)
    assert [line for line in said if line.startswith("structured answers fail")]


def test_times_that_never_flatten_end_the_warm_up_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "is_flat", lambda _: False)
    engine = Engine()
    warm = asyncio.run(warm_up(make_asker(engine), 4096, lambda _: None))
    assert (warm.flat, len(engine.asked)) == (
        False,
        1 + len(generation._KINDS) + generation.MOST_RUNS,
    )


async def ask_a_server_that_closes(ask: str) -> list[bool | None]:
    """Ask twice a server that closes a kept connection as soon as its second request comes."""
    connections = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            (line[16:] for line in head.lower().split(b"\r\n") if line.startswith(b"content-l")),
            b"0",
        )
        await reader.readexactly(int(length))
        body = b'{"usage": {"prompt_tokens": 1, "completion_tokens": 1}}'
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        await reader.read(1)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    asker = Asker(listen_here(server.sockets[0].getsockname()[1]), "model", "key")
    answers = [await getattr(asker, ask)() for _ in range(2)]
    await asker.close()
    server.close()
    for writer in connections:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    assert len(connections) == 2
    return answers


@pytest.mark.parametrize("ask", ["is_healthy", "probe"])
def test_a_connection_that_is_closed_under_a_probe_is_replaced_at_once(ask: str) -> None:
    assert asyncio.run(ask_a_server_that_closes(ask)) == [True, True]


@pytest.mark.parametrize(
    ("drafts", "accepted", "asked", "proven"),
    [
        (False, [], 1, (8, 0, 1.0)),
        (True, [0, 0, 12], 3, (24, 12, 1.5)),
        (True, [0] * 9, len(generation.PROOFS), (8 * len(generation.PROOFS), 0, 1.0)),
    ],
)
def test_a_proof_tries_other_texts_until_a_draft_is_accepted(
    drafts: bool, accepted: list[int], asked: int, proven: tuple[int, int, float]
) -> None:
    engine = Engine(accepted=accepted)
    proof = asyncio.run(prove(make_asker(engine), drafts=drafts))
    assert (proof.drafts, proof.accepted, proof.tokens_per_step) == proven
    assert len({body["prompt"] for body in engine.asked}) == len(engine.asked) == asked
    assert proof.generation.tokens == generation.PROOF_TOKENS


def test_a_probe_fails_on_an_error_and_a_generation_says_which() -> None:
    asker = make_asker(lambda _: httpx.Response(500, text="dead"))
    assert asyncio.run(asker.probe()) is False
    with pytest.raises(EngineError, match="500"):
        asyncio.run(asker.generate("a", 1))


def test_health_tells_a_refusal_from_silence() -> None:
    def refuse(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    def fall_silent(_: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("nothing")

    answers: dict[Any, bool | None] = {
        refuse: False,
        fall_silent: None,
        (lambda _: httpx.Response(503)): False,
        (lambda _: httpx.Response(200)): True,
    }
    for engine, expected in answers.items():
        assert asyncio.run(make_asker(engine).is_healthy()) is expected


def test_health_is_asked_without_a_key_until_one_is_needed() -> None:
    keys = list[str | None]()

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers.get("authorization"))
        return httpx.Response(200 if keys[-1] else 401)

    async def ask_twice() -> list[bool | None]:
        asker = make_asker(answer)
        return [await asker.is_healthy() for _ in range(2)]

    assert asyncio.run(ask_twice()) == [True, True]
    assert keys == [None, "Bearer key", "Bearer key"]
