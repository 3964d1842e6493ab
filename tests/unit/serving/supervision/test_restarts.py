"""What has served is started again, and what never did is given up; a run notes what it lacks."""

import asyncio
import errno
import json
import os
import signal
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.planning.settings import Choice
from slipstream.serving.messages import GateCounts, Readiness
from slipstream.serving.plugin_settings import steer_engine
from slipstream.serving.run import ENGINE_NOTE, RunFolder, read_process
from slipstream.serving.service.systemd import ServiceManager
from slipstream.serving.supervision import engine_life, event_log, supervisor
from slipstream.serving.supervision.engine_life import EngineLife
from slipstream.serving.supervision.generation import Asker
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.supervision.watching import watchdog
from slipstream.serving.supervision.watching.gate_following import GateFollowing
from slipstream.serving.supervision.watching.steering_watch import SteeringWatch
from slipstream.serving.supervision.watching.watchdog import MemoryGuard
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, rule, until
from tests.unit.serving.supervision.test_supervisor import UNKNOWN, crash, until_ready

ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


NO_ROOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 119.56 GiB of which 1.52 GiB is free."
)


SPECULATION = ["--speculative-config"]


pytestmark = pytest.mark.usefixtures("hurried")


def test_illegal_accesses_lead_down_to_plain_decoding(make_stage: MakeStage) -> None:
    stage = make_stage(crash(ILLEGAL, SPECULATION))
    stage.serve(until_ready)
    assert stage.run.rungs == ("eager", "short-drafts", "no-speculation")
    plans = [" ".join(start) for start in stage.starts()]
    assert len(plans) == 3 * 3 + 1
    assert ["--enforce-eager" in plan for plan in plans] == [False] * 3 + [True] * 7
    assert ['tokens": 3' in plan for plan in plans] == [False] * 6 + [True] * 3 + [False]
    assert "--speculative-config" not in plans[-1]
    assert [note for note in stage.run.plan.notes if "was reduced" in note][-1] == (
        "the plan was reduced: no-speculation, after illegal memory accesses"
    )


@pytest.mark.parametrize(
    ("fault", "starts", "rungs", "finding"),
    [
        (crash(NO_ROOM), 6, ("less-memory",), "memory"),
        (crash("api_server.py: error: unrecognized arguments: --warp-speed"), 1, (), "--warp"),
        (rule("start", signal=signal.SIGKILL), 6, ("less-memory",), "SIGKILL"),
        (rule("request", signal=signal.SIGKILL), 6, ("less-memory",), "SIGKILL"),
        (rule("start", signal=signal.SIGILL), 1, (), "lacks an instruction"),
        (crash(UNKNOWN), 6, ("no-speculation",), None),
    ],
)
def test_an_engine_that_never_gets_ready_is_given_up_with_its_cause(
    stage: Stage, fault: dict[str, Any], starts: int, rungs: tuple[str, ...], finding: str | None
) -> None:
    stage.set_rules(fault)
    with pytest.raises(EngineError) as caught:
        stage.serve()
    assert (len(stage.starts()), stage.run.rungs, stage.run.state) == (starts, rungs, "failed")
    if finding is None:
        assert (caught.value.details, caught.value.hint) == ((), "slipstream logs one")
    else:
        assert finding in caught.value.details[0]
    lengths = [start[start.index("--max-model-len") + 1] for start in stage.starts()]
    less = ["8192"] * 3 + ["4096"] * 3
    assert lengths == (less if "less-memory" in rungs else ["8192"] * starts)


BESIDE = [
    (GateFollowing, "look", "the gate's settings cannot be followed"),
    (SteeringWatch, "_follow_plan", "the guardian cannot watch"),
    (RunSocket, "take_order", "the drafter was not swapped"),
    (EngineLife, "_judge", "the engine cannot be checked"),
    (Asker, "probe", "the engine cannot be checked"),
    (MemoryGuard, "look", "the machine's memory cannot be watched"),
    (ServiceManager, "_extend", "the service manager is not notified"),
]


@pytest.mark.parametrize(("owner", "method", "name"), BESIDE)
def test_no_fault_beside_an_engine_ends_it_and_what_failed_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, name: str
) -> None:
    monkeypatch.setattr(event_log, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(event_log, "LONGEST_PAUSE_SECONDS", 0.2)
    monkeypatch.setattr(watchdog, "PROBE_EVERY_SECONDS", 0.1)
    stage.environment["WATCHDOG_USEC"] = "200000"
    times = 0

    def fail(*_: object) -> None:
        nonlocal times
        times += 1
        raise RuntimeError("planted")

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        with monkeypatch.context() as planted:
            planted.setattr(owner, method, fail)
            await until(lambda: times > 2 and name in stage.folder.read().notes)
            await asyncio.sleep(0.5)
        await until(lambda: stage.run.notes == {})

    stage.serve(act)
    assert times < 50, "it backs off"
    assert stage.messages().count(f"{name}: RuntimeError: planted") == 1
    assert (stage.run.restarts, stage.count_starts(), stage.run.state) == (0, 1, "stopped")


@pytest.mark.parametrize("where", ["start_group", "describe_gate", "EngineLife"])
def test_what_has_served_is_started_again_when_that_can_be_done_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        with monkeypatch.context() as planted:
            planted.setattr(supervisor, where, fail)
            os.kill(stage.pid(), signal.SIGKILL)
            await until(lambda: len(tried) > 4)
            assert ENGINE_NOTE in stage.folder.read().notes
        await stage.reach("ready", times=2)

    tried = list[object]()

    def fail(*_: object, **__: object) -> None:
        tried.append(_)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    stage.serve(act)
    assert "the engine cannot be started: [Errno 11] Resource temp" in stage.messages()
    assert (stage.run.rungs, stage.run.state) == ((), "stopped")
    left = [int(json.loads(file.read_text())[0]) for file in stage.fake.glob("start-*")]
    assert [read_process(pid) for pid in left] == [None] * len(left)


def test_an_engine_that_has_served_is_started_for_ever_and_the_run_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def act(stage: Stage) -> list[str]:
        await stage.reach("ready")
        stage.set_rules(crash(UNKNOWN))
        os.kill(stage.pid(), signal.SIGKILL)
        await until(lambda: stage.count_starts() > 12)
        await stage.reach("starting")
        notes = [stage.folder.read().notes[ENGINE_NOTE]]
        stage.set_rules()
        await stage.reach("ready", times=2)
        notes += stage.run.notes.values()
        monkeypatch.setattr(engine_life, "HEALTHY_SECONDS", 0.1)
        await until(lambda: stage.run.notes == {})
        return notes

    crashing, serving = stage.serve(act)
    assert crashing.startswith("the engine keeps ending, ")
    assert serving.startswith("the engine keeps ending, ")
    assert stage.run.rungs == ("no-speculation",)
    assert stage.run.state == "stopped"


@pytest.mark.parametrize(
    ("changes", "is_service", "is_given_up"),
    [
        ({}, True, False),
        ({}, False, True),
        ({"plan_digest": "another"}, True, True),
        ({"measurements": {}}, True, True),
    ],
)
def test_a_service_whose_plan_was_ready_before_is_not_given_up_after_a_boot(
    stage: Stage, changes: dict[str, Any], is_service: bool, is_given_up: bool
) -> None:
    stage.event_log.run = stage.run.model_copy(update={"plan_digest": "same"})
    before = stage.run.model_copy(
        update={"id": "before", "measurements": {"ready_seconds": 9.0}, **changes}
    )
    RunFolder(stage.folder.path.with_name("before")).begin(before)
    if is_service:
        stage.environment["NOTIFY_SOCKET"] = str(stage.fake / "nobody")
    stage.set_rules(crash("api_server.py: error: unrecognized arguments: --warp-speed"))

    async def act(stage: Stage) -> None:
        await until(lambda: stage.count_starts() > 8 or stage.run.state == "failed")

    if is_given_up:
        with pytest.raises(EngineError):
            stage.serve(act)
        assert stage.count_starts() == 1
    else:
        stage.serve(act)
        assert stage.run.state == "stopped"


def test_a_shorter_context_than_planned_is_a_note_of_the_run(make_stage: MakeStage) -> None:
    stage = make_stage(rule("context", "512"))
    plan = stage.run.plan.change(context=Choice(2048, "user", "requested"))
    stage.event_log.run = stage.run.model_copy(update={"plan": plan})

    async def look(stage: Stage) -> dict[str, str]:
        await stage.reach("ready")
        return stage.folder.read().notes

    notes = stage.serve(look)
    assert notes["context"].startswith("the context is 512 tokens, not 2048")


NOT_APPLIED = [
    ("patch cpu-top-k", "not applied: it is not for vLLM 0.33.0"),
    ("patch dflash-v2-copy", "no row is copied: the drafter samples"),
    ("steering", "not applied: source is not the known one"),
    ("patch cpu-top-k", None),
    ("steering", None),
]


@pytest.mark.parametrize(("part", "why"), NOT_APPLIED)
def test_a_part_of_ours_that_was_not_applied_or_says_nothing_is_a_note_of_the_run(
    make_stage: MakeStage, part: str, why: str | None
) -> None:
    words = f"WARNING slipstream {part}: {why}" if why else "calm"
    stage = make_stage(rule("say", words), rule("silent"))
    if why is None:
        patches = {"SLIPSTREAM_PATCHES": Choice("cpu-top-k", "default", "")}
        plan = stage.run.plan
        plan = (
            steer_engine(plan, steered=True)
            if part == "steering"
            else plan.change_variables(patches)
        )
        stage.event_log.run = stage.run.model_copy(update={"plan": plan})

    async def look(stage: Stage) -> tuple[dict[str, str], int]:
        await stage.reach("ready")
        heard = await (await stage.say(GateCounts(pid=1))).hear(Readiness)
        assert isinstance(heard, Readiness)
        return stage.folder.read().notes, heard.notes

    notes, told = stage.serve(look)
    why = why or "not applied: the engine's log does not mention it"
    assert notes[part].startswith(f"slipstream {part}: {why}; ")
    assert (list(notes), told) == ([part], 1)
    assert f"warming: {notes[part]}" in stage.messages()


def test_parts_that_were_applied_are_no_note(make_stage: MakeStage) -> None:
    stage = make_stage()
    patches = {"SLIPSTREAM_PATCHES": Choice("cpu-top-k,cpu-sampling", "default", "")}
    plan = steer_engine(stage.run.plan.change_variables(patches), steered=True)
    stage.event_log.run = stage.run.model_copy(update={"plan": plan})
    stage.serve(until_ready)
    assert stage.run.notes == {}
    assert "SLIPSTREAM_PATCHES" in stage.read_environment()
