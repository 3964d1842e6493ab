"""The job as a process: what a round comes to, and that no kill leaves anything half."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slipstream.learning.candidate import read_work
from slipstream.learning.generation import LearningFolder, Progress
from slipstream.learning.kept_text import read_kept
from slipstream.serving.run import Run, RunFolder
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    drafter_tensors,
    write_checkpoint,
)
from tests.unit.checkpoints.pairs import NATIVE
from tests.unit.learning.texts import keep as keep_text
from tests.unit.learning.texts import make
from tests.unit.serving.kept_runs import keep as keep_run
from tests.unit.steering.lines import write as write_line

REPOSITORY = Path(__file__).parents[3]
BETTER = {
    "before": {"code": 2.0, "prose": 1.5},
    "probed": {"code": 2.2, "prose": 1.5},
    "after": {"code": 2.4, "prose": 1.5},
}
PLACES = (
    *("before-add", "after-add", "before-begin_work", "after-begin_work", "probe", "train"),
    *("half-copied", "before-write_progress", "after-write_progress", "before-end_work"),
)


class Pair:
    """A run on disk, the folder of its pair, and the jobs that are started for it."""

    def __init__(self, root: Path) -> None:
        target = write_checkpoint(
            root / "target", LLAMA, tensors=LLAMA_TENSORS, tokenizer=TOKENIZER
        )
        self.first = write_checkpoint(root / "first", NATIVE, tensors=drafter_tensors(NATIVE))
        self.folder, run = keep_run(root / "runs")
        self.run = self._serve(run, target)
        self.home = LearningFolder(root / "pair")
        keep_text(self.home.text, [make(number) for number in range(120)])
        kinds = ["code", "code", "code", "code", "prose"] * 10
        lines = (write_line(at=1e9 + at, kind=kind) for at, kind in enumerate(kinds))
        self.folder.ledger.write_bytes(b"".join(lines))
        self.planted = root / "planted"
        self.planted.mkdir()
        write_checkpoint(self.planted / "drafter", NATIVE, tensors=drafter_tensors(NATIVE))
        self.say(BETTER)

    def _serve(self, run: Run, target: Path) -> Run:
        speculation = run.plan.speculation
        assert speculation is not None
        drafter = speculation.drafter
        assert drafter is not None
        here = drafter.__class__(str(self.first), "user", "requested")
        plan = run.plan.change(
            model=run.plan.settings.model.__class__(str(target), "user", "requested"),
            revision=None,
            speculation=speculation.model_copy(update={"drafter": here, "revision": None}),
        )
        run = run.model_copy(update={"plan": plan})
        self.folder.write(run)
        return run

    def say(self, figures: dict[str, Any] | None) -> None:
        (self.planted / "figures.json").write_text(json.dumps(figures))

    def start(self) -> "subprocess.Popen[bytes]":
        words = [str(self.planted), str(self.folder.path), str(self.home.path), "--once"]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.unit.learning.stub_job", *words], cwd=REPOSITORY
        )

    def run_round(self) -> int:
        """Start jobs until the round is over, and return how many were killed."""
        for killed in range(20):
            process = self.start()
            until = time.monotonic() + 120
            while process.poll() is None and not self.is_offered:
                assert time.monotonic() < until, self.reached
                time.sleep(0.02)
            if process.poll() is None or process.returncode == 0:
                process.kill()  # Nobody listens to whom it could offer anything.
                process.wait()
                return killed
            assert process.returncode < 0
        raise AssertionError(self.reached)

    @property
    def is_offered(self) -> bool:
        return self.progress.order is not None

    @property
    def progress(self) -> Progress:
        return self.home.read_progress()

    @property
    def reached(self) -> list[str]:
        return (self.planted / "reached").read_text().splitlines()


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_better_drafter_becomes_a_generation_and_is_offered(pair: Pair) -> None:
    assert pair.run_round() == 0
    first, made = pair.home.list_generations()
    assert (first.number, first.drafter, first.verdict) == (0, pair.first, "planned")
    assert (made.number, made.parent, made.verdict) == (1, 0, "candidate")
    assert made.new_tokens > 0
    assert made.shares == {"code": 0.8, "prose": 0.2}
    assert made.after["code"].tokens_per_step == 2.4
    assert (made.drafter / "model.safetensors").is_file()
    progress = pair.progress
    assert (progress.rounds, progress.offered, progress.learnt_until) == (1, 1, 100)
    assert progress.offered_at is not None
    assert read_work(pair.home.work) is None


@pytest.mark.parametrize(
    ("figures", "last", "wanted", "made"),
    [
        ({**BETTER, "probed": {"code": 2.02, "prose": 1.5}}, "at its ceiling", 40_000, None),
        (
            {**BETTER, "after": {"code": 2.6, "prose": 1.4}},
            "is not offered: it loses 7%",
            20_000,
            "not offered",
        ),
        (None, "not generated by this target", 40_000, None),
    ],
)
def test_what_wins_nothing_is_not_offered_and_the_reason_is_kept(
    pair: Pair, figures: dict[str, Any] | None, last: str, wanted: int, made: str | None
) -> None:
    pair.say(figures)
    assert pair.run_round() == 0
    progress = pair.progress
    assert last in progress.last
    assert (progress.rounds, progress.offered) == (1, None)
    assert (progress.wanted_tokens, progress.learnt_until) == (wanted, 100)
    assert [one.verdict for one in pair.home.list_generations()[1:]] == ([made] if made else [])
    assert not pair.home.find_drafter(1).exists()
    assert not pair.home.work.exists()


def test_without_enough_text_nothing_is_begun(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    for file in pair.home.text.iterdir():
        file.unlink()
    assert pair.run_round() == 0
    assert "too little text" in pair.progress.last
    assert "probe" not in pair.reached


@pytest.mark.parametrize("places", [PLACES[:5], PLACES[5:]])
def test_a_kill_anywhere_costs_only_the_piece_under_way(
    pair: Pair, places: tuple[str, ...]
) -> None:
    for place in places:
        (pair.planted / f"kill-{place}").touch()
    assert pair.run_round() == len(places)
    assert {*places} <= {*pair.reached}
    first, made = pair.home.list_generations()
    assert (first.number, made.number, made.verdict) == (0, 1, "candidate")
    assert {file.name for file in made.drafter.iterdir()} >= {"model.safetensors", "README.md"}
    progress = pair.progress
    assert (progress.rounds, progress.offered, progress.failed) == (1, 1, 0)
    assert progress.wanted_tokens == 20_000
    assert len(list(read_kept(pair.home.text))) == 120
    hidden = [path.name for path in pair.home.path.rglob(".*") if path.is_dir()]
    assert hidden == []


def test_a_second_job_of_a_pair_ends_and_says_why(pair: Pair) -> None:
    pair.home.lock()
    process = pair.start()
    assert process.wait(60) == 0
    assert pair.home.list_generations() == []


def test_a_run_folder_of_another_version_ends_a_job_with_its_reason(pair: Pair) -> None:
    RunFolder(pair.folder.path).record.write_text("{}")
    assert pair.start().wait(60) == 0
    assert pair.progress == Progress()
