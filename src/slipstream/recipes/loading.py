"""The catalogue that ships with the package, and the user's own recipes in an overlay.

TOML is written by hand or by `compare --recipe`, JSON by `train --promote`.
"""

import json
import tomllib
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.recipes.recipe import (
    DrafterFile,
    KnownBad,
    KnownModel,
    ModelFile,
    PublishedDrafter,
    Recipe,
)
from slipstream.records import describe_faults

SHIPPED = Path(__file__).parent / "catalogue"

AnyEntry = TypeVar("AnyEntry", Recipe, KnownBad)
AnyFile = TypeVar("AnyFile", Recipe, KnownBad, DrafterFile, ModelFile)


@cache
def load_recipes(folder: Path = SHIPPED, overlay: Path | None = None) -> tuple[Recipe, ...]:
    """Read every recipe, the user's own first, each part in the order of their names."""
    return tuple(_load_recipe(path, overlay) for path in _list_files(folder, overlay))


def load_recipes_for(
    target: str, folder: Path = SHIPPED, overlay: Path | None = None
) -> tuple[Recipe, ...]:
    """Read only the recipes that name this target; parsing all would cost `plan` its speed."""
    return tuple(
        _load_recipe(path, overlay)
        for path in _list_files(folder, overlay)
        if target.lower() in path.read_text(errors="replace").lower()
    )


def _list_files(folder: Path, overlay: Path | None) -> list[Path]:
    own = [] if overlay is None else sorted([*overlay.glob("*.json"), *overlay.glob("*.toml")])
    return [*own, *sorted(folder.glob("*.toml"))]


@cache
def load_known_bad(folder: Path = SHIPPED) -> tuple[KnownBad, ...]:
    return tuple(_load(path, KnownBad) for path in sorted(folder.glob("known-bad/*.toml")))


def find_recipes(
    recipes: tuple[Recipe, ...], *, target: str | None = None, machine: str | None = None
) -> tuple[Recipe, ...]:
    """Return the recipes for a target (a name or a shell pattern) and a kind of machine."""
    return tuple(
        recipe
        for recipe in recipes
        if (target is None or fnmatchcase(recipe.target.lower(), target.lower()))
        and (machine is None or machine in recipe.machines)
    )


@cache
def load_drafters(folder: Path = SHIPPED) -> tuple[PublishedDrafter, ...]:
    files = (_parse(path, DrafterFile) for path in sorted(folder.glob("drafters/*.toml")))
    return tuple(drafter for file in files for drafter in file.drafters)


@cache
def load_models(folder: Path = SHIPPED) -> tuple[KnownModel, ...]:
    files = (_parse(path, ModelFile) for path in sorted(folder.glob("models/*.toml")))
    return tuple(model for file in files for model in file.models)


def _load_recipe(path: Path, overlay: Path | None) -> Recipe:
    return _load(path, Recipe).model_copy(update={"own": path.parent == overlay})


def _load(path: Path, kind: type[AnyEntry]) -> AnyEntry:
    entry = _parse(path, kind)
    if entry.name != path.stem:
        raise InvalidInputError(
            f"{path.name} has the name {entry.name}", hint=f"name it {path.stem}, or move the file"
        )
    return entry


def _parse(path: Path, kind: type[AnyFile]) -> AnyFile:
    """Read one file, with what its entries take from it filled in."""
    try:
        read = json.loads if path.suffix == ".json" else tomllib.loads
        table = read(path.read_text())
        if isinstance(table, dict):
            _complete(table)
        return kind.model_validate(table)
    except ValidationError as fault:
        what, details = f"{path.name} is not a {kind.__name__}", describe_faults(fault, kind)
        raise InvalidInputError(what, details=details, hint=f"correct {path}") from fault
    except (json.JSONDecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as fault:
        what = f"{path.name} is not {path.suffix.removeprefix('.').upper()}: {fault}"
        raise InvalidInputError(what, hint=f"correct {path}") from fault


def _complete(table: dict[str, Any]) -> None:
    """Fill in what entries leave out: names, drafters' makers, what several measurements share."""
    for part in ("target", "drafter"):
        _name(table.get(f"{part}_facts"), table.get(part))
    for group in _list_tables(table.pop("measured", None)):
        rows = _list_tables(group.pop("rows", None))
        table.setdefault("evidence", []).extend({**group, **row} for row in rows)
    maker = table.pop("maker", None) if "drafters" in table else None
    for drafter in _list_tables(table.get("drafters")):
        drafter.setdefault("maker", maker)
        _name(drafter.get("facts"), drafter.get("drafter"))
    for model in _list_tables(table.get("models")):
        builds = model.pop("builds", ())
        facts = dict(model)
        model.clear()
        model |= {"facts": facts, "builds": builds}


def _list_tables(entries: object) -> list[dict[str, Any]]:
    listed = entries if isinstance(entries, list) else []
    return [entry for entry in listed if isinstance(entry, dict)]


def _name(facts: object, name: object) -> None:
    if isinstance(facts, dict):
        facts.setdefault("name", name)
