"""`slipstream train` from prompts to a served drafter, every stage real, in about two minutes."""

import json
import os
import subprocess
import sys
from math import hypot
from pathlib import Path

import pytest

from slipstream.records import read_record
from slipstream.training.prompts import read_conversations
from slipstream.training.run import STAGES, TrainRun
from tests.engine.narrow_prompts import list_rows

pytestmark = [pytest.mark.engine, pytest.mark.beside]

TABLES = ("customers", "employees", "students", "flights", "movies", "patients")
# All questions of the table that is held out: of fewer, chance decides.
EVALUATED = 14
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a few dozen questions of one narrow kind."""
    path = tmp_path_factory.mktemp("prompts") / "sql.jsonl"
    rows = [row for row in list_rows() if row["group"].removeprefix("table:") in TABLES]
    # Each digit is a token: an engine with room for common text would refuse it.
    rows.append({"kind": "sql", "group": "digits", "prompt": f"Add: {'271828' * 120}"})
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def train(target: Path, questions: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    options = {
        "--steps": "100",
        "--max-tokens": str(MAX_TOKENS),
        "--layers": "1",
        "--block-size": "4",
        "--intermediate-size": "512",
        "--held-out": "0.1",
        "--evaluated": str(EVALUATED),
        "--learning-rate": "2e-3",
        "--run": str(folder),
    }
    words = [word for pair in options.items() for word in pair]
    words += ["--layer-ids", "2", "15", "28"]
    command = [sys.executable, "-m", "slipstream", "train", str(target)]
    own_cores = os.sched_getaffinity(0)
    return subprocess.run(
        [*command, "--prompts", str(questions), *words],
        env=os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(len(own_cores))},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(target: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "run"
    done = train(target, questions, folder)
    assert done.returncode == 0, done.stderr
    sys.stdout.write(f"\n{done.stdout}")
    return folder


@pytest.fixture(scope="module")
def run(folder: Path) -> TrainRun:
    return read_record(folder / "run.json", TrainRun, hint="")


def test_every_stage_leaves_its_record_and_its_file(run: TrainRun, folder: Path) -> None:
    assert tuple(stage.name for stage in run.stages) == STAGES
    assert {"config.json", "model.safetensors", "README.md"} <= {
        file.name for file in (folder / "drafter").iterdir()
    }
    assert str(folder) not in (folder / "drafter" / "config.json").read_text()


def test_nothing_held_out_was_trained_on(folder: Path) -> None:
    rows = read_conversations(folder / "prompts.jsonl")
    held_out = {row.group for row in rows if row.held_out}
    assert held_out
    assert held_out.isdisjoint(row.group for row in rows if not row.held_out)


def test_a_minute_of_training_is_accepted_by_the_real_engine_as_the_walk_predicts(
    run: TrainRun,
) -> None:
    """Of an untrained drafter about nothing is accepted: it takes 1.0 tokens per step."""
    evaluated = run.evaluated["sql"]
    assert evaluated.served is not None
    assert evaluated.walked is not None
    served, walked = evaluated.served.tokens_per_step, evaluated.walked.tokens_per_step
    assert served is not None
    assert served > 1.15
    # The tokens of a step, 1 to 4 here, vary by less than 1.
    error = hypot(evaluated.served.drafts**-0.5, evaluated.walked.drafts**-0.5)
    assert served == pytest.approx(walked, abs=3 * error)


def test_the_same_command_again_does_nothing_twice(
    run: TrainRun, folder: Path, target: Path, questions: Path
) -> None:
    before = (folder / "run.json").read_bytes()
    again = train(target, questions, folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "run.json").read_bytes() == before
    assert "responses:" not in again.stderr
