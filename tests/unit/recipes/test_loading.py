"""Recipes are found by target and machine, and a faulty file is refused with all its faults."""

import json
import tomllib
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.recipes import (
    find_recipes,
    load_drafters,
    load_known_bad,
    load_models,
    load_recipes,
    load_recipes_for,
)

RECIPES = load_recipes()
RECIPE = """\
name = "pair"
title = "A pair"
target = "maker/target"
drafter = "maker/drafter"
machines = ["gb10"]
engine = "vllm"
engine_version = "0.32.0"
"""
KNOWN_BAD = """\
name = "bad"
verdict = "warn"
message = "It fails."
hint = "take another"
sources = ["vLLM #1"]

[when]
machines = ["gb10"]
"""


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / f"{name}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    write(tmp_path, "pair", RECIPE)
    write(tmp_path, "a-pair", RECIPE.replace('"pair"', '"a-pair"'))
    write(tmp_path, "known-bad/bad", KNOWN_BAD)
    assert [recipe.name for recipe in load_recipes(tmp_path)] == ["a-pair", "pair"]
    assert [entry.name for entry in load_known_bad(tmp_path)] == ["bad"]
    assert load_recipes(tmp_path / "empty") == ()
    assert load_known_bad(tmp_path / "empty") == ()


def test_facts_take_their_name_from_the_recipe(tmp_path: Path) -> None:
    facts = '[target_facts]\nsource = "its card"\n[drafter_facts]\nname = "b"\nsource = "c"\n'
    write(tmp_path, "pair", RECIPE + facts)
    (recipe,) = load_recipes(tmp_path)
    assert recipe.target_facts is not None
    assert recipe.drafter_facts is not None
    assert (recipe.target_facts.name, recipe.drafter_facts.name) == ("maker/target", "b")


@pytest.mark.parametrize(
    ("name", "content", "message", "details"),
    [
        ("other", RECIPE, "has the name pair", set()),
        (
            "pair",
            RECIPE + 'colour = "red"\n[settings]\nk = 7\n',
            "is not a Recipe",
            {"colour", "settings.k"},
        ),
        ("pair", RECIPE + "[settings]\nsequences = 0\n", "a Recipe", {"settings.sequences"}),
        ("pair", "name = \n", "is not TOML", set()),
        ("pair", b'name = "\xff"\n', "is not TOML", set()),
    ],
)
def test_a_faulty_recipe_is_refused_with_all_its_faults(
    tmp_path: Path, name: str, content: str | bytes, message: str, details: set[str]
) -> None:
    written = content.encode() if isinstance(content, str) else content
    (tmp_path / f"{name}.toml").write_bytes(written)
    with pytest.raises(InvalidInputError) as caught:
        load_recipes(tmp_path)
    assert caught.value.message.startswith(f"{name}.toml ")
    assert message in caught.value.message
    assert {detail.partition(":")[0] for detail in caught.value.details} == details


def write_own(folder: Path, name: str, **changes: object) -> Path:
    """Write the same recipe as a user's own, with fields changed."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**tomllib.loads(RECIPE), "name": name, **changes}))
    return path


def test_the_users_own_recipes_come_before_the_shipped_ones(tmp_path: Path) -> None:
    shipped, own = tmp_path / "shipped", tmp_path / "own"
    facts = {"source": "its files"}
    write(shipped, "pair", RECIPE + '[target_facts]\nsource = "its files"\n')
    write_own(own, "zebra-pair", drafter="me/drafter")
    write_own(own, "pair", target_facts=facts)
    first, second, third = load_recipes(shipped, own)
    assert (second.name, second.drafter) == ("zebra-pair", "me/drafter")
    # Both forms say the same.
    assert (first.own, third.own) == (True, False)
    assert first.to_json() == third.to_json()
    assert first.target_facts is not None
    assert first.target_facts.name == "maker/target"
    # A user's own may have both forms, and what is shipped has one.
    write(tmp_path / "other", "pair", RECIPE)
    write_own(tmp_path / "more", "pair")
    assert [one.name for one in load_recipes(tmp_path / "more", tmp_path / "other")] == ["pair"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"name": ', "pair.json is not JSON"),
        ("", "pair.json is not JSON"),
        ("[]", "pair.json is not a Recipe"),
        ("null", "pair.json is not a Recipe"),
        ('{"name": "pair", "target_facts": 5}', "pair.json is not a Recipe"),
    ],
)
def test_an_own_recipe_that_cannot_be_read_is_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "pair.json").write_text(content)
    with pytest.raises(InvalidInputError) as caught:
        load_recipes(tmp_path, tmp_path)
    assert caught.value.message.startswith(message)
    assert caught.value.hint == f"correct {tmp_path / 'pair.json'}"


def test_the_quick_way_finds_the_users_own_first(tmp_path: Path) -> None:
    write(tmp_path, "pair", RECIPE)
    write_own(tmp_path / "own", "mine", drafter="me/drafter")
    write_own(tmp_path / "own", "other", target="maker/another")
    found = load_recipes_for("Maker/Target", tmp_path, tmp_path / "own")
    assert [recipe.name for recipe in found] == ["mine", "pair"]


def test_recipes_are_found_by_a_pattern_for_the_target_and_by_the_machine() -> None:
    assert find_recipes(RECIPES) == RECIPES
    assert {one.target for one in find_recipes(RECIPES, target="qwen/qwen3-8b")} == {
        "Qwen/Qwen3-8B"
    }
    gemmas = find_recipes(RECIPES, target="*gemma-4*")
    assert gemmas == tuple(one for one in RECIPES if "gemma-4" in one.target.lower())
    sparks = find_recipes(RECIPES, machine="gb10")
    assert sparks == tuple(one for one in RECIPES if "gb10" in one.machines)
    both = find_recipes(RECIPES, target="*gemma-4*", machine="gb10")
    assert both == tuple(one for one in gemmas if one in sparks)
    assert 0 < len(both) < len(gemmas) < len(RECIPES)
    assert find_recipes(RECIPES, target="qwen/qwen3-8") == ()
    assert find_recipes(RECIPES, machine="abacus") == ()


@pytest.mark.parametrize("target", sorted({recipe.target for recipe in RECIPES}))
def test_the_quick_way_finds_every_recipe_of_a_target(target: str) -> None:
    quick = find_recipes(load_recipes_for(target), target=target)
    assert quick
    assert quick == find_recipes(RECIPES, target=target)
    assert find_recipes(load_recipes_for(target.upper()), target=target) == quick


DRAFTERS = """\
maker = "somebody"

[[drafters]]
drafter = "somebody/model-DFlash"
target = "maker/model"
method = "dflash"
sources = ["https://huggingface.co/somebody/model-DFlash"]
"""


def test_a_drafter_takes_its_maker_from_its_file_and_its_facts_their_name(tmp_path: Path) -> None:
    facts = '[drafters.facts]\nsource = "a card"\n[drafters.facts.draft]\nfamily = "dflash"\n'
    write(tmp_path, "drafters/somebody", DRAFTERS + facts)
    (drafter,) = load_drafters(tmp_path)
    assert drafter.maker == "somebody"
    assert drafter.facts is not None
    assert drafter.facts.name == "somebody/model-DFlash"


FACTS = '[drafters.facts]\nsource = "a card"\n[drafters.facts.draft]\nfamily = "eagle3"\n'
MODEL = """\
[[models]]
name = "a/model"
source = "its card"
[[models.builds]]
name = "a/model-FP8"
scheme = "fp8"
method = "fp8"
total_bytes = 0
source = "its card"
"""


@pytest.mark.parametrize(
    ("file", "content", "fault"),
    [
        ("known-bad/bad", KNOWN_BAD + 'weather = "rain"\n', "when.weather"),
        ("known-bad/bad", KNOWN_BAD.replace('["vLLM #1"]', "[]"), "sources"),
        ("known-bad/bad", KNOWN_BAD.replace('"It fails."', '""'), "message"),
        ("drafters/bad", DRAFTERS.replace('"dflash"', '"magic"'), "drafters[0].method"),
        ("drafters/bad", DRAFTERS.replace("sources = [", "sources = []#"), "drafters[0].sources"),
        ("drafters/bad", DRAFTERS.replace('"maker/model"', '"../model"'), "drafters[0].target"),
        ("drafters/bad", DRAFTERS.replace('maker = "somebody"\n', ""), "drafters[0].maker"),
        ("drafters/bad", DRAFTERS + 'colour = "red"\n', "drafters[0].colour"),
        ("drafters/bad", DRAFTERS + FACTS, "drafters[0]"),  # facts of another method
        ("models/bad", MODEL, "models[0].builds[0].total_bytes"),
    ],
)
def test_a_faulty_entry_is_refused_by_its_key(
    tmp_path: Path, file: str, content: str, fault: str
) -> None:
    path = write(tmp_path, file, content)
    load = {"known-bad": load_known_bad, "drafters": load_drafters, "models": load_models}
    with pytest.raises(InvalidInputError, match=r"^bad\.toml is not a ") as caught:
        load[file.split("/")[0]](tmp_path)
    assert [detail.partition(":")[0] for detail in caught.value.details] == [fault]
    assert caught.value.hint == f"correct {path}"


def test_a_model_is_its_facts_and_its_builds(tmp_path: Path) -> None:
    write(tmp_path, "models/family", MODEL.replace("= 0", "= 7"))
    (model,) = load_models(tmp_path)
    assert model.facts.name == "a/model"
    assert [(build.name, build.total_bytes) for build in model.builds] == [("a/model-FP8", 7)]


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        *((f'environment = {{ {name} = "1" }}', name) for name in ("LD_PRELOAD", "VLLM_PLUGINS")),
        ('environment = { PYTHONPATH = "/tmp" }', "PYTHONPATH"),
        ('extra_arguments = ["--trust-remote-code"]', "--trust-remote-code"),
        ('extra_arguments = ["--dtype", "bfloat16", "--middleware", "evil.Mw"]', "--middleware"),
        ('extra_arguments = ["--middleware=evil.Mw"]', "--middleware"),
        ('extra_arguments = ["--trust"]', "--trust"),
    ],
)
def test_a_recipe_sets_only_what_is_for_recipes(tmp_path: Path, setting: str, name: str) -> None:
    (tmp_path / "pair.toml").write_text(f"{RECIPE}\n[settings]\n{setting}\n")
    with pytest.raises(InvalidInputError) as refused:
        load_recipes(tmp_path)
    assert f"may not set {name};" in "".join(refused.value.details) + refused.value.message
