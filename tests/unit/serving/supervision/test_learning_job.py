"""The supervisor's part in learning: two processes that give way, come back and end with it."""

import asyncio
import json
import os
import signal
from datetime import datetime
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.hardware import Host, load_host
from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.learning import LearningOrder, LearningState, LearningTerms
from slipstream.serving.messages import GateCounts, Readiness
from slipstream.serving.plugin_settings import with_drafter
from slipstream.serving.run import Run, RunFolder, Terms, read_process
from slipstream.serving.served_plan import put_behind_gate
from slipstream.serving.supervision import learning_job
from slipstream.serving.supervision.learning_job import find_learning_folder, require_learnable
from tests.unit.checkpoints.folders import drafter_tensors, write_checkpoint
from tests.unit.checkpoints.pairs import NATIVE
from tests.unit.serving.kept_runs import RUN
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage, until

PROGRAM = """
import json, os, sys, time
from pathlib import Path
mine = Path(os.environ["FAKE"]) / f"{__spec__.name}-{os.getpid()}"
mine.write_text(json.dumps(sys.argv[1:]))
if "--once" in sys.argv:
    sys.exit(0)
while True:
    time.sleep(0.02)
    mine.with_suffix(".beat").write_text(str(time.monotonic()))
"""
WORKS = LearningState(stage="training", message="step 3", works=True, generation=2)
WAITS = LearningState(stage="collecting", message="waits", generation=2)


@pytest.fixture(autouse=True)
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learning_job, "LOOK_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(learning_job, "IDLE_SECONDS", 0.2)
    monkeypatch.setattr(learning_job, "SETTLED_SECONDS", 0.5)
    monkeypatch.setattr(learning_job, "FIRST_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(learning_job, "COLLECTOR", "stub_collector")
    monkeypatch.setattr(learning_job, "JOB", "stub_learner")


@pytest.fixture
def terms(tmp_path: Path) -> LearningTerms:
    return LearningTerms(folder=tmp_path / "pair", redact=("secret",))


@pytest.fixture
def learning(make_stage: MakeStage, terms: LearningTerms) -> Stage:
    return prepare(make_stage(terms=Terms(learning=terms)))


def prepare(stage: Stage) -> Stage:
    for name in ("stub_collector", "stub_learner"):
        (stage.fake / f"{name}.py").write_text(PROGRAM)
    return stage


def find(stage: Stage, name: str) -> list[int]:
    """Return the processes that were started under a name, dead or alive, in their order."""
    files = [one for one in stage.fake.glob(f"{name}-*") if one.suffix != ".beat"]
    in_order = sorted(files, key=lambda file: file.stat().st_mtime_ns)
    return [int(file.name.rpartition("-")[2]) for file in in_order]


def read_words(stage: Stage, name: str) -> list[str]:
    words: list[str] = json.loads((stage.fake / f"{name}-{find(stage, name)[-1]}").read_text())
    return words


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def until_alive(stage: Stage, name: str, count: int = 1) -> int:
    await until(lambda: len(find(stage, name)) >= count, stage.messages)
    return find(stage, name)[-1]


def test_both_processes_begin_with_the_run_and_end_with_it(
    learning: Stage, terms: LearningTerms
) -> None:
    async def act(stage: Stage) -> list[int]:
        await stage.reach("ready")
        return [await until_alive(stage, name) for name in ("stub_collector", "stub_learner")]

    processes = learning.serve(act)
    assert [read_process(pid) for pid in processes] == [None, None]
    text, socket, tokenizer, *patterns = read_words(learning, "stub_collector")
    assert text == f"{terms.folder}/text"
    assert socket == str(learning.folder.kept_socket)
    assert (Path(tokenizer).name, patterns) == ("tokenizer.json", ["secret"])
    assert read_words(learning, "stub_learner") == [str(learning.folder.path), str(terms.folder)]


def test_a_killed_process_comes_back(learning: Stage) -> None:
    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        for name in ("stub_collector", "stub_learner"):
            os.kill(await until_alive(stage, name), signal.SIGKILL)
            await until(lambda: stage.run.notes, stage.messages)
            await until_alive(stage, name, 2)
        await until(lambda: not stage.run.notes, stage.messages)

    learning.serve(act)
    assert len(find(learning, "stub_learner")) == 2


def test_what_computes_stops_at_a_request_and_goes_on_when_there_is_none(learning: Stage) -> None:
    async def act(stage: Stage) -> list[float]:
        await stage.reach("ready")
        gate = await stage.say(GateCounts(pid=1))
        pid = await until_alive(stage, "stub_learner")
        job = await stage.say(WORKS)
        await until(lambda: stage.run.learning == WORKS, stage.messages)
        await asyncio.sleep(0.5)
        assert not is_stopped(pid)
        clock, times = asyncio.get_running_loop().time, []
        for counts in (GateCounts(pid=1, in_flight=1), GateCounts(pid=1, waiting=1)):
            began = clock()
            gate.send(counts)
            await until(lambda: is_stopped(pid), stage.messages)
            times.append(clock() - began)
            gate.send(GateCounts(pid=1))
            await until(lambda: not is_stopped(pid), stage.messages)
        # What only looks and waits goes on beside requests.
        job.send(WAITS)
        gate.send(GateCounts(pid=1, in_flight=1))
        await until(lambda: stage.run.learning == WAITS, stage.messages)
        await asyncio.sleep(0.3)
        assert not is_stopped(pid)
        return times

    assert max(learning.serve(act)) < 1
    assert learning.messages().count("learning: step 3") == 1


def test_nothing_is_computed_outside_the_window_or_while_the_engine_is_not_ready(
    make_stage: MakeStage, terms: LearningTerms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LearningTerms, "may_work", lambda *_: False)
    stage = prepare(make_stage(terms=Terms(learning=terms)))

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        await stage.say(GateCounts(pid=1))
        pid = await until_alive(stage, "stub_learner")
        await stage.say(WORKS)
        await until(lambda: is_stopped(pid), stage.messages)
        monkeypatch.setattr(LearningTerms, "may_work", lambda *_: True)
        await until(lambda: not is_stopped(pid), stage.messages)
        os.kill(stage.pid(), signal.SIGKILL)
        await until(lambda: is_stopped(pid), stage.messages)

    stage.serve(act)
    assert stage.run.learning == WORKS


def test_orders_begin_and_end_it_and_one_round_ends_by_itself(
    make_stage: MakeStage, terms: LearningTerms
) -> None:
    stage = prepare(make_stage())

    async def act(stage: Stage) -> None:
        await stage.reach("ready")
        assert find(stage, "stub_learner") == []
        once = LearningOrder(terms=terms.model_copy(update={"steps": 7}), once=True)
        command = await stage.say(once)
        assert await command.hear(LearningOrder) == once
        await until_alive(stage, "stub_learner")
        await asyncio.sleep(0.3)
        assert find(stage, "stub_collector") == []
        command.send(LearningOrder(terms=terms))
        await until_alive(stage, "stub_learner", 2)
        collector = await until_alive(stage, "stub_collector")
        command.send(LearningOrder(terms=None))
        await until(lambda: read_process(collector) is None, stage.messages)
        await asyncio.sleep(0.2)

    stage.serve(act)
    assert [len(find(stage, name)) for name in ("stub_learner", "stub_collector")] == [2, 1]
    assert stage.run.terms.learning is None
    first = find(stage, "stub_learner")[0]
    words = json.loads((stage.fake / f"stub_learner-{first}").read_text())
    assert words[2:] == ["--steps", "7", "--once"]


def test_the_gate_is_told_the_generation(learning: Stage) -> None:
    async def act(stage: Stage) -> int:
        await stage.reach("ready")
        gate = await stage.say(GateCounts(pid=1))
        await stage.say(WAITS)
        while True:
            heard = await gate.hear(Readiness)
            assert isinstance(heard, Readiness)
            if heard.generation:
                return heard.generation

    assert learning.serve(act) == 2


@pytest.mark.parametrize(
    ("window", "clock", "inside"),
    [
        (None, "12:00", True),
        ("01:00-06:00", "00:59", False),
        ("01:00-06:00", "01:00", True),
        ("01:00-06:00", "06:00", False),
        ("22:30-05:00", "23:00", True),
        ("22:30-05:00", "04:59", True),
        ("22:30-05:00", "12:00", False),
    ],
)
def test_a_window_may_go_past_midnight(window: str | None, clock: str, inside: bool) -> None:
    now = datetime.fromisoformat(f"2026-11-18T{clock}")
    assert LearningTerms(window=window).may_work(now) is inside


@pytest.mark.parametrize(
    "bad", [{"window": "1-6"}, {"window": "25:00-26:00"}, {"redact": ("(",)}, {"steps": 0}]
)
def test_terms_that_make_no_sense_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"window|pattern|steps"):
        LearningTerms.model_validate(bad)


def test_a_pair_has_one_folder_whatever_generation_its_run_began_with(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    folder = find_learning_folder(environment, RUN)
    assert folder.parent == tmp_path / "slipstream" / "learning"
    drafter = folder / "generations" / "00003" / "drafter"
    plan = with_drafter(RUN.plan, drafter, "learnt")
    later = RUN.model_copy(update={"plan": plan})
    assert find_learning_folder(environment, later) == folder


def make_run(tmp_path: Path, host: Host, drafter: Path) -> Run:
    """Return a run whose engine is behind the gate and takes swaps."""
    plan = with_drafter(RUN.plan, drafter, "requested")
    plan = put_behind_gate(plan, RunFolder(tmp_path))
    return RUN.model_copy(update={"plan": plan, "host": host})


def test_only_a_run_that_can_train_and_swap_learns(tmp_path: Path, host: Host) -> None:
    native = write_checkpoint(tmp_path / "old", NATIVE, tensors=drafter_tensors(NATIVE))
    fits = make_run(tmp_path, host, SHIPPED_DRAFTER)
    require_learnable(fits)
    refused = {
        "the gate": fits.model_copy(update={"terms": Terms(gated=False)}),
        "on a GPU": fits.model_copy(update={"host": load_host("gb10")}),
        "speculators' layout": make_run(tmp_path, host, native),
    }
    for words, run in refused.items():
        with pytest.raises(InvalidInputError, match=words) as fault:
            require_learnable(run)
        assert "slipstream " in fault.value.hint
