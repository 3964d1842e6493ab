"""Ranks of a group start, end and step down together, and a new supervisor waits for its turn."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from slipstream.errors import EngineError
from slipstream.hardware import Host
from slipstream.planning.group import Group
from slipstream.planning.settings import Choice
from slipstream.serving.group import link
from slipstream.serving.group.link import GroupLink, HeadOrder, Heartbeat, read_secret, sign
from slipstream.serving.run import read_process
from slipstream.serving.supervision import event_log, follower, peers
from slipstream.serving.supervision.causes import ladder
from slipstream.serving.supervision.follower import Head
from tests.unit.serving.supervision.fake_engine import until
from tests.unit.serving.supervision.group_stage import GroupStage
from tests.unit.serving.supervision.test_restarts import ILLEGAL
from tests.unit.serving.supervision.test_supervisor import crash

UNKNOWN_FLAG = "api_server.py: error: unrecognized arguments: --no-such-flag"


@pytest.fixture
def stage(tmp_path: Path, host: Host) -> GroupStage:
    return GroupStage(tmp_path, host)


@pytest.fixture(autouse=True)
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(follower, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(link, "BEAT_EVERY_SECONDS", 0.05)


def test_the_follower_is_ready_when_the_head_has_proven_a_generation(stage: GroupStage) -> None:

    async def look(stage: GroupStage) -> None:
        await stage.reach_ready()
        assert stage.follower.run.url is None

    stage.serve(look)
    states = list(dict.fromkeys(event.state for event in stage.follower.events))
    assert states == ["starting", "warming", "ready", "stopping", "stopped"], stage.messages()
    assert stage.head.run.state == "stopped"
    (argv,) = stage.follower.starts()
    assert "--headless" in argv
    assert "--port" not in argv
    for rank in (stage.head, stage.follower):
        assert read_process(rank.pid()) is None


@pytest.mark.parametrize("dies", ["head", "follower"])
def test_when_one_engine_dies_both_start_again(stage: GroupStage, dies: str) -> None:
    first = []

    async def kill(stage: GroupStage) -> None:
        await stage.reach_ready()
        first.extend([stage.head.pid(), stage.follower.pid()])
        os.kill(getattr(stage, dies).pid(), signal.SIGKILL)
        await stage.reach_ready(times=2)
        assert [read_process(pid) for pid in first] == [None, None]

    stage.serve(kill)
    assert stage.head.count_starts() == stage.follower.count_starts() == 2, stage.messages()
    assert stage.head.run.rungs == ()
    assert (stage.head.run.restarts, stage.follower.run.restarts) == (1, 1)
    if dies == "follower":
        assert "rank 1 (two, 127.0.0.2): the engine ended by itself" in stage.head.messages()


@pytest.mark.parametrize(
    ("owner", "method", "name", "side"),
    [
        (peers.Followers, "_look", peers.UNWATCHED, "head"),
        (Head, "_hear", peers.UNWATCHED, "follower"),
        (peers, "HeadOrder", "the other ranks get no reports", "head"),
    ],
)
def test_no_fault_of_the_link_ends_a_group_and_it_goes_on(
    stage: GroupStage,
    monkeypatch: pytest.MonkeyPatch,
    owner: object,
    method: str,
    name: str,
    side: str,
) -> None:
    monkeypatch.setattr(event_log, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(event_log, "LONGEST_PAUSE_SECONDS", 0.1)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("planted")

    async def act(stage: GroupStage) -> None:
        await stage.reach_ready()
        with monkeypatch.context() as planted:
            planted.setattr(owner, method, fail)
            await until(lambda: name in getattr(stage, side).run.notes)
            await asyncio.sleep(0.3)
        await until(lambda: stage.head.run.notes == stage.follower.run.notes == {})

    stage.serve(act)
    assert [one.run.restarts for one in (stage.head, stage.follower)] == [0, 0]


def test_when_the_link_is_cut_both_sides_end_and_start_again_once_it_is_back(
    stage: GroupStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "SILENT_AFTER_SECONDS", 2.0)
    cut = asyncio.Event()
    send = GroupLink._send
    monkeypatch.setattr(GroupLink, "_send", lambda *words: None if cut.is_set() else send(*words))

    async def cut_for_a_while(stage: GroupStage) -> None:
        await stage.reach_ready()
        cut.set()
        ranks = (stage.head, stage.follower)
        starts = [rank.count_starts() for rank in ranks]
        while any(read_process(rank.pid()) for rank in ranks):
            await asyncio.sleep(0.02)
        assert [rank.count_starts() for rank in ranks] == starts
        cut.clear()
        await stage.reach_ready(times=stage.head.count("ready") + 1)

    stage.serve(cut_for_a_while)
    assert "no report from rank 1 (two, 127.0.0.2)" in stage.head.messages()
    assert "no report from rank 0 (one, 127.0.0.1)" in stage.follower.messages()
    assert stage.head.run.rungs == ()


def test_the_head_decides_the_ladder_by_what_the_follower_found(
    stage: GroupStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "CRASHES_PER_PLAN", 1)
    stage.follower.set_rules(crash(ILLEGAL, ["--speculative-config"]))

    async def ready(stage: GroupStage) -> None:
        await stage.reach_ready()

    stage.serve(ready)
    assert stage.head.run.rungs == ("eager", "short-drafts", "no-speculation"), stage.messages()
    assert stage.follower.run.rungs == stage.head.run.rungs
    for rank in (stage.head, stage.follower):
        assert "--enforce-eager" in rank.run.argv
        assert "--speculative-config" not in " ".join(rank.run.argv)


def test_a_setting_that_one_rank_refuses_ends_the_group(stage: GroupStage) -> None:
    stage.follower.set_rules(crash(UNKNOWN_FLAG))

    async def fail(stage: GroupStage) -> None:
        await stage.head.reach("failed")
        await stage.follower.reach("failed")

    stage.serve(fail)
    assert all(isinstance(fault, EngineError) for fault in stage.faults)
    assert "has given up" in str(stage.faults[1])
    assert stage.follower.count_starts() == 1, stage.messages()


def test_the_head_waits_for_a_rank_that_left(stage: GroupStage) -> None:

    async def leave_and_come_back(stage: GroupStage) -> None:
        await stage.reach_ready()
        pid, waits = stage.head.pid(), "it starts when the others are running: rank 1"
        before = stage.head.messages().count(waits)
        await stage.leave()
        while stage.head.messages().count(waits) == before:
            await asyncio.sleep(0.02)
        assert read_process(pid) is None
        stage.begin_following()
        await stage.reach_ready(times=2)

    stage.serve(leave_and_come_back)
    assert "rank 1 (two, 127.0.0.2): a stop was requested" in stage.head.messages()
    assert stage.head.run.rungs == ()


class Orders:
    """A head's orders, handed to a follower that has no socket."""

    def __init__(self, head: Head, group: Group) -> None:
        self._head, self._group, self._number = head, group, 0

    def give(self, generation: int, *, runs: bool, session: str = "a" * 32) -> None:
        self._number += 1
        order = HeadOrder(generation=generation, runs=runs, state="starting")
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
    stage: GroupStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "LOOK_EVERY_SECONDS", 0.001)
    group = stage.follower.run.plan.group
    assert group is not None
    head = Head(stage.follower.event_log, group)
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


def test_a_successor_takes_only_the_rungs_that_are_not_behind_it(stage: GroupStage) -> None:
    rank = stage.follower
    group = rank.run.plan.group
    assert group is not None
    halved = rank.run.plan.change(context=Choice(4096, "measured", "less-memory"))
    rank.event_log.update(plan=halved, rungs=("less-memory",))
    head = Head(rank.event_log, group)
    head._take_rungs(("less-memory", "eager"))
    assert rank.run.plan.context == 4096
    assert "--enforce-eager" in rank.run.plan.argv()
    assert rank.run.rungs == ("less-memory", "eager")
    with pytest.raises(EngineError, match="has stepped down"):
        head._take_rungs(())
