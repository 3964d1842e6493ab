"""A key has limits of its own, at once and by the minute, and is told when to come back."""

import asyncio
import json
import resource
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from slipstream.serving.access.gate_file import KeyDefaults
from slipstream.vllm_plugin.gate.answers import Receive, Refusal, Scope, Send
from slipstream.vllm_plugin.gate.answers.tokens import AnswerTokens
from slipstream.vllm_plugin.gate.callers.key_ring import Caller
from slipstream.vllm_plugin.gate.shares.caller_limits import (
    LONGEST_WAIT_SECONDS,
    REFUSED_IN_A_ROW,
    CallerLimits,
    RefusalPace,
)
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate, new_key
from tests.unit.vllm_plugin.gate.pieces import (
    CHAT,
    HELLO,
    Engine,
    ask_async,
    ask_chat,
    call,
    make_gate,
    make_scope,
    read_error,
    wait_until,
)
from tests.unit.vllm_plugin.gate.test_sockets import connect, serve, status_of
from tests.unit.vllm_plugin.gate.virtual_time import Clock

HALF = 2**19


def enter(limits: CallerLimits, caller: Caller) -> None:
    with limits.enter(caller, 5):
        pass


@contextmanager
def spend(
    limits: CallerLimits, caller: Caller, size: int, asked: int, usage: bytes
) -> Iterator[None]:
    """Have a seat, and an answer that reports this usage at its end."""
    with limits.pay(caller, size, asked) as used:
        assert used is not None
        used.seated = True
        yield
        used.see(b'{"usage": {' + usage + b"}}")


def find_wait(refusal: Refusal) -> int:
    return int(dict(refusal.headers)[b"retry-after"])


def test_requests_by_the_minute_come_back_when_they_are_told_to() -> None:
    clock = Clock()
    limits = CallerLimits(clock=clock)
    caller = Caller("a", terms=KeyDefaults(requests_per_minute=6))
    for _ in range(6):
        enter(limits, caller)
    with pytest.raises(Refusal) as refused:
        enter(limits, caller)
    assert (refused.value.status, find_wait(refused.value)) == (429, 10)
    enter(limits, Caller("b", terms=caller.terms))
    clock.now += 9.5
    with pytest.raises(Refusal) as refused:
        enter(limits, caller)
    clock.now += find_wait(refused.value)
    enter(limits, caller)


def test_tokens_are_paid_as_estimated_and_set_right_at_the_end() -> None:
    clock = Clock()
    limits = CallerLimits(clock=clock)
    caller = Caller("a", terms=KeyDefaults(tokens_per_minute=600))
    with spend(limits, caller, 400, 500, b'"prompt_tokens": 90, "completion_tokens": 10'):
        with pytest.raises(Refusal) as no:
            limits.pay(caller, 400, 100).__enter__()
        assert (no.value.reason, find_wait(no.value)) == ("tokens_per_minute", 20)
    with spend(limits, caller, 0, 500, b'"prompt_tokens": 0, "completion_tokens": 1100'):
        pass
    with pytest.raises(Refusal) as no:
        limits.pay(caller, 0, 1).__enter__()
    clock.now += find_wait(no.value)
    with limits.pay(caller, 0, 1):
        pass


@pytest.mark.parametrize("asked", [float("inf"), -1_000_000])
def test_a_length_that_makes_no_sense_neither_fills_nor_spoils_a_keys_budget(asked: float) -> None:
    limits = CallerLimits(clock=Clock())
    caller = Caller("a", terms=KeyDefaults(tokens_per_minute=600))
    with limits.pay(caller, 40, asked):
        assert limits._tokens[caller.id].level <= 590
    assert limits._tokens[caller.id].level == 600
    with spend(limits, caller, 40, 590, b'"prompt_tokens": 10, "completion_tokens": 590'):
        pass
    with pytest.raises(Refusal):
        limits.pay(caller, 0, 1).__enter__()


def test_a_request_for_more_than_a_minutes_tokens_takes_a_full_minute() -> None:
    clock = Clock()
    limits = CallerLimits(clock=clock)
    caller = Caller("a", terms=KeyDefaults(tokens_per_minute=60))
    with limits.pay(caller, 400, 1000):
        """Its client left before there was a seat: it costs nothing."""
    with limits.pay(caller, 0, 60) as used:
        """Its client left before the whole answer came at once: it costs what it asked for."""
        assert used is not None
        used.seated = True
    with pytest.raises(Refusal):
        limits.pay(caller, 0, 60).__enter__()
    clock.now += 60
    for answer in (1000, 60):
        with spend(limits, caller, 0, answer, b'"output_tokens": 60'):
            pass
        with pytest.raises(Refusal) as no:
            limits.pay(caller, 0, 60).__enter__()
        assert find_wait(no.value) == 60
        clock.now += 60


DELTA = b'data: {"choices":[{"delta":{"content":"a"}}]}'
STARTED = b'event: message_start\ndata: {"message":{"usage":{"input_tokens":5,"output_tokens":0}}}'
WORD = b'event: content_block_delta\ndata: {"delta":{"type":"text_delta","text":"a"}}'
# A client's own tool, which the stream repeats, must not make its answer cheap.
CREATED = b'event: response.created\ndata: {"tools":[{"usage":{"output_tokens":0},"text":"abcd"}]}'
SPOKEN = b'event: response.output_text.delta\ndata: {"delta":"a"}'
WHOLE = b'event: response.output_text.done\ndata: {"text":"a text that was streamed before"}'


@pytest.mark.parametrize(
    ("parts", "tokens"),
    [
        ([b'data: {"choices":[{"delta":{"content":" word"}}]}\n\n'] * 5, 6),
        ([b'data: {"choices":[{"text":" a long text of six tokens"}]}\n\n'] * 2, 13),
        ([b'data: {"choices":[{"delta":{"content":"a \\"completion_tokens\\": 9 b"}}]}'], 7),
        ([DELTA, b'data: {"usage":{"completion_tokens": 40}}'], 40),
        ([b'{"choices":[{"message":{"content":"a"}}],"usage":{"completion_tokens":3}}'], 3),
        ([b"data: [DONE]\n\n", b""], 0),
        ([STARTED, *[WORD] * 3], 3),
        ([STARTED, WORD, b'event: message_delta\ndata: {"usage":{"output_tokens":9}}'], 9),
        ([CREATED, *[SPOKEN] * 3, WHOLE, WHOLE], 3),
        ([CREATED, SPOKEN, WHOLE, b'event: response.completed\n{"usage":{"output_tokens":2}}'], 2),
    ],
)
def test_the_tokens_of_an_answer_are_counted_as_it_passes(parts: list[bytes], tokens: int) -> None:
    seen = AnswerTokens()
    for part in parts:
        seen.see(part)
    assert seen.answer == tokens


def test_a_key_at_its_limit_of_tokens_is_told_so_through_the_gate(tmp_path: Path) -> None:
    engine = Engine(chunks=(b'{"usage":{"completion_tokens": 100}}',))
    gate, (key,) = keyed_gate(tmp_path, engine, {"tokens_per_minute": 200})
    first = ask_chat(gate, key=key, max_tokens=150)
    second = ask_chat(gate, key=key, max_tokens=150)
    assert (first.status_code, second.status_code) == (200, 429)
    # 200, less the 19 of its body and 100 of its answer: 88 more at 200 a minute.
    assert int(second.headers["retry-after"]) in range(20, 30)
    assert read_error(second)
    assert ask_chat(gate, key=key, max_tokens=20).status_code == 200


def test_an_answer_that_is_left_before_it_comes_is_paid_as_long_as_it_may_be(
    tmp_path: Path,
) -> None:
    """vLLM answers a client that left with nothing, and 200."""

    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.wait_for(receive(), 5)  # until the client leaves
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    gate, (key,) = keyed_gate(tmp_path, leave, {"tokens_per_minute": 200})
    body = json.dumps({**HELLO, "max_tokens": 150}).encode()
    scope = make_scope(CHAT.encode(), method="POST")
    scope["headers"] = [(b"authorization", f"Bearer {key}".encode())]
    asyncio.run(call(gate, scope, {"type": "http.request", "body": body, "more_body": False}))
    assert ask_chat(gate, key=key, max_tokens=150).status_code == 429


def test_a_keys_longest_answer_counts_where_it_is_the_shorter(tmp_path: Path) -> None:
    engine, own = Engine(), {"max_tokens": 50}
    gate, (key,) = keyed_gate(tmp_path, engine, own, limits={"max_tokens": 100})
    assert ask_chat(gate, key=key, max_tokens=51).status_code == 400
    assert ask_chat(gate, key=key).status_code == 200
    assert json.loads(engine.bodies[-1])["max_completion_tokens"] == 50


def test_half_bodies_have_a_seat_each_and_the_next_is_refused_at_once(tmp_path: Path) -> None:
    """80 half bodies on one key: memory is bounded by the 64 that are let in."""
    file, engine = tmp_path / "keys.json", Engine()
    (identity, key), (_, other) = new_key(file), new_key(file)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: engine\r\nContent-Length: {2 * HALF}\r\n"
        f"Authorization: Bearer {key}\r\n\r\n"
    ).encode()
    gate = make_gate(tmp_path, engine, keys_file=file)
    with serve(gate) as port, ExitStack() as open_sockets:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        waiting = []
        for _ in range(64):
            waiting.append(open_sockets.enter_context(connect(port)))
            waiting[-1].sendall(head + b"x" * HALF)
        wait_until(lambda: gate._limits._inside[identity] == 64)
        times = []
        for _ in range(16):
            late = open_sockets.enter_context(connect(port))
            began = time.monotonic()
            late.sendall(head)
            answer = late.recv(65536)
            times.append(time.monotonic() - began)
            assert status_of(answer) == 429
            assert b"retry-after: 5" in answer
            assert b"connection: close" in answer
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        sys.stdout.write(
            f"\n80 half bodies: 64 wait, 16 refused within {max(times) * 1000:.0f} ms,"
            f" {grown:.0f} MiB more\n"
        )
        assert max(times) < 2
        for one in waiting:
            one.setblocking(False)
            with pytest.raises(BlockingIOError):
                one.recv(1)
        url, free = f"http://127.0.0.1:{port}{CHAT}", {"x-api-key": other}
        assert httpx.post(url, json=HELLO, headers=free).status_code == 200
        waiting.pop().close()
        wait_until(lambda: gate._limits._inside[identity] == 63)
        again = open_sockets.enter_context(connect(port))
        again.sendall(head)
        again.settimeout(0.3)
        with pytest.raises(socket.timeout):
            again.recv(1)
    assert len(engine.bodies) == 1


def test_a_hundred_are_refused_at_once_then_fifty_a_second_and_one_who_stops_is_forgiven() -> None:
    clock = Clock()
    pace = RefusalPace(50, clock=clock)
    waits = [pace.place("a") for _ in range(REFUSED_IN_A_ROW + 50)]
    assert waits[:REFUSED_IN_A_ROW] == [0] * REFUSED_IN_A_ROW
    assert round(waits[-1], 6) == 1
    assert pace.place("b") == 0
    clock.now += 3
    assert [pace.place("a") for _ in range(REFUSED_IN_A_ROW)] == [0] * REFUSED_IN_A_ROW
    assert pace.place("a") > 0
    assert max(pace.place("a") for _ in range(1000)) == LONGEST_WAIT_SECONDS


def test_the_gate_holds_refusals_and_not_what_it_lets_pass(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), refusals_per_second=0.01)

    async def ask_all() -> None:
        for _ in range(REFUSED_IN_A_ROW):
            assert (await ask_async(gate, content=b"[]")).status_code == 400
        held = asyncio.create_task(ask_async(gate, content=b"[]"))
        await asyncio.sleep(0)
        assert (await ask_async(gate, content=b"{}")).status_code == 200
        assert not held.done()
        held.cancel()

    asyncio.run(ask_all())


def test_a_refusal_that_waits_holds_no_frame_of_its_request() -> None:
    try:
        try:
            raise ValueError("the body")
        except ValueError as fault:
            raise Refusal(400, "no") from fault
    except Refusal as fault:
        refusal = fault.forget()
    assert (refusal.__traceback__, refusal.__cause__, refusal.__context__) == (None, None, None)
