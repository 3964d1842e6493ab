"""`models` as a user types it, without the hub: known pairs, a target, and a pair check."""

import json
import re
import shlex
from pathlib import Path

import pytest

import slipstream
from slipstream.cli.main import run
from slipstream.planning import LaunchPlan
from slipstream.planning.drafters.resolution import ModelReport
from tests.snapshots import read_snapshot
from tests.unit.checkpoints.folders import LLAMA, drafter_tensors, write_checkpoint
from tests.unit.cli.pairs import write_pair
from tests.untrained_drafter import DrafterShape, drafter_config

Capture = pytest.CaptureFixture[str]

SOURCE = Path(slipstream.__file__).parent
# What follows the target in a command that a hint or a document gives.
MODELS_HINT = re.compile(r"slipstream models (?:TARGET|\{[\w.]+\})(?: ([-A-Z{]\S*))?")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """Lay a target and a drafter out as folders, named without the machine's own path."""
    write_pair(tmp_path)
    return "./target", "./drafter"


def report(target: str, capsys: Capture, host: str = "gb10") -> ModelReport:
    assert run(["models", target, "--host", host, "--json"], {}) == 0
    return ModelReport.model_validate_json(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "snapshot"),
    [
        (["*gemma-4-31b*", "--host", "gb10"], "models-gemma-gb10.txt"),
        (["--recipe", "qwen3.5-27b-nvfp4-gb10"], "models-recipe.txt"),
        (["meta-llama/Llama-3.1-8B-Instruct", "--host", "gb10"], "models-llama.txt"),
        (["./target", "--drafter", "./drafter", "--host", "h100"], "models-pair.txt"),
    ],
)
@pytest.mark.usefixtures("pair")
def test_pairs_a_model_and_a_check_are_shown_as_reviewed(
    words: list[str], snapshot: str, capsys: Capture
) -> None:
    assert run(["models", *words], {}) == 0
    shown = capsys.readouterr().out
    assert shown == read_snapshot(snapshot, shown)


def test_all_known_pairs_are_one_document(capsys: Capture) -> None:
    assert run(["models", "--json"], {}) == 0
    assert len(json.loads(capsys.readouterr().out)["recipes"]) >= 40


@pytest.mark.parametrize(
    "words", [["nobody/*"], ["--recipe", "nothing"], ["nobody/nothing"], ["not a name"]]
)
def test_what_nobody_knows_is_an_error_with_a_hint(words: list[str], capsys: Capture) -> None:
    assert run(["models", *words], {}) == 1
    assert "hint: " in capsys.readouterr().err


def test_a_target_is_known_with_its_facts_and_pairs(capsys: Capture) -> None:
    known = report("Qwen/Qwen3-8B", capsys)
    assert known.target.hidden_size == 4096
    assert {recipe.target for recipe in known.recipes} == {"Qwen/Qwen3-8B"}


def test_evidence_on_this_kind_of_machine_is_the_first_reason(capsys: Capture) -> None:
    here = report("Qwen/Qwen3-Coder-Next", capsys, "gb10").drafters.candidates[0]
    assert here.measured_here == ("qwen3-coder-next-nvfp4-gb10",)
    there = report("Qwen/Qwen3-Coder-Next", capsys, "h100").drafters.candidates[0]
    assert there.measured_elsewhere == ("qwen3-coder-next-nvfp4-gb10",)


def test_every_command_that_is_shown_is_a_plan_with_that_drafter(capsys: Capture) -> None:
    target = "meta-llama/Llama-3.3-70B-Instruct"
    listed = report(target, capsys).drafters
    assert listed.chosen == listed.candidates[0].drafter
    for candidate in listed.candidates:
        words = shlex.split(candidate.command)
        assert words[:3] == ["slipstream", "plan", target]
        run([*words[1:3], "--host", "b300", "--json", *words[3:]], {})
        made = LaunchPlan.model_validate_json(capsys.readouterr().out)
        assert made.drafter == candidate.drafter


def test_a_folder_finds_its_drafter_by_its_card(tmp_path: Path, capsys: Capture) -> None:
    target = write_checkpoint(tmp_path / "tuned", LLAMA)
    assert report("tuned", capsys).drafters.candidates == ()
    (target / "README.md").write_text("---\nbase_model: Qwen/Qwen3-8B\n---\n# Mine\n")
    config = drafter_config(LLAMA, DrafterShape())
    write_checkpoint(tmp_path / "mine", config, tensors=drafter_tensors(config))
    listed = report("tuned", capsys).drafters
    assert listed.base_models == ("Qwen/Qwen3-8B",)
    first = listed.candidates[0]
    assert (first.drafter, first.match) == ("RedHatAI/Qwen3-8B-speculator.dflash", "base")
    unfit = next(one for one in listed.candidates if one.drafter == "z-lab/Qwen3-8B-DFlash-b16")
    assert unfit.verdict == "does not fit"
    assert "4096" in unfit.because


def test_a_pair_that_does_not_fit_leaves_with_1_and_the_codes(
    pair: tuple[str, str], capsys: Capture
) -> None:
    assert run(["models", pair[0], "--drafter", pair[1], "--k", "12", "--json"], {}) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert [(fault["code"], fault["verdict"]) for fault in faults] == [("draft-length", "refuse")]


@pytest.mark.parametrize(("host", "code"), [("cpu-server", 1), ("h100", 0)])
def test_the_machine_decides_which_runner_a_pair_is_checked_for(
    host: str, code: int, pair: tuple[str, str], capsys: Capture
) -> None:
    config = json.loads(Path(pair[1], "config.json").read_text())
    config["architectures"] = ["DFlash2DraftModel"]
    Path(pair[1], "config.json").write_text(json.dumps(config))
    assert run(["models", pair[0], "--drafter", pair[1], "--host", host, "--json"], {}) == code
    codes = [fault["code"] for fault in json.loads(capsys.readouterr().out)["faults"]]
    assert codes == ["runner"] * code


def test_a_drafter_is_an_option_in_every_hint(pair: tuple[str, str], capsys: Capture) -> None:
    assert run(["models", *pair], {}) == 2
    assert pair[1] in capsys.readouterr().err
    files = [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.toml"), *SOURCE.parents[1].glob("docs/*.md")]
    hints = [hint for file in files for hint in MODELS_HINT.findall(file.read_text())]
    assert len(hints) > 10
    assert [words for words in hints if words and not words.startswith("--")] == []


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["A"], "num_hidden_layers": "many"},
        {"architectures": ["A"], "vocab_size": "big"},
        {"architectures": 7},
        {"rope_parameters": "linear"},
    ],
)
def test_a_config_that_describes_no_model_is_an_error_of_the_file(
    config: dict[str, object], tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(["models", str(tmp_path)], {}) == 1
    assert f"the files of {tmp_path} do not describe a model" in capsys.readouterr().err
