"""Sources of candidates: recipes, the index by name, base model or shape, and the hub."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.hub_search import HubDrafter
from slipstream.checkpoints.model_names import name_stem
from slipstream.planning.library import Library
from slipstream.recipes.published import PublishedDrafter

Match = Literal["exact", "base", "name", "shape"]
Origin = Literal["index", "recipe", "hub"]
MATCHES: tuple[Match, ...] = ("exact", "base", "name", "shape")


@dataclass(frozen=True, slots=True)
class Find:
    """A published drafter with how it was found."""

    entry: PublishedDrafter
    match: Match
    found: Origin
    obstacle: str | None = None


def find_by_recipe(target: Checkpoint, library: Library) -> Iterator[Find]:
    """Yield the drafters of recipes for this target, the user's own recipes included."""
    for recipe in library.find_recipes(target.name):
        draft = recipe.drafter_facts.draft if recipe.drafter_facts else None
        if recipe.target.lower() != target.name.lower() or draft is None:
            continue
        entry = PublishedDrafter.model_construct(
            target=recipe.target,
            drafter=recipe.drafter,
            method=draft.family,
            maker=name_owner(recipe.drafter),
            sources=(f"recipe {recipe.name}",),
            facts=recipe.drafter_facts,
        )
        yield Find(entry, "exact", "recipe")


def find_by_name(target: Checkpoint, bases: tuple[str, ...], library: Library) -> Iterator[Find]:
    """Yield the index's drafters for this target, its base models, or models of its name."""
    for entry in library.drafters:
        match = match_target(entry.target, target.name, bases)
        if match is not None:
            yield Find(entry, match, "index", _find_build_obstacle(entry, match))


def _find_build_obstacle(entry: PublishedDrafter, match: Match) -> str | None:
    """Return what speaks against a drafter that was made for one build, if this is another."""
    stem = entry.target.rpartition("/")[2].lower()
    if match != "name" or stem == name_stem(entry.target):
        return None
    return f"it was made for another build, {entry.target}"


def match_target(made_for: str, target: str, bases: tuple[str, ...]) -> Match | None:
    """Return how a target is known to be, or to be made from, what a drafter was made for."""
    if made_for.lower() == target.lower():
        return "exact"
    if made_for.lower() in {base.lower() for base in bases}:
        return "base"
    if name_stem(made_for) in {name_stem(name) for name in (target, *bases)}:
        return "name"
    return None


def find_by_shape(target: Checkpoint, library: Library) -> Iterator[Find]:
    """Yield the index's drafters for models of the target's shape."""
    alike = {model.facts.name for model in library.find_alike(target)}
    for entry in library.drafters:
        if entry.target in alike:
            yield Find(entry, "shape", "index", "only the shape of the target was recognised")


def find_on_hub(
    target: Checkpoint, bases: tuple[str, ...], listed: Iterable[HubDrafter]
) -> Iterator[Find]:
    """Yield the drafters that the hub lists, with reasons against choosing them."""
    for drafter in listed:
        matches = [match_target(base, target.name, bases) for base in drafter.base_models]
        match = min((one for one in matches if one), key=MATCHES.index, default=None)
        entry = PublishedDrafter.model_construct(
            target=next(
                (base for base, one in zip(drafter.base_models, matches, strict=True) if one),
                target.name,
            ),
            drafter=drafter.name,
            method=drafter.method,
            maker=name_owner(drafter.name),
            sources=(f"https://huggingface.co/{drafter.name}",),
            licence=drafter.licence,
        )
        yield Find(entry, match or "name", "hub", _find_hub_obstacle(drafter, match))


def _find_hub_obstacle(drafter: HubDrafter, match: Match | None) -> str | None:
    if match not in ("exact", "base"):
        return "it does not name this target as its base"
    if drafter.has_code:
        return "its repository has code of its own, which is never run"
    return None


def drop_repeated(finds: Iterable[Find]) -> list[Find]:
    """Keep each drafter once, as the first source describes it."""
    kept: dict[tuple[str, str], Find] = {}
    for find in finds:
        name = find.entry.drafter
        key = (name.lower(), "") if name else ("", f"{find.entry.method} {find.entry.target}")
        kept.setdefault(key, find)
    return list(kept.values())


def name_owner(name: str) -> str:
    """Return who a repository belongs to."""
    return name.partition("/")[0] if "/" in name else name
