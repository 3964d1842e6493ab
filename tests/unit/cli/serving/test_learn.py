"""`slipstream learn` as a user types it: a round through the supervisor, its trial, and back."""

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.hardware import Host, load_host
from slipstream.learning.generation import GenerationList, LearningFolder
from slipstream.serving.plugin_settings import steer_engine
from slipstream.serving.run import read_process
from slipstream.serving.supervision import engine_life, learning_job, supervisor
from slipstream.serving.supervision.learning_job import find_learning_folder
from slipstream.serving.supervision.swapping import swapping
from tests.unit.checkpoints.folders import Table, drafter_tensors, write_checkpoint
from tests.unit.checkpoints.pairs import NATIVE, SPECULATORS
from tests.unit.learning.texts import keep as keep_text
from tests.unit.learning.texts import make
from tests.unit.serving.supervision.fake_engine import Stage
from tests.unit.serving.supervision.swapping.test_swapping import Theatre, log_requests

Capture = pytest.CaptureFixture[str]

REPOSITORY = Path(__file__).parents[4]
USUAL, BETTER = [25, 9, 2], [29, 20, 12]
FIGURES = {"before": {"code": 2.0}, "probed": {"code": 2.2}, "after": {"code": 2.4}}
JOB = """
import sys
from pathlib import Path
from tests.unit.learning.stub_job import main
sys.exit(main(Path(__file__).parent, sys.argv[1:]))
"""


class Learning(Theatre):
    """A theatre whose drafters are in the layout that is trained, and whose training is a copy."""

    def __init__(self, folder: Path, host: Host) -> None:
        super().__init__(folder, host)
        here = read_process(os.getpid())
        steered = steer_engine(self.run.plan, steered=True)
        self.stage.event_log.update(supervisor=here, id="one", plan=steered)
        self.stage.environment["PYTHONPATH"] += f"{os.pathsep}{REPOSITORY}"
        self.stage.environment["XDG_STATE_HOME"] = str(folder.parent)
        self.home = LearningFolder(find_learning_folder(self.stage.environment, self.run))
        planted = self.stage.fake
        (planted / "copied_job.py").write_text(JOB)
        (planted / "figures.json").write_text(json.dumps(FIGURES))
        self.make(planted / "drafter")

    def make(self, folder: Path, config: Table = SPECULATORS) -> Path:
        return write_checkpoint(folder, config, tensors=drafter_tensors(NATIVE))

    def has_passed(self) -> bool:
        return self.run.trial is not None and self.run.trial.state == "passed"

    def list_verdicts(self) -> list[str]:
        return [one.verdict for one in self.home.list_generations()]


@pytest.fixture
def theatre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Learning:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(swapping, "LOOK_EVERY_SECONDS", 0.01)
    monkeypatch.setattr(engine_life, "WATCH_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(engine_life, "READ_LOG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "SETTLED_SECONDS", 0.1)
    monkeypatch.setattr(learning_job, "JOB", "copied_job")
    host = load_host("gb10").model_copy(update={"accelerators": ()})
    return Learning(tmp_path / "slipstream", host)


def type_words(*words: str) -> int:
    return run(["learn", "one", *words], {})


def test_a_round_by_hand_is_tried_kept_and_taken_back(
    theatre: Learning, capsys: Capture, tmp_path: Path
) -> None:
    keep_text(theatre.home.text, [make(number) for number in range(120)])
    codes, page = [], tmp_path / "learned.html"

    async def act(stage: Stage) -> None:
        log_requests(stage, 150, USUAL, after=theatre.run.began_at.timestamp())
        for word in ("--dry-run", "--once", "--history"):
            codes.append(await asyncio.to_thread(type_words, word))
        assert codes == [0, 0, 0], capsys.readouterr().err
        assert theatre.run.trial is not None
        assert theatre.list_verdicts() == ["planned", "on trial"]
        log_requests(stage, 150, BETTER, after=time.time())
        await theatre.until(theatre.has_passed)
        codes.append(await asyncio.to_thread(type_words))
        await theatre.until(lambda: theatre.list_verdicts()[1] == "kept")
        for line in ("--back 0", "--stop", "--back 7", f"--history --json --html {page}"):
            codes.append(await asyncio.to_thread(type_words, *line.split()))

    theatre.serve(act)
    assert codes == [0, 0, 0, 0, 0, 0, 1, 0]
    made = str(theatre.home.find_drafter(1))
    assert theatre.client.loaded == [made, str(theatre.old)]
    assert theatre.run.plan.drafter == str(theatre.old)
    told = capsys.readouterr()
    assert "round" in told.out
    assert "code 2.00>2.40" in told.out
    assert "there is no generation 7" in told.err
    listed = GenerationList.model_validate_json(told.out[told.out.rindex("\n{\n") :])
    assert [(one.number, one.parent) for one in listed.generations] == [(0, None), (1, 0)]
    planned, learned = listed.course
    assert (planned.drafter, learned.drafter) == ("generation 0", "generation 1")
    assert (planned.requests, learned.requests) == (150, 150)
    assert planned.tokens_per_step == pytest.approx(64 / 30)
    drawn = page.read_text()
    assert "A generation 0" in drawn
    assert "B generation 1" in drawn
    assert "of 1 generations were kept" in drawn
    assert "learning: generation 1 is offered" in theatre.stage.messages()


def test_a_round_that_wins_nothing_says_so(theatre: Learning, capsys: Capture) -> None:
    figures = {**FIGURES, "probed": {"code": 2.0}}
    (theatre.stage.fake / "figures.json").write_text(json.dumps(figures))
    keep_text(theatre.home.text, [make(number) for number in range(120)])

    async def act(stage: Stage) -> int:
        return await asyncio.to_thread(type_words, "--once", "--json")

    assert theatre.serve(act) == 0
    assert "at its ceiling for this traffic" in json.loads(capsys.readouterr().out)["message"]
    assert theatre.client.loaded == []
    assert theatre.list_verdicts() == ["planned"]


def test_a_round_whose_supervisor_is_killed_is_not_waited_for(
    theatre: Learning, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    began = theatre.stage.fake / "began"
    (theatre.stage.fake / "slow_job.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(60)\n"
    )
    monkeypatch.setattr(learning_job, "JOB", "slow_job")
    child = subprocess.Popen(["sleep", "60"])
    killed = read_process(child.pid)
    child.kill()
    child.wait()

    async def act(stage: Stage) -> int:
        waiting = asyncio.create_task(asyncio.to_thread(type_words, "--once"))
        await theatre.until(began.exists)
        stage.event_log.update(supervisor=killed)
        return await waiting

    assert theatre.serve(act) == 3
    assert "its successor goes on with it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--once", "--stop"), 2),
        (("--window", "1-2"), 2),
        (("--redact", "("), 2),
        (("--once", "--html", "x.html"), 2),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(
    theatre: Learning, words: tuple[str, ...], code: int
) -> None:
    async def act(stage: Stage) -> int:
        return await asyncio.to_thread(type_words, *words)

    assert theatre.serve(act) == code
    assert theatre.run.terms.learning is None
