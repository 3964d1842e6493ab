"""From a target's name to its plan: which recipe and drafter, and where their facts come from."""

from dataclasses import dataclass, field

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.draft_part import guess_family
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.hardware import Host, name_kind
from slipstream.planning.asked import CHECKED_METHODS, read_asked
from slipstream.planning.candidates import (
    DrafterList,
    ReadCheckpoint,
    SearchHub,
    list_candidates,
)
from slipstream.planning.library import NO_LIBRARY, Library, complete_facts
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings import Choice
from slipstream.planning.situation import FoundDrafter
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import KnownBad, Recipe


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target with its drafter and recipe, and a note on every fact that stood in."""

    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    notes: tuple[str, ...]
    found: FoundDrafter | None = None


def plan_target(
    host: Host,
    target: str,
    wishes: Wishes,
    *,
    recipes: tuple[Recipe, ...],
    known_bad: tuple[KnownBad, ...],
    read: ReadCheckpoint,
    library: Library = NO_LIBRARY,
    search: SearchHub | None = None,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Find what belongs to a target on a machine, and plan it."""
    found = resolve(
        target,
        wishes,
        recipes=recipes,
        machine=name_kind(host),
        read=read,
        library=library,
        search=search,
    )
    return make_plan(
        host,
        found.target,
        found.drafter,
        found.recipe,
        wishes,
        known_bad=known_bad,
        found=found.found,
        notes=(*found.notes, *notes),
    )


def resolve(
    target: str,
    wishes: Wishes,
    *,
    recipes: tuple[Recipe, ...],
    machine: str | None,
    read: ReadCheckpoint,
    library: Library = NO_LIBRARY,
    search: SearchHub | None = None,
) -> Resolved:
    """Find recipe and drafter, then read both checkpoints, or take what is known of them."""
    asked = read_asked(wishes)
    named = asked.drafter or wishes.drafter
    recipe = choose_recipe(recipes, target, named, machine)
    name = named or (recipe.drafter if recipe else None)
    facts = _Facts(recipe, library, read)
    found = None
    if not wishes.speculation or asked.method not in CHECKED_METHODS:
        return Resolved(facts.find_target(target), None, recipe, tuple(facts.notes))
    if name is None:
        found = _choose_drafter(target, facts, machine, search)
        name = found.drafter.value
    drafter = facts.find_drafter(name)
    comparable = drafter.tokenizer_sha256 is not None
    read_target = facts.find_target(target, tokenizer=comparable)
    return Resolved(read_target, drafter, recipe, tuple(dict.fromkeys(facts.notes)), found)


def find_drafters(
    target: str,
    *,
    machine: str | None,
    read: ReadCheckpoint,
    library: Library,
    search: SearchHub | None = None,
) -> DrafterList:
    """List the candidates for a target, whether or not a recipe names one."""
    facts = _Facts(None, library, read)
    known = facts.find_target(target)
    return list_candidates(known, machine=machine, library=library, read=read, search=search)


def _choose_drafter(
    target: str, facts: "_Facts", machine: str | None, search: SearchHub | None
) -> FoundDrafter:
    """Take the best candidate that may be taken, or name them all."""
    listed = list_candidates(
        facts.find_target(target),
        machine=machine,
        library=facts.library,
        read=facts.read,
        search=search,
    )
    facts.notes.append(f"hub {listed.hub}")
    for candidate in listed.candidates:
        if candidate.drafter is not None and candidate.drafter == listed.chosen:
            licence = f"; licence {candidate.licence}" if candidate.licence else ""
            others = f"; slipstream drafters {target} lists {len(listed.candidates)}"
            why = f"{candidate.why}{licence}{others}"
            return FoundDrafter(Choice(candidate.drafter, "index", why), candidate.draft_length)
    if not listed.candidates:
        raise InvalidInputError(
            f"no drafter is known for {target} (hub {listed.hub})",
            hint=f"slipstream train {target}, slipstream plan {target} --drafter NAME, "
            "or --no-speculation",
        )
    raise InvalidInputError(
        f"none of the {len(listed.candidates)} drafters known for {target} can be taken unasked",
        details=tuple(
            f"{one.drafter or 'in the target'} ({one.method}): {one.obstacle}"
            for one in listed.candidates
        ),
        hint=listed.candidates[0].command,
    )


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


@dataclass(slots=True)
class _Facts:
    """Reads checkpoints; what cannot be read is recalled from the recipe and the library."""

    recipe: Recipe | None
    library: Library
    read: ReadCheckpoint
    notes: list[str] = field(default_factory=list)
    target: Checkpoint | None = None

    def find_target(self, name: str, *, tokenizer: bool = False) -> Checkpoint:
        """Return the target's facts, read once, or once more for its tokenizer."""
        if self.target is None or tokenizer:
            facts = self.recipe.target_facts if self.recipe else None
            self.target = self._find(name, facts, tokenizer=tokenizer)
        return self.target

    def find_drafter(self, name: str) -> Checkpoint:
        """Return the drafter's facts; one that is known by name only is what the name says."""
        facts = self.recipe.drafter_facts if self.recipe else None
        drafter = self._find(name, facts, tokenizer=True)
        if drafter.draft is None and not drafter.complete:
            return drafter.model_copy(update={"draft": DraftPart(family=guess_family(name))})
        return drafter

    def _find(self, name: str, facts: Checkpoint | None, *, tokenizer: bool) -> Checkpoint:
        try:
            return self.read(name, tokenizer=tokenizer)
        except MissingPartError:
            known = self.library.describe(name)
            recipe = f"recipe {self.recipe.name}" if self.recipe else "the index"
            if facts is not None:
                self._note(f"{name} is known from {recipe} ({facts.source})")
                return complete_facts(facts, known)
            if known is not None:
                self._note(f"{name} is known from the index ({known.source})")
                return known
            if self.recipe is None and not self.library.knows(name):
                raise
            self._note(f"nothing is known of {name} but its name")
            return Checkpoint(name=name, source=recipe)

    def _note(self, text: str) -> None:
        self.notes.append(f"{text}: the hub could not be read")
