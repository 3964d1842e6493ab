"""A run is ready only after it has shown it, comes back after a fault, and ends in order."""

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from slipstream.errors import EngineError, InvalidInputError
from slipstream.planning.settings import Choice, Speculation
from slipstream.serving.access.addresses import Address
from slipstream.serving.messages import GateCounts, Readiness
from slipstream.serving.run import Terms, is_alive, read_process
from slipstream.serving.service import systemd
from slipstream.serving.supervision import engine_life, engine_process, supervisor
from slipstream.serving.supervision.watching import watchdog
from slipstream.serving.support.examination import diagnose_run
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, rule

UNKNOWN = "RuntimeError: never seen before"


pytestmark = pytest.mark.usefixtures("hurried")


def crash(words: str, needs: list[str] | None = None) -> dict[str, Any]:
    return rule("start", words, needs)


async def until_ready(stage: Stage) -> None:
    await stage.reach("ready")


async def leave_two(stage: Stage) -> None:
    await stage.reach("ready")
    gate = await stage.say(GateCounts(pid=1, in_flight=2, total=2))
    assert await gate.hear(Readiness) == Readiness(state="ready")


def test_ready_is_said_after_a_generation_with_accepted_drafts(stage: Stage) -> None:
    alive = list[bool]()

    async def look(stage: Stage) -> None:
        await stage.reach("ready")
        engine = stage.folder.read().engine
        alive.append(engine is not None and is_alive(engine))

    stage.serve(look)
    assert (alive, stage.run.engine) == ([True], None)
    states = list(dict.fromkeys(event.state for event in stage.events))
    assert states == ["starting", "warming", "ready", "draining", "stopping", "stopped"]
    told = stage.run.measurements
    assert told["tokens_per_step"] == 2
    assert told["tokens_per_second"] > 0
    assert told["warm_up_requests"] >= 6
    assert stage.folder.read() == stage.run
    assert tuple(stage.folder.read_events()) == tuple(stage.events)
    assert read_process(stage.pid()) is None


def test_the_gate_is_told_every_state_and_its_settings_hold_no_key(make_stage: MakeStage) -> None:
    stage, states = make_stage(), list[str]()

    async def listen(stage: Stage) -> None:
        await stage.reach("warming")
        gate = await stage.say(GateCounts(pid=1))
        while not states or states[-1] != "draining":
            heard = await gate.hear(Readiness)
            assert isinstance(heard, Readiness)
            states.append(heard.state)
            if heard.state == "ready":
                os.kill(os.getpid(), signal.SIGTERM)

    stage.serve(listen)
    assert states == ["warming", "ready", "draining"]
    assert '"probe_sha256"' in stage.folder.gate.read_text()
    assert not stage.folder.socket.exists()


def test_a_drafter_that_is_never_accepted_is_left_out(make_stage: MakeStage) -> None:
    stage = make_stage(rule("drafts"))
    stage.serve(until_ready)
    assert stage.run.rungs == ("no-speculation",)
    assert stage.run.plan.drafter is None
    assert len(stage.starts()) == 2
    assert "drafts of which none was accepted" in stage.messages()


@pytest.mark.parametrize(("steered", "rungs"), [(True, ()), (False, ("no-speculation",))])
def test_drafts_that_steering_left_out_are_no_fault_of_the_drafter(
    make_stage: MakeStage, steered: bool, rungs: tuple[str, ...]
) -> None:
    stage = make_stage(rule("undrafted", "", []), terms=Terms(steered=steered))
    stage.serve(until_ready)
    assert stage.run.rungs == rungs


def test_a_restart_waits_for_the_address_of_an_engine_that_never_served(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, asked = make_stage(crash(UNKNOWN)), []
    free = Address.require_free

    def require_free(address: Address) -> None:
        asked.append(address)
        if len(asked) == 2:
            raise InvalidInputError("Address already in use", hint="wait")
        free(address)

    monkeypatch.setattr(Address, "require_free", require_free)
    monkeypatch.setattr(supervisor, "ADDRESS_WAIT_SECONDS", 0.01)

    async def repair(stage: Stage) -> None:
        while len(asked) < 2:
            await asyncio.sleep(0.01)
        stage.set_rules()
        await stage.reach("ready")

    stage.serve(repair)
    assert "waiting until the address is free: Address already in use" in stage.messages()
    assert stage.run.state == "stopped"


def test_text_that_does_not_repeat_is_no_fault_of_ngrams(make_stage: MakeStage) -> None:
    stage = make_stage(rule("drafts"))
    ngram = Speculation(method=Choice("ngram", "user", "requested"))
    plan = stage.run.plan.change(speculation=ngram)
    stage.event_log.run = stage.run.model_copy(update={"plan": plan})
    stage.serve(until_ready)
    assert stage.run.rungs == ()
    assert len(stage.starts()) == 1


def test_a_few_failed_health_checks_do_not_end_an_engine(stage: Stage) -> None:

    async def fail_for_a_moment(stage: Stage) -> None:
        await stage.reach("ready")
        (stage.fake / "sick").touch()
        while len(stage.read_failed_checks()) < 2 * engine_life.FAILED_HEALTH_CHECKS:
            await asyncio.sleep(0.01)
        (stage.fake / "sick").unlink()
        await asyncio.sleep(0.2)

    stage.serve(fail_for_a_moment)
    assert stage.run.restarts == 0
    assert stage.count("ready") == 1


def test_an_engine_whose_health_check_keeps_failing_is_replaced(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_life, "HEALTH_FAILING_SECONDS", 0.5)

    async def fail_for_good(stage: Stage) -> None:
        await stage.reach("ready")
        (stage.fake / "sick").touch()
        await stage.reach("starting", times=2)
        (stage.fake / "sick").unlink()
        await stage.reach("ready", times=2)

    stage.serve(fail_for_good)
    assert stage.run.restarts == 1
    assert "the health check failed" in stage.messages()


def test_a_silent_death_by_a_signal_is_told_and_diagnosed(make_stage: MakeStage) -> None:
    stage = make_stage(rule("start", signal=signal.SIGKILL))
    with pytest.raises(EngineError) as caught:
        stage.serve()
    assert "the engine ended by itself with signal 9" in stage.messages()
    assert "dmesg" in caught.value.hint
    assert [finding.signature for finding in diagnose_run(stage.folder).findings] == ["killed"]


@pytest.mark.parametrize("stuck_after", [1.2, 60.0])
def test_an_engine_that_hangs_is_unready_and_replaced_unless_it_recovers(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, stuck_after: float
) -> None:
    for name, seconds in (
        ("READY_WITHIN_SECONDS", 0.6),
        ("STUCK_AFTER_SECONDS", stuck_after),
        ("PROBE_EVERY_SECONDS", 0.2),
        ("UNKNOWN_PREFILL_TOKENS_PER_S", 1e9),
    ):
        monkeypatch.setattr(watchdog, name, seconds)
    monkeypatch.setattr("slipstream.serving.supervision.generation.PROBE_SECONDS", 0.1)
    is_replaced = stuck_after < 60

    async def hang(stage: Stage) -> None:
        await stage.reach("ready")
        (stage.fake / "hang").touch()
        await stage.reach("warming", times=2)
        if is_replaced:
            await stage.reach("starting", times=2)
        (stage.fake / "hang").unlink()
        await stage.reach("ready", times=2)

    stage.serve(hang)
    assert stage.run.restarts == is_replaced
    assert "failed probes" in stage.messages()


def test_a_second_signal_cuts_the_grace_short(make_stage: MakeStage) -> None:
    stage = make_stage(rule("deaf"))

    async def stop_twice(stage: Stage) -> None:
        await stage.reach("ready")
        os.kill(os.getpid(), signal.SIGTERM)
        await stage.reach("stopping")

    began = time.monotonic()
    stage.serve(stop_twice)
    assert time.monotonic() - began < engine_process.GRACE_SECONDS
    assert read_process(stage.pid()) is None


def test_a_start_that_is_stopped_leaves_nothing_and_gets_little_grace(
    make_stage: MakeStage,
) -> None:
    stage = make_stage(rule("deaf"), rule("say", "deaf now"), rule("stay"))

    async def until_deaf(stage: Stage) -> None:
        while not (log := stage.folder.engine_log).exists() or "deaf now" not in log.read_text():
            await asyncio.sleep(0.01)

    began = time.monotonic()
    stage.serve(until_deaf)
    assert time.monotonic() - began < engine_process.GRACE_SECONDS / 2
    assert [event.state for event in stage.events][-2:] == ["stopping", "stopped"]
    assert read_process(stage.pid()) is None


def test_requests_under_way_are_waited_for_and_then_cut_off(make_stage: MakeStage) -> None:
    stage = make_stage(terms=Terms(drain_seconds=1))
    stage.serve(leave_two)
    (drained,) = [event for event in stage.events if event.state == "stopping"]
    assert drained.message.startswith("2 requests were cut off")
    began = next(event for event in stage.events if event.state == "draining")
    assert (drained.at - began.at).total_seconds() >= 1


def test_a_deaf_engine_ends_within_the_time_that_systemd_gives(
    make_stage: MakeStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "GRACE_SECONDS", 1)
    monkeypatch.setattr(systemd, "GRACE_SECONDS", 1)
    monkeypatch.setattr(systemd, "STOP_MARGIN_SECONDS", 5)
    stage = make_stage(rule("deaf"), terms=Terms(drain_seconds=1))
    stage.serve(leave_two)
    began = next(event.at for event in stage.events if event.state == "draining")
    took = (stage.events[-1].at - began).total_seconds()
    assert 2 <= took <= systemd.count_stop_seconds(1)
