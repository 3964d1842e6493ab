"""The gate replaces the drafter when the supervisor orders it, and at nobody else's word."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.vllm_plugin.gate import swaps
from slipstream.vllm_plugin.gate.swaps import Order, Swaps, carry_out
from tests.unit.vllm_plugin.gate.pieces import Engine, ask, make_gate

ORDER = Order("o1", "/new", "/old", is_return=False)


class Client:
    """The engine's client; `fault` says which updates fail."""

    def __init__(self, fault: Callable[[dict[str, Any]], bool] = lambda _: False) -> None:
        self.fault = fault
        self.loaded: list[str] = []
        self.calls: list[str] = []

    async def start_draft_weight_update(self) -> None:
        self.calls.append("start")

    async def update_weights(self, request: Any) -> None:
        info = request.update_info
        self.calls.append("check" if info["check_only"] else "load")
        if self.fault(info):
            raise RuntimeError(f"no {info['folder']}")
        if not info["check_only"]:
            self.loaded.append(info["folder"])

    async def finish_weight_update(self) -> None:
        self.calls.append("finish")


def carry(client: Client) -> swaps.Result:
    return asyncio.run(carry_out(client, ORDER))


def test_a_drafter_is_checked_in_all_ranks_before_it_is_loaded() -> None:
    client = Client()
    result = carry(client)
    assert (result.outcome, result.error, client.loaded) == ("swapped", None, ["/new"])
    assert client.calls == ["start", "check", "finish", "start", "load", "finish"]
    assert result.seconds is not None


def test_a_drafter_that_does_not_fit_changes_nothing() -> None:
    client = Client(lambda info: info["folder"] == "/new")
    result = carry(client)
    assert (result.outcome, result.error, client.loaded) == ("refused", "no /new", [])
    # Ranks that did not fail must be out of the update, or the next one could not begin.
    assert client.calls == ["start", "check", "finish"]


def test_a_drafter_that_one_rank_could_not_load_is_taken_back_in_all() -> None:
    client = Client(lambda info: info["folder"] == "/new" and not info["check_only"])
    result = carry(client)
    assert (result.outcome, result.error, client.loaded) == ("failed", "no /new", ["/old"])


def test_two_drafters_that_cannot_be_loaded_are_told() -> None:
    result = carry(Client(lambda info: not info["check_only"]))
    assert result.outcome == "broken"
    assert result.error == "no /new; nor could the drafter before be loaded: no /old"


def write_order(file: Path, order: str, folder: str, **more: Any) -> None:
    document = {
        **{"schema_version": 1, "order": order, "folder": folder, "previous": "/old"},
        **{"is_return": False, **more},
    }
    partial = file.with_name("partial")
    partial.write_text(json.dumps(document))
    partial.rename(file)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swaps, "LOOK_EVERY_SECONDS", 0.01)


def test_orders_are_followed_without_any_request(tmp_path: Path) -> None:
    file, client = tmp_path / "swap.json", Client()
    write_order(file, "from before the start", "/stale")

    async def follow() -> None:
        following = Swaps(str(file))
        following.start({"app": SimpleNamespace(state=SimpleNamespace(engine_client=client))})
        await asyncio.sleep(0.05)
        write_order(file, "o1", "/new")
        await until((tmp_path / swaps.RESULT).exists)
        file.write_text("{")
        await asyncio.sleep(0.05)
        write_order(file, "o2", "/newer", is_return=True)
        await until(lambda: client.loaded[-1] == "/newer")
        await until(lambda: '"o2"' in (tmp_path / swaps.RESULT).read_text())
        following.close()

    asyncio.run(follow())
    assert client.loaded == ["/new", "/newer"]
    result = json.loads((tmp_path / swaps.RESULT).read_text())
    seconds = result.pop("seconds")
    assert seconds >= 0
    assert result == {"schema_version": 1, "order": "o2", "outcome": "swapped", "error": None}


def test_a_result_is_written_when_the_disk_has_room_again(tmp_path: Path) -> None:
    file, client = tmp_path / "swap.json", Client()
    (tmp_path / f".{swaps.RESULT}.partial").mkdir()

    async def follow() -> None:
        following = Swaps(str(file))
        following.start({"app": SimpleNamespace(state=SimpleNamespace(engine_client=client))})
        write_order(file, "o1", "/new")
        await until(lambda: client.loaded == ["/new"])
        assert not (tmp_path / swaps.RESULT).exists()
        (tmp_path / f".{swaps.RESULT}.partial").rmdir()
        await until((tmp_path / swaps.RESULT).exists)
        following.close()

    asyncio.run(follow())
    assert client.loaded == ["/new"]


@pytest.mark.parametrize(
    "path",
    [
        *("/init_weight_transfer_engine", "/start_weight_update", "/start_draft_weight_update"),
        *("/update_weights", "/finish_weight_update", "/pause", "/resume", "/collective_rpc"),
    ],
)
def test_no_client_reaches_a_route_of_weight_transfer(tmp_path: Path, path: str) -> None:
    engine = Engine()
    gate = make_gate(tmp_path, engine, swap_file=tmp_path / "swap.json")
    assert ask(gate, path, json={"update_info": {"folder": "/tmp"}}).status_code == 404
    assert engine.scopes == []
