"""The supervisor sees what is under way, whatever ends it, and soon enough."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from slipstream.serving.access.gate_file import GateCounts, read_counts
from slipstream.serving.access.keys import make_key
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send, accounting
from tests.unit.full_disk import fill
from tests.unit.vllm_plugin.gate.callers.test_key_ring import NOW
from tests.unit.vllm_plugin.gate.pieces import (
    HELLO,
    Engine,
    ask,
    ask_async,
    ask_chat,
    call,
    make_gate,
)
from tests.unit.vllm_plugin.gate.test_middleware import post


def read_one(folder: Path) -> GateCounts:
    (counts,) = read_counts(folder)
    assert counts.pid == os.getpid()
    return counts


def test_requests_are_counted_by_key_until_they_end(tmp_path: Path) -> None:
    file, folder = tmp_path / "keys.json", tmp_path / "counts"
    one, other = (make_key(file, "", now=NOW, expires=None) for _ in range(2))

    async def watch() -> list[GateCounts]:
        held = asyncio.Event()
        gate = make_gate(
            tmp_path, Engine(before_each=held.wait), keys_file=file, accounting_folder=folder
        )
        asked = [
            asyncio.create_task(ask_async(gate, key=key.secret, json=HELLO))
            for key in (one, one, other)
        ]
        await asyncio.sleep(accounting.WRITE_EVERY_SECONDS + 0.2)
        during = read_one(folder)
        held.set()
        await asyncio.gather(*asked)
        return [during, read_one(folder)]

    during, after = asyncio.run(watch())
    assert (during.in_flight, during.total, during.last_token) == (3, 3, None)
    counted = {key: (counts.in_flight, counts.total) for key, counts in during.by_key.items()}
    assert counted == {one.key.id: (2, 2), other.key.id: (1, 1)}
    assert (after.in_flight, after.total) == (0, 3)
    assert after.last_token is not None
    assert during.written < after.last_token <= after.written


def test_a_request_that_hangs_is_seen_though_nothing_follows_it(tmp_path: Path) -> None:
    folder = tmp_path / "counts"

    async def watch() -> GateCounts:
        held = asyncio.Event()
        gate = make_gate(tmp_path, Engine(), accounting_folder=folder)
        for _ in range(3):
            await ask_async(gate, json=HELLO)
        gate.app = Engine(before_each=held.wait)
        hanging = asyncio.create_task(ask_async(gate, json=HELLO))
        await asyncio.sleep(accounting.WRITE_EVERY_SECONDS + 0.2)
        seen = read_one(folder)
        hanging.cancel()
        return seen

    assert asyncio.run(watch()).in_flight == 1


def test_a_stream_of_tokens_writes_twice_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes: list[int] = []
    monkeypatch.setattr(accounting.Accounting, "_replace", lambda *_: writes.append(1))
    monkeypatch.setattr(accounting, "WRITE_EVERY_SECONDS", 0.1)

    async def pause() -> None:
        await asyncio.sleep(0.001)

    engine = Engine(chunks=(b"x",) * 200, before_each=pause)
    gate = make_gate(tmp_path, engine, accounting_folder=tmp_path / "counts")

    async def stream() -> float:
        started = asyncio.get_running_loop().time()
        await ask_async(gate, json=HELLO)
        return asyncio.get_running_loop().time() - started

    seconds = asyncio.run(stream())
    assert 2 <= len(writes) <= seconds / 0.1 + 2


async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError


async def start_and_break_off(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError


@pytest.mark.parametrize("app", [break_off, start_and_break_off])
def test_an_engine_that_breaks_off_is_counted_once(
    tmp_path: Path, app: Callable[[Scope, Receive, Send], Awaitable[None]]
) -> None:
    gate = make_gate(tmp_path, app, accounting_folder=tmp_path / "counts")

    async def ask_twice() -> None:
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await ask_async(gate, json=HELLO)
        await asyncio.sleep(4 * accounting.WHEN_IDLE_SECONDS)

    asyncio.run(ask_twice())
    counts = read_one(tmp_path / "counts")
    assert (counts.in_flight, counts.total) == (0, 2)


def test_a_cancelled_request_is_counted_once(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), accounting_folder=tmp_path / "counts")

    async def give_up() -> None:
        gate.app = Engine(before_each=asyncio.Event().wait)
        asked = asyncio.create_task(ask_async(gate, json=HELLO))
        await asyncio.sleep(4 * accounting.WHEN_IDLE_SECONDS)
        assert read_one(tmp_path / "counts").in_flight == 1
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        await asyncio.sleep(4 * accounting.WHEN_IDLE_SECONDS)

    asyncio.run(give_up())
    counts = read_one(tmp_path / "counts")
    assert (counts.in_flight, counts.total) == (0, 1)


def test_the_end_of_the_last_request_is_shown_at_once(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), accounting_folder=tmp_path / "counts")

    async def look() -> list[tuple[int, int]]:
        shown = []
        for _ in range(20):
            await ask_async(gate, json=HELLO)
            counts = read_one(tmp_path / "counts")
            shown.append((counts.in_flight, counts.total))
        await asyncio.sleep(4 * accounting.WHEN_IDLE_SECONDS)
        counts = read_one(tmp_path / "counts")
        return [*shown, (counts.in_flight, counts.total)]

    first, *_, last = asyncio.run(look())
    assert (first, last) == ((0, 1), (0, 20))


def test_refusals_and_questions_about_models_are_not_counted(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(), accounting_folder=tmp_path / "counts")
    ask_chat(gate, n=1000)
    ask(gate, "/v1/models")
    ask(gate, "/health")
    assert not (tmp_path / "counts").exists()


def test_an_answer_that_is_an_error_is_no_token(tmp_path: Path) -> None:
    gate = make_gate(tmp_path, Engine(status=500), accounting_folder=tmp_path / "counts")
    ask_chat(gate)
    assert read_one(tmp_path / "counts").last_token is None


def test_a_full_disk_stops_no_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "counts").write_text("not a folder")
    gate = make_gate(tmp_path, Engine(), accounting_folder=tmp_path / "counts")
    assert [ask_chat(gate).status_code for _ in range(2)] == [200, 200]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "what is under way cannot be written down"
    ]


def test_an_answer_to_a_client_that_left_is_no_sign_of_life(tmp_path: Path) -> None:
    folder = tmp_path / "counts"

    async def leave(scope: Scope, receive: Receive, send: Send) -> None:
        """Do as vLLM does: answer with 200 what was cancelled."""
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"null", "more_body": False})

    scope, messages = post(b"{}")
    asyncio.run(call(make_gate(tmp_path, leave, accounting_folder=folder), scope, *messages))
    assert read_one(folder).last_token is None


def test_the_longest_body_under_way_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "counts"
    long = {**HELLO, "user": "x" * 5000}

    async def watch() -> list[int]:
        held = asyncio.Event()
        gate = make_gate(tmp_path, Engine(before_each=held.wait), accounting_folder=folder)
        asked = [asyncio.create_task(ask_async(gate, json=body)) for body in (HELLO, long)]
        await asyncio.sleep(accounting.WRITE_EVERY_SECONDS + 0.2)
        during = read_one(folder).longest_body_bytes
        held.set()
        await asyncio.gather(*asked)
        return [during, read_one(folder).longest_body_bytes]

    during, after = asyncio.run(watch())
    assert during > 5000
    assert after == 0


def test_counts_stay_true_on_a_full_disk(small_disk: Path) -> None:
    folder = small_disk / "counts"
    counting = accounting.Accounting(str(folder))
    counting.write()

    async def watch() -> list[GateCounts]:
        with counting.count("anyone", 7):
            counting.write()
            fill(small_disk)
            seen = [read_one(folder)]
            with counting.count("another", 9):
                counting.see_token()
                counting.write()
                seen.append(read_one(folder))
        counting.write()
        return [*seen, read_one(folder)]

    one, two, none = asyncio.run(watch())
    assert (one.in_flight, two.in_flight, none.in_flight) == (1, 2, 0)
    assert two.last_token is not None
    assert [path.name for path in folder.iterdir()] == [f"{os.getpid()}.json"]
