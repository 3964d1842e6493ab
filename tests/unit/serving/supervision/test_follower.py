"""A rank starts the generation after one that it saw ended, and no other."""

import asyncio
from pathlib import Path

import pytest

from slipstream.errors import EngineError
from slipstream.hardware import load_host
from slipstream.planning.group import Group
from slipstream.planning.settings import Choice
from slipstream.serving.group.heartbeats import Heartbeat, Order, read_secret, sign
from slipstream.serving.supervision import follower
from slipstream.serving.supervision.follower import Head
from tests.unit.serving.supervision.group_stage import GroupStage


class Orders:
    """A head's orders, handed to a follower that has no socket."""

    def __init__(self, head: Head, group: Group) -> None:
        self._head, self._group, self._number = head, group, 0

    def give(self, generation: int, *, runs: bool, session: str = "a" * 32) -> None:
        self._number += 1
        order = Order(generation=generation, runs=runs, state="starting")
        beat = Heartbeat(
            group=self._group.name,
            sender=0,
            receiver=1,
            session=session,
            echo=self._head._link.session,
            number=self._number,
            body=order,
        )
        secret = read_secret(Path(self._group.secret_file))
        self._head._link.datagram_received(sign(beat, secret), ("127.0.0.1", 1))


def test_a_new_supervisor_waits_for_the_next_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LOOK_EVERY_SECONDS", 0.001)
    stage = GroupStage(tmp_path, load_host("gb10")).follower
    group = stage.run.plan.group
    assert group is not None
    head = Head(stage.chronicle, group)
    orders = Orders(head, group)

    async def starts() -> bool:
        """Say whether the orders up to now start an engine."""
        assembling = asyncio.create_task(head.assemble(asyncio.Event()))
        done, _ = await asyncio.wait((assembling,), timeout=0.1)
        assembling.cancel()
        return bool(done)

    async def follow() -> list[bool]:
        seen = []
        for generation, runs in ((3, True), (3, False), (5, True), (4, True), (4, True)):
            orders.give(generation, runs=runs)
            seen.append(await starts())
        orders.give(4, runs=False)
        seen.append(await starts())
        orders.give(5, runs=True, session="b" * 32)
        seen.append(await starts())
        return seen

    # Only 4 follows what was ended, once; another head has ended nothing yet.
    assert asyncio.run(follow()) == [False, False, False, True, False, False, False]


def test_a_successor_takes_only_the_rungs_that_are_not_behind_it(tmp_path: Path) -> None:
    stage = GroupStage(tmp_path, load_host("gb10")).follower
    group = stage.run.plan.group
    assert group is not None
    halved = stage.run.plan.change(context=Choice(4096, "measured", "less-memory"))
    stage.chronicle.update(plan=halved, rungs=("less-memory",))
    head = Head(stage.chronicle, group)
    head._take_rungs(("less-memory", "eager"))
    assert stage.run.plan.context == 4096
    assert "--enforce-eager" in stage.run.plan.argv()
    assert stage.run.rungs == ("less-memory", "eager")
    with pytest.raises(EngineError, match="has stepped down"):
        head._take_rungs(())
