"""An engine that served comes back, whatever clients wrote into its log before it died."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from slipstream.serving.kept_logs import find_place
from slipstream.serving.supervision import engine_life, engine_process
from slipstream.serving.supervision.causes import ladder
from slipstream.serving.supervision.causes.diagnosis import diagnose, diagnose_file
from slipstream.serving.supervision.causes.ladder import classify
from slipstream.serving.support.examination import diagnose_run
from tests.unit.hardware.test_cgroup import lay_out
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, rule
from tests.unit.serving.supervision.test_restarts import ILLEGAL, NO_ROOM

pytestmark = pytest.mark.usefixtures("hurried")

MODELS = (
    "Illegal instruction",
    "Bus error",
    "[Errno 28] No space left on device",
    "CUDA error: an illegal memory access was encountered",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
)
FINAL = "api_server.py: error: unrecognized arguments: --warp-speed"
REFUSED = "api_server.py: error: argument --block-size: invalid int value: 'x'"


def ask_for(stage: Stage, *models: str) -> list[int]:
    bodies = [{"model": model, "prompt": "Once", "max_tokens": 1} for model in models]
    with httpx.Client(base_url=stage.run.url or "", verify=False) as client:
        return [client.post("/v1/completions", json=body).status_code for body in bodies]


async def die_once(stage: Stage, before: Callable[[], object] = lambda: None) -> None:
    await stage.reach("ready")
    before()
    os.kill(stage.pid(), signal.SIGKILL)
    await stage.reach("ready", times=2)


def test_the_name_of_a_model_that_was_asked_for_is_not_why_an_engine_died(stage: Stage) -> None:
    answers = list[int]()
    stage.serve(lambda _: die_once(stage, lambda: answers.extend(ask_for(stage, *MODELS))))
    assert answers == [404] * len(MODELS)
    log = stage.folder.path / "engine-1.log"
    assert all(model in log.read_text() for model in MODELS)
    assert (stage.run.restarts, stage.run.rungs, stage.run.state) == (1, (), "stopped")
    assert stage.starts()[0] == stage.starts()[1]
    assert "ended from outside with SIGKILL" in stage.messages()
    assert "AVX2" not in stage.messages()
    for codes in (-9, 1, None):
        found = {finding.signature for finding in diagnose_file(log, exit_code=codes)}
        assert found <= {"killed"}


def test_doctor_tells_the_signal_and_not_a_models_name(stage: Stage) -> None:

    async def die_and_stop(stage: Stage) -> None:
        await stage.reach("ready")
        ask_for(stage, *MODELS)
        os.kill(os.getpid(), signal.SIGTERM)
        await stage.reach("draining")
        os.kill(stage.pid(), signal.SIGSEGV)

    stage.serve(die_and_stop)
    diagnosis = diagnose_run(stage.folder)
    assert all(model in stage.folder.engine_log.read_text() for model in MODELS)
    assert {finding.signature for finding in diagnosis.findings} <= {"segmentation-fault"}
    assert not any(model in word for model in MODELS for word in diagnosis.last_lines)


@pytest.mark.parametrize(("log_bytes", "part"), [(engine_process.LOG_BYTES, ""), (200, ".1")])
def test_what_was_logged_in_good_health_is_not_why_an_engine_died_even_after_a_rotation(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch, log_bytes: int, part: str
) -> None:
    monkeypatch.setattr(engine_process, "LOG_BYTES", log_bytes)
    stage = make_stage(rule("say", FINAL))
    stage.serve(lambda _: die_once(stage, lambda: ask_for(stage, MODELS[0])))
    assert stage.run.restarts == 1
    assert FINAL in (stage.folder.path / f"engine-1.log{part}").read_text()
    assert MODELS[0] in (stage.folder.path / "engine-1.log").read_text()
    assert "does not know --warp-speed" not in stage.messages()


def test_an_engine_that_served_is_started_again_even_after_what_is_final_at_a_start(
    stage: Stage,
) -> None:

    async def fail_later(stage: Stage) -> None:
        await stage.reach("ready")
        stage.set_rules(rule("start", FINAL))
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.reach("starting", times=2)
        while stage.count_starts() < 3:
            await asyncio.sleep(0.01)
        stage.set_rules()
        await stage.reach("ready", times=2)

    stage.serve(fail_later)
    assert stage.run.restarts >= 2
    assert stage.run.state == "stopped"


@pytest.mark.parametrize(
    ("log", "cause", "after_serving"),
    [
        (FINAL, "configuration", "unknown"),
        (REFUSED, "configuration", "unknown"),
        ("Fatal Python error: Illegal instruction", "configuration", "unknown"),
        (ILLEGAL, "illegal-access", "illegal-access"),
        (NO_ROOM, "out-of-memory", "out-of-memory"),
        ("RuntimeError: never seen before", "unknown", "unknown"),
        ("", "unknown", "unknown"),
    ],
)
def test_the_first_cause_in_a_log_decides_and_forbids_no_restart_of_an_engine_that_served(
    log: str, cause: str, after_serving: str
) -> None:
    assert classify(diagnose(log)) == cause
    assert classify(diagnose(log), has_served=True) == after_serving


CORE_DIED = """\
(APIServer pid=9) ERROR 11-18 03:00:00 [core_client.py:700] Engine core proc EngineCore_0 died \
unexpectedly, shutting down client.
vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above)\
 for the root cause."""


@pytest.mark.parametrize(
    ("kills", "sickens", "rungs"),
    [
        (1, False, ("less-memory",)),
        (1, True, ("less-memory",)),
        (0, False, ("no-speculation",)),
    ],
)
def test_a_core_that_the_kernel_killed_ran_out_of_memory(
    stage: Stage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kills: int,
    sickens: bool,
    rungs: tuple[str, ...],
) -> None:
    """The API server that is left says that it died, and no more, or nothing at all."""
    monkeypatch.setattr(ladder, "CRASHES_PER_PLAN", 1)
    monkeypatch.setattr(engine_life, "HEALTH_FAILING_SECONDS", 0.2)
    monkeypatch.setattr(engine_life, "_ROOT", lay_out(tmp_path / "root", {}))
    events = tmp_path / "root/sys/fs/cgroup/memory.events"
    events.parent.mkdir(parents=True)
    events.write_text("oom 7\noom_kill 7\n")

    async def kill_core(stage: Stage) -> None:
        await stage.reach("ready")
        await asyncio.sleep(0.2)  # Some looks, by which an earlier kill is long over.
        events.write_text(f"oom {7 + kills}\noom_kill {7 + kills}\n")
        if sickens:
            (stage.fake / "sick").touch()
        else:
            (stage.fake / "end").write_text(CORE_DIED)
        await stage.reach("starting", times=2)
        (stage.fake / "sick").unlink(missing_ok=True)
        await stage.reach("ready", times=2)

    stage.serve(kill_core)
    assert stage.run.rungs == rungs
    for told in ("the kernel killed 1 processes here: memory ran out", "outside with SIGKILL"):
        assert (told in stage.messages()) == bool(kills)


def test_an_engine_that_one_signal_ended_was_not_ended_by_another() -> None:
    log = "Fatal Python error: Illegal instruction\n"
    assert [one.signature for one in diagnose(log, exit_code=-9)] == ["killed"]
    assert [one.signature for one in diagnose(log, exit_code=137)] == ["killed"]
    assert [one.signature for one in diagnose(log, exit_code=-4)] == ["instruction-unknown"]
    assert [one.signature for one in diagnose(log, exit_code=1)] == ["instruction-unknown"]


def test_a_log_that_was_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("calm\n" * 2000)
    before = find_place(log)
    log.write_text("")
    begun = find_place(log)
    log.write_text(f"{ILLEGAL}\n")
    assert diagnose_file(log, healthy=before)
    assert diagnose_file(log, healthy=begun)
    assert diagnose_file(log, healthy=find_place(log)) == ()
    log.write_text(f"{ILLEGAL}\n" + "calm\n" * 3000)
    assert diagnose_file(log, healthy=before), "it is as long again, and another"
