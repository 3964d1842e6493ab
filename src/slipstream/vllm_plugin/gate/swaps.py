"""Replaces the drafter on the supervisor's order, through the engine client of this process.

The order is a file that is looked at four times a second, whether or not requests come; what became
of it is written beside it. Nothing that a client sends leads here.
"""

import asyncio
import json
import logging
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from slipstream.vllm_plugin.gate.answers.metrics import open_metrics

LOOK_EVERY_SECONDS = 0.25
RESULT = "swapped.json"
SCHEMA_VERSION = 1
ERROR_CHARACTERS = 500

# Refused: nothing was changed. Failed: the drafter before serves on. Broken: neither is whole.
Outcome = Literal["swapped", "refused", "failed", "broken"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Order:
    """The drafter to load, and the current one."""

    order: str
    folder: str
    previous: str
    is_return: bool


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an order; `seconds` is the time of the loading call and the step before it."""

    order: str
    outcome: Outcome
    seconds: float | None = None
    error: str | None = None


class Swaps:
    """Follows the file of orders while the server runs."""

    def __init__(self, file: str | None) -> None:
        self._file = None if file is None else Path(file)
        self._seen = self._look()
        self._task: asyncio.Task[None] | None = None

    def start(self, scope: Any) -> None:
        """Start to follow the orders, if this run allows swaps."""
        if self._file is not None:
            self._task = asyncio.create_task(self._follow(self._file, scope["app"]))

    def close(self) -> None:
        """Stop following orders."""
        if self._task is not None:
            self._task.cancel()

    async def _follow(self, file: Path, app: Any) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY_SECONDS)
            if (version := self._look()) in (None, self._seen):
                continue
            try:
                order = read_order(file.read_bytes())
            except (OSError, ValueError, TypeError, LookupError) as fault:
                _log.error("slipstream swap: the order cannot be read: %s", fault)
            else:
                result = await carry_out(app.state.engine_client, order)
                _count(result, order)
                await _write(file.with_name(RESULT), result)
            self._seen = version

    def _look(self) -> tuple[int, int, int] | None:
        """Return what tells one order from the next; an order from before the start is none."""
        if self._file is None:
            return None
        try:
            status = self._file.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def read_order(content: bytes) -> Order:
    """Read an order from its file's content."""
    document = json.loads(content)
    if (version := document.pop("schema_version")) != SCHEMA_VERSION:
        raise ValueError(f"schema_version is {version!r}, not {SCHEMA_VERSION}")
    return Order(**document)


async def carry_out(engine: Any, order: Order) -> Result:
    """Load the drafter in all ranks, or have the one before in all of them."""
    try:
        await _update(engine, order.folder, check_only=True)
    except Exception as fault:  # noqa: BLE001 vLLM hands on whatever a worker raised
        return Result(order.order, "refused", error=_shorten(fault))
    try:
        seconds = await _update(engine, order.folder)
    except Exception as fault:  # noqa: BLE001
        try:
            await _update(engine, order.previous)
        except Exception as second:  # noqa: BLE001
            error = f"{_shorten(fault)}; nor could the drafter before be loaded: {_shorten(second)}"
            return Result(order.order, "broken", error=error)
        return Result(order.order, "failed", error=_shorten(fault))
    return Result(order.order, "swapped", seconds)


async def _update(engine: Any, folder: str, *, check_only: bool = False) -> float:
    """Make one update, and return the seconds that its main call took.

    A rank that failed has ended it; the others must be told.
    """
    await engine.start_draft_weight_update()
    info = {"folder": folder, "check_only": check_only}
    began = time.monotonic()
    try:
        await engine.update_weights(SimpleNamespace(update_info=info))
    except BaseException:
        with suppress(Exception):
            await engine.finish_weight_update()
        raise
    seconds = time.monotonic() - began
    await engine.finish_weight_update()
    return seconds


async def _write(path: Path, result: Result) -> None:
    """Write a result for the supervisor, on a full disk as soon as there is room."""
    document = json.dumps({"schema_version": SCHEMA_VERSION, **asdict(result)}).encode()
    partial = path.with_name(f".{path.name}.partial")
    while True:
        try:
            partial.write_bytes(document)
            partial.replace(path)
            return
        except OSError:
            await asyncio.sleep(LOOK_EVERY_SECONDS)


def _count(result: Result, order: Order) -> None:
    done = "swapped_back" if order.is_return else "swapped"
    open_metrics().swaps.labels(done if result.outcome == "swapped" else "refused").inc()
    _log.warning("slipstream swap %s: %s", result.outcome, result.error or order.folder)


def _shorten(fault: Exception) -> str:
    return (str(fault) or type(fault).__name__)[:ERROR_CHARACTERS]
