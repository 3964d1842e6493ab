"""Replaces the drafter on the supervisor's order, through the engine client of this process.

Nothing that a client sends leads here.
"""

import logging
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from slipstream.serving.messages import DrafterOrder, DrafterResult
from slipstream.vllm_plugin.gate.answers.metrics import open_metrics

ERROR_CHARACTERS = 500

_log = logging.getLogger(__name__)


async def carry_out(engine: Any, order: DrafterOrder) -> DrafterResult:
    """Load the drafter in all ranks, or have the one before in all of them."""
    result = await _load(engine, order)
    done = "swapped_back" if order.is_return else "swapped"
    open_metrics().swaps.labels(done if result.outcome == "swapped" else "refused").inc()
    _log.warning("slipstream swap %s: %s", result.outcome, result.error or order.folder)
    return result


async def _load(engine: Any, order: DrafterOrder) -> DrafterResult:
    try:
        await _update(engine, order.folder, check_only=True)
    except Exception as fault:  # noqa: BLE001 vLLM hands on whatever a worker raised
        return DrafterResult(order=order.id, outcome="refused", error=_shorten(fault))
    try:
        seconds = await _update(engine, order.folder)
    except Exception as fault:  # noqa: BLE001
        try:
            await _update(engine, order.previous)
        except Exception as second:  # noqa: BLE001
            error = f"{_shorten(fault)}; nor could the drafter before be loaded: {_shorten(second)}"
            return DrafterResult(order=order.id, outcome="broken", error=error)
        return DrafterResult(order=order.id, outcome="failed", error=_shorten(fault))
    return DrafterResult(order=order.id, outcome="swapped", seconds=seconds)


async def _update(engine: Any, folder: Path, *, check_only: bool = False) -> float:
    """Make one update, and return the seconds that its main call took.

    A rank that failed has ended it; the others must be told.
    """
    await engine.start_draft_weight_update()
    info = {"folder": str(folder), "check_only": check_only}
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


def _shorten(fault: Exception) -> str:
    return (str(fault) or type(fault).__name__)[:ERROR_CHARACTERS]
