"""From a target's name to its plan: which recipe and drafter, and where their facts come from."""

from dataclasses import dataclass
from typing import Protocol

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.draft_part import guess_family
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.hardware import Host, name_kind
from slipstream.planning.asked import CHECKED_METHODS, read_asked
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import KnownBad, Recipe


class ReadCheckpoint(Protocol):
    """Reads a checkpoint by name, with or without its tokenizer."""

    def __call__(self, name: str, *, tokenizer: bool) -> Checkpoint:
        """Read it."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target with its drafter and recipe, and a note on every fact that stood in."""

    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    notes: tuple[str, ...]


def plan_target(
    host: Host,
    target: str,
    wishes: Wishes,
    *,
    recipes: tuple[Recipe, ...],
    known_bad: tuple[KnownBad, ...],
    read: ReadCheckpoint,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Find what belongs to a target on a machine, and plan it."""
    found = resolve(target, wishes, recipes=recipes, machine=name_kind(host), read=read)
    return make_plan(
        host,
        found.target,
        found.drafter,
        found.recipe,
        wishes,
        known_bad=known_bad,
        notes=(*found.notes, *notes),
    )


def resolve(
    target: str,
    wishes: Wishes,
    *,
    recipes: tuple[Recipe, ...],
    machine: str | None,
    read: ReadCheckpoint,
) -> Resolved:
    """Find the recipe, then read both checkpoints, or take the recipe's facts for them."""
    asked = read_asked(wishes)
    drafter = asked.drafter or wishes.drafter
    recipe = choose_recipe(recipes, target, drafter, machine)
    name = drafter or (recipe.drafter if recipe else None)
    speculation = wishes.speculation and asked.method in CHECKED_METHODS
    if speculation and name is None:
        raise InvalidInputError(
            f"no recipe knows a drafter for {target}",
            hint=f"slipstream plan {target} --drafter NAME, or --no-speculation",
        )
    notes: list[str] = []
    drafted = None
    if speculation and name is not None:
        facts = recipe.drafter_facts if recipe else None
        drafted = _read_or_recall(name, facts, recipe, read, notes, tokenizer=True)
        if drafted.draft is None and not drafted.complete:
            guessed = DraftPart(family=guess_family(name))
            drafted = drafted.model_copy(update={"draft": guessed})
    facts = recipe.target_facts if recipe else None
    comparable = drafted is not None and drafted.tokenizer_sha256 is not None
    found = _read_or_recall(target, facts, recipe, read, notes, tokenizer=comparable)
    return Resolved(found, drafted, recipe, tuple(notes))


def choose_recipe(
    recipes: tuple[Recipe, ...], target: str, drafter: str | None, machine: str | None
) -> Recipe | None:
    """Take the recipe for this pair that was made on this kind of machine, else any other."""
    fitting = [
        recipe
        for recipe in recipes
        if recipe.target.lower() == target.lower() and drafter in (None, recipe.drafter)
    ]
    ranked = sorted(
        fitting,
        key=lambda recipe: (
            machine not in recipe.machines,
            recipe.engine != "vllm",
            recipe.nodes,
            -len(recipe.evidence),
        ),
    )
    return ranked[0] if ranked else None


def _read_or_recall(
    name: str,
    facts: Checkpoint | None,
    recipe: Recipe | None,
    read: ReadCheckpoint,
    notes: list[str],
    *,
    tokenizer: bool,
) -> Checkpoint:
    try:
        return read(name, tokenizer=tokenizer)
    except MissingPartError:
        if recipe is None:
            raise
        if facts is None:
            notes.append(f"nothing is known of {name} but its name: the hub could not be read")
            return Checkpoint(name=name, source=f"recipe {recipe.name}")
        notes.append(
            f"{name} is known from recipe {recipe.name} ({facts.source}): the hub could not be read"
        )
        return facts
