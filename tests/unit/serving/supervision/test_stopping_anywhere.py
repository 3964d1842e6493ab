"""A run that is asked to stop stops, in whatever state it is: nothing is left, and it says so."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from itertools import groupby

import pytest

from slipstream.serving.run import Terms, read_process
from slipstream.serving.supervision import generation, supervisor
from slipstream.serving.supervision.causes import ladder
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, rule, until
from tests.unit.serving.supervision.test_own_key import stranger_at
from tests.unit.serving.supervision.test_restarts import ILLEGAL
from tests.unit.serving.supervision.test_supervisor import crash, leave_two

pytestmark = pytest.mark.usefixtures("hurried")

Act = Callable[[Stage], Coroutine[None, None, None]]


async def until_said(stage: Stage, words: str) -> None:
    await until(lambda: words in stage.messages(), stage.messages)


async def at_once(stage: Stage) -> None:
    pass


async def while_starting(stage: Stage) -> None:
    await stage.reach("starting")
    await asyncio.sleep(0.2)


async def while_warming(stage: Stage) -> None:
    """Go on with what hung as soon as it drains: the proof would end in the midst of it."""
    (stage.fake / "hang").touch()
    await stage.reach("warming")
    await asyncio.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    await stage.reach("draining")
    (stage.fake / "hang").unlink()
    await stage.reach("stopped")


async def while_proving(stage: Stage) -> None:
    await while_warming(stage)
    assert "warm-up 3" in stage.messages()


async def when_ready(stage: Stage) -> None:
    await stage.reach("ready")


async def while_draining(stage: Stage) -> None:
    await leave_two(stage)
    os.kill(os.getpid(), signal.SIGTERM)
    await stage.reach("draining")


async def between_starts(stage: Stage) -> None:
    await until_said(stage, "restarting in")


async def while_stepping_down(stage: Stage) -> None:
    await until_said(stage, "the plan was reduced")


async def while_somebody_else_has_the_address(stage: Stage) -> None:
    await stage.reach("ready")
    with stranger_at(stage):
        os.kill(stage.pid(), signal.SIGKILL)
        await until_said(stage, "waiting until the address is free")


CRASHES = crash(ILLEGAL)


@pytest.mark.parametrize(
    ("act", "rules", "first_wait", "states"),
    [
        (at_once, (), 0, ["stopping", "stopped"]),
        (while_starting, (rule("stay"),), 0, ["starting", "stopping", "stopped"]),
        (while_warming, (), 0, ["warming", "draining", "stopping", "stopped"]),
        (while_proving, (), 0, ["warming", "draining", "stopping", "stopped"]),
        (when_ready, (), 0, ["ready", "draining", "stopping", "stopped"]),
        (while_draining, (), 0, ["ready", "draining", "stopping", "stopped"]),
        (between_starts, (CRASHES,), 60, ["starting", "stopping", "stopped"]),
        (while_somebody_else_has_the_address, (), 0, ["starting", "stopping", "stopped"]),
        (while_stepping_down, (CRASHES,), 0, ["starting", "stopping", "stopped"]),
    ],
)
def test_a_run_stops_in_every_state(
    make_stage: MakeStage,
    monkeypatch: pytest.MonkeyPatch,
    act: Act,
    rules: tuple[dict[str, object], ...],
    first_wait: int,
    states: list[str],
) -> None:
    monkeypatch.setattr(ladder, "FIRST_WAIT_SECONDS", first_wait)
    monkeypatch.setattr(ladder, "LONGEST_WAIT_SECONDS", first_wait)
    monkeypatch.setattr(supervisor, "SETTLED_SECONDS", 1.0)
    stage = make_stage(*rules, terms=Terms(drain_seconds=20))
    if act is while_proving:  # Only the proof hangs, and not the warm-up.
        stage.environment["HANG"] = str(generation.PROOF_TOKENS)
    began = time.monotonic()
    stage.serve(act)
    assert time.monotonic() - began < 15
    seen = [state for state, _ in groupby(event.state for event in stage.events)]
    assert seen[-len(states) :] == states
    assert stage.folder.read().state == "stopped"
    assert stage.folder.read().engine is None
    assert not stage.starts() or read_process(stage.pid()) is None
