"""The gate replaces the drafter when the supervisor orders it, and at nobody else's word."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from slipstream.serving.messages import DrafterOrder, DrafterResult
from slipstream.vllm_plugin.gate.run_link import carry_out

ORDER = DrafterOrder(folder=Path("/new"), previous=Path("/old"), is_return=False)


class Client:
    """The engine's client; `fault` says which updates fail."""

    def __init__(self, fault: Callable[[dict[str, Any]], bool] = lambda _: False) -> None:
        self.fault = fault
        self.loaded: list[str] = []
        self.calls: list[str] = []
        self.before_load: Callable[[dict[str, Any]], Awaitable[None]] | None = None

    async def start_draft_weight_update(self) -> None:
        self.calls.append("start")

    async def update_weights(self, request: Any) -> None:
        info = request.update_info
        self.calls.append("check" if info["check_only"] else "load")
        if self.before_load is not None and not info["check_only"]:
            await self.before_load(info)
        if self.fault(info):
            raise RuntimeError(f"no {info['folder']}")
        if not info["check_only"]:
            self.loaded.append(info["folder"])

    async def finish_weight_update(self) -> None:
        self.calls.append("finish")


def carry(client: Client) -> DrafterResult:
    return asyncio.run(carry_out(client, ORDER))


def test_a_drafter_is_checked_in_all_ranks_before_it_is_loaded() -> None:
    client = Client()
    result = carry(client)
    assert (result.order, result.outcome, result.error) == (ORDER.id, "swapped", None)
    assert client.loaded == ["/new"]
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
    assert result.error == "no /new; nor was the previous drafter loaded: no /old"
