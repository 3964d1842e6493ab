"""`train` as a user types it: what it would take, what it refuses, and a run that is done."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.recipes import load_recipes
from slipstream.training.estimate import TrainEstimate
from slipstream.training.run import STAGES, StageRecord, TrainFolder, TrainRun
from slipstream.training.workspace import Workspace
from tests.unit.cli.pairs import write_pair
from tests.unit.training.pieces import DONE, pretend_installed

Capture = pytest.CaptureFixture[str]

TRAIN = ["train", "./target", "--prompts", "prompts.jsonl"]


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out a target and prompts in a folder of their own, and let the libraries be there."""
    pretend_installed(monkeypatch)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.chdir(tmp_path)
    # Set and then removed: what the command sets is taken back after the test.
    monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", "")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    write_pair(tmp_path, weights=True)
    Path("prompts.jsonl").write_text("".join(f'"prompt {number}"\n' for number in range(60)))


def estimate(capsys: Capture, *options: str) -> TrainEstimate:
    assert run([*TRAIN, *options, "--dry-run", "--json"], {}) == 0
    return TrainEstimate.model_validate_json(capsys.readouterr().out)


def test_a_dry_run_shows_every_stage_and_choice_and_writes_nothing(
    capsys: Capture, tmp_path: Path
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert run([*TRAIN, "--run", "runs/one", "--dry-run"], {}) == 0
    shown = capsys.readouterr()
    words = [line.split()[0] for line in shown.out.splitlines() if line.startswith("  ")]
    assert words[:7] == ["STAGE", *STAGES]
    assert words[7:] == [
        "SETTING",
        "--method",
        "--layers",
        "--block-size",
        "--layer-ids",
        "--mask-token-id",
        "--intermediate-size",
        "--steps",
        "--learning-rate",
    ]
    assert "runs/one" in shown.out
    assert shown.err == ""
    assert sorted(tmp_path.rglob("*")) == before


def test_without_options_everything_is_decided(capsys: Capture) -> None:
    expected = estimate(capsys)
    settings = expected.settings
    assert (settings.target, settings.prompts) == ("./target", ("prompts.jsonl",))
    assert (settings.schedule.steps, settings.schedule.learning_rate) == (8000, 2e-3)
    assert settings.schedule.seed == 0
    assert (settings.max_tokens, settings.thinking, settings.from_drafter) == (384, None, None)
    assert (settings.held_out_share, settings.evaluated_per_kind) == (0.05, 24)
    assert (settings.design.layers, settings.design.mask_token_id) == (3, 3)
    assert {decision.source for decision in expected.decisions} == {"checkpoint", "default"}


def test_every_option_reaches_the_settings(capsys: Capture) -> None:
    options = {
        "--method": "dflash",
        "--steps": "50",
        "--max-tokens": "64",
        "--thinking": "off",
        "--learning-rate": "2e-3",
        "--layers": "1",
        "--block-size": "5",
        "--mask-token-id": "17",
        "--intermediate-size": "512",
        "--held-out": "0.1",
        "--evaluated": "3",
        "--seed": "9",
    }
    words = [word for pair in options.items() for word in pair]
    expected = estimate(capsys, *words, "--layer-ids", "3", "20")
    settings, schedule = expected.settings, expected.settings.schedule
    assert settings.design.model_dump() == {
        "method": "dflash",
        "layers": 1,
        "intermediate_size": 512,
        "block_size": 5,
        "target_layer_ids": (3, 20),
        "mask_token_id": 17,
    }
    assert (schedule.steps, schedule.learning_rate, schedule.seed) == (50, 2e-3, 9)
    assert (settings.max_tokens, settings.thinking) == (64, False)
    assert (settings.held_out_share, settings.evaluated_per_kind) == (0.1, 3)
    assert {decision.source for decision in expected.decisions} == {"user"}


def test_a_run_is_kept_in_the_cache_unless_a_folder_is_named(
    capsys: Capture, tmp_path: Path
) -> None:
    kept, other = (Path(estimate(capsys, "--steps", steps).folder) for steps in ("10", "20"))
    assert kept.parent == tmp_path / "cache" / "training"
    assert kept.name.startswith("target-")
    assert kept != other
    assert estimate(capsys, "--run", "here").folder == "here"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["train", "--prompts", "a"], 2, "TARGET"),
        (["train", "./target"], 2, "--prompts"),
        ([*TRAIN, "--steps", "0"], 2, "--steps"),
        ([*TRAIN, "--seed", "-1"], 2, "--seed"),
        ([*TRAIN, "--mask-token-id", "x"], 2, "--mask-token-id"),
        ([*TRAIN, "--learning-rate", "0"], 2, "--learning-rate"),
        ([*TRAIN, "--run", "prompts.jsonl"], 1, "name another folder with --run\n"),
        (["train", "./nowhere", *TRAIN[2:]], 1, "there is no folder ./nowhere"),
    ],
)
def test_what_cannot_be_begun_is_refused(
    arguments: list[str], code: int, told: str, capsys: Capture
) -> None:
    assert run(arguments, {}) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "faults"),
    [
        (["--layer-ids", "20", "3", "--mask-token-id", "49152", "--block-size", "1"], 3),
        (["--from", "./none", "--layers", "2"], 0),
        (["--method", "dflash2"], 0),
        (["--method", "dspark"], 0),
        (["--method", "eagle3", "--from", "./none"], 0),
        (["--method", "eagle3", "--layers", "2", "--mask-token-id", "3"], 2),
    ],
)
def test_what_cannot_be_trained_is_refused_with_every_fault(
    options: list[str], faults: int, capsys: Capture
) -> None:
    assert run([*TRAIN, *options, "--dry-run"], {}) == 1
    shown = capsys.readouterr().err
    assert shown.count("\n  - ") == faults
    assert "\n\nhint: " in shown


def test_an_eagle3_head_is_designed_on_a_cpu(capsys: Capture) -> None:
    expected = estimate(capsys, "--method", "eagle3")
    design = expected.settings.design
    assert (design.method, design.layers, design.target_layer_ids) == ("eagle3", 1, (2, 15, 27))
    assert design.mask_token_id is None
    assert {decision.flag: decision.source for decision in expected.decisions}["--method"] == "user"


def test_a_token_and_a_seed_may_be_zero_and_thinking_on(capsys: Capture) -> None:
    options = ("--mask-token-id", "0", "--seed", "0", "--thinking", "on")
    settings = estimate(capsys, *options).settings
    assert (settings.design.mask_token_id, settings.schedule.seed) == (0, 0)
    assert settings.thinking is True


def test_without_numpy_the_command_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['numpy'] = None; from slipstream.cli.main import run; "
        "sys.exit(run(['train', './nowhere', '--prompts', 'nothing.jsonl'], {}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("\nhint: pip install 'slipstream[train]'\n")


@pytest.mark.parametrize(("own", "here"), [(None, "1"), ("0", "0")])
def test_large_pages_are_for_training_and_not_for_the_engine(
    own: str | None, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own is not None:
        monkeypatch.setenv("THP_MEM_ALLOC_ENABLE", own)
    monkeypatch.setenv("SOMETHING_ELSE", "kept")
    seen: list[Mapping[str, str]] = []

    def run_pipeline(fresh: TrainRun, space: Workspace) -> TrainRun:
        seen.extend((space.environment, dict(os.environ)))
        return fresh

    monkeypatch.setattr("slipstream.training.pipeline.run_pipeline", run_pipeline)
    assert run(TRAIN, {}) == 0
    engine, process = seen
    assert (engine.get("THP_MEM_ALLOC_ENABLE"), process["THP_MEM_ALLOC_ENABLE"]) == (own, here)
    assert engine["SOMETHING_ELSE"] == "kept"


def finish(expected: TrainEstimate, folder: TrainFolder) -> TrainRun:
    """Leave a run as it stands after its last stage."""
    stages = tuple(StageRecord(name=name, seconds=60.0, figures={"done": 1}) for name in STAGES)
    finished = DONE.model_copy(update={"settings": expected.settings, "stages": stages})
    folder.write(finished)
    return finished


def test_a_run_knows_the_command_that_makes_it_again(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("prompts.jsonl").rename("my prompts.jsonl")
    arguments = ["train", "./target", "--prompts", "my prompts.jsonl", "--json"]
    monkeypatch.setattr("sys.argv", ["/usr/bin/slipstream", *arguments])
    monkeypatch.setattr("slipstream.training.pipeline.run_pipeline", lambda fresh, _: fresh)
    assert run(arguments, {}) == 0
    made = TrainRun.model_validate_json(capsys.readouterr().out)
    assert made.command == "slipstream train ./target --prompts 'my prompts.jsonl' --json"


def test_a_finished_run_is_shown_and_not_done_again(capsys: Capture) -> None:
    finished = finish(estimate(capsys), TrainFolder(Path("one")))
    assert run([*TRAIN, "--run", "one", "--json"], {}) == 0
    shown = capsys.readouterr()
    assert TrainRun.model_validate_json(shown.out) == finished
    assert shown.err == ""
    assert run([*TRAIN, "--run", "one"], {}) == 0
    assert capsys.readouterr().out.startswith("drafter: one/drafter\n")


def test_a_run_is_not_taken_up_with_other_settings_or_prompts(capsys: Capture) -> None:
    finish(estimate(capsys), TrainFolder(Path("one")))
    assert run([*TRAIN, "--run", "one", "--steps", "50"], {}) == 1
    Path("prompts.jsonl").write_text('"one more"\n' * 60)
    assert run([*TRAIN, "--run", "one"], {}) == 1


def test_a_promoted_pair_is_among_the_recipes(capsys: Capture, tmp_path: Path) -> None:
    finish(estimate(capsys), TrainFolder(Path("one")))
    overlay = tmp_path / "config" / "slipstream" / "recipes"
    assert run([*TRAIN, "--run", "one"], {}) == 0
    assert not overlay.exists()
    assert run([*TRAIN, "--run", "one", "--promote"], {}) == 0
    (file,) = overlay.iterdir()
    assert capsys.readouterr().err.endswith(f"\npromoted: {file}\n")
    assert run(["models", str(tmp_path / "target"), "--json"], {}) == 0
    (listed,) = json.loads(capsys.readouterr().out)["recipes"]
    assert listed["drafter"] == str(tmp_path / "one" / "drafter")
    assert [recipe.name for recipe in load_recipes(tmp_path, overlay)] == [file.stem]
