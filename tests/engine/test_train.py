"""`slipstream train` from prompts to a served drafter, every stage real, in about two minutes."""

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.checkpoints import read_checkpoint
from slipstream.hardware import read_host, this_machine
from slipstream.planning import make_options, make_plan
from slipstream.proving_ground import DrafterShape, make_untrained_drafter
from slipstream.records import read_record
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.training.prompts import read_conversations
from slipstream.training.run import TrainRun
from slipstream.training.served import measure_served

pytestmark = [pytest.mark.engine, pytest.mark.beside]

REPOSITORY = Path(__file__).parents[2]
TABLES = ("customers", "employees", "students", "flights", "movies", "patients")
JUDGED = 4
MAX_TOKENS = 32


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a few dozen questions of one narrow kind."""
    whole = tmp_path_factory.mktemp("prompts") / "all.jsonl"
    script = REPOSITORY / "scripts" / "make-narrow-prompts"
    subprocess.run([sys.executable, script, whole], check=True)
    rows = [line for line in whole.read_text().splitlines() if _table_of(line) in TABLES]
    path = whole.with_name("sql.jsonl")
    path.write_text("\n".join(rows) + "\n")
    return path


def _table_of(line: str) -> str:
    return str(json.loads(line)["group"]).removeprefix("table:")


def train(target: Path, questions: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    options = {
        "--steps": "100",
        "--max-tokens": str(MAX_TOKENS),
        "--layers": "1",
        "--block-size": "4",
        "--intermediate-size": "512",
        "--held-out": "0.1",
        "--judged": str(JUDGED),
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
    assert [stage.name for stage in run.stages] == [
        "prompts",
        "responses",
        "states",
        "training",
        "acceptance",
        "export",
    ]
    assert {"config.json", "model.safetensors", "README.md"} <= {
        file.name for file in (folder / "drafter").iterdir()
    }
    assert str(folder) not in (folder / "drafter" / "config.json").read_text()


def test_nothing_held_out_was_trained_on(folder: Path) -> None:
    rows = read_conversations(folder / "prompts.jsonl")
    held_out = {row.group for row in rows if row.held_out}
    assert held_out
    assert held_out.isdisjoint(row.group for row in rows if not row.held_out)


def test_a_minute_of_training_beats_an_untrained_drafter_in_the_real_engine(
    run: TrainRun, folder: Path, target: Path
) -> None:
    trained = run.judged["sql"].served
    assert trained is not None
    shape = DrafterShape(layers=1, block_size=4, intermediate_size=512)
    untrained = make_untrained_drafter(target, folder / "untrained", shape)
    plan = make_plan(
        read_host(this_machine(os.environ, datetime.now(UTC))),
        read_checkpoint(str(target)),
        read_checkpoint(str(untrained), tokenizer=False),
        None,
        make_options(
            users=1,
            context=512,
            engine=("--enforce-eager", "--per-request-spec-decode-metrics", "summary"),
        ),
    )
    rows = [row for row in read_conversations(folder / "prompts.jsonl") if row.held_out][:JUDGED]
    with run_engine(plan, log=folder / "untrained.log", environment=os.environ) as url:
        before = measure_served(
            url, rows, max_tokens=MAX_TOKENS, thinking=None, concurrency=1, report=lambda *_: None
        )["sql"]
    sys.stdout.write(
        f"\ntokens per step, served: untrained {before.tokens_per_step:.2f}, "
        f"trained {trained.tokens_per_step:.2f}\n"
    )
    assert before.drafts > 0
    assert trained.tokens_per_step > before.tokens_per_step + 0.15


def test_the_walk_over_held_out_text_foretells_what_is_served(run: TrainRun) -> None:
    judged = run.judged["sql"]
    assert judged.served is not None
    assert judged.walked is not None
    assert judged.served.tokens_per_step == pytest.approx(judged.walked.tokens_per_step, rel=0.15)


def test_the_same_command_again_does_nothing_twice(
    run: TrainRun, folder: Path, target: Path, questions: Path
) -> None:
    before = (folder / "run.json").read_bytes()
    again = train(target, questions, folder)
    assert again.returncode == 0, again.stderr
    assert (folder / "run.json").read_bytes() == before
    assert "responses:" not in again.stderr
