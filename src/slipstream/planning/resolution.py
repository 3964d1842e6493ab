"""From a target's name to its plan: the recipe, the drafter and the sources of their facts."""

from dataclasses import dataclass, field

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.draft_part import guess_family
from slipstream.engines.vllm_methods import METHODS
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

NO_DRAFTER = "no drafter is known"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target with its drafter and recipe, and notes on facts that replaced unreadable files."""

    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    notes: tuple[str, ...]
    found: FoundDrafter | None = None
    chosen: Choice[str] | None = None


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
    """Find the recipe and drafter for a target on a machine, and return the plan."""
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
        chosen=found.chosen,
        notes=(*found.notes, *_note_fallback(found.chosen), *notes),
    )


def _note_fallback(chosen: Choice[str] | None) -> tuple[str, ...]:
    """Return why there is no drafter where none was refused."""
    if chosen is None or chosen.source == "user":
        return ()
    return (f"method {chosen.value}: {chosen.because}",)


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
    """Find recipe and drafter, then read both checkpoints, or use what is known about them."""
    asked = read_asked(wishes)
    named = asked.drafter or wishes.drafter
    recipe = choose_recipe(recipes, target, named, machine)
    facts = _Facts(recipe, library, read)
    chosen: Choice[str] | None = wishes.find("method")
    if not wishes.speculation or asked.method not in CHECKED_METHODS or _needs_none(chosen, named):
        known = facts.find_target(target)
        return Resolved(known, None, recipe, tuple(facts.notes), chosen=chosen)
    found = None
    if (name := named or _take_recipes_drafter(recipe, chosen)) is None:
        wanted = chosen.value if chosen else asked.method
        listed = _list_drafters(target, facts, machine, search, wanted)
        found = _take_best(listed)
        if found is None and wanted is not None:
            raise _refuse_method(listed, wanted)
        if found is None:
            chosen = _fall_back(listed, facts.find_target(target), wishes)
            known = facts.find_target(target)
            return Resolved(known, None, recipe, tuple(dict.fromkeys(facts.notes)), chosen=chosen)
        name = found.drafter.value
    drafter = facts.find_drafter(name)
    if chosen is not None and chosen.value == "eagle" and drafter.draft is None:
        # Its first makers published plain Llama configurations.
        drafter = drafter.model_copy(update={"draft": DraftPart(family="eagle")})
    comparable = drafter.tokenizer_sha256 is not None
    known = facts.find_target(target, tokenizer=comparable)
    return Resolved(known, drafter, recipe, tuple(dict.fromkeys(facts.notes)), found, chosen)


def _needs_none(chosen: Choice[str] | None, named: str | None) -> bool:
    """Return whether the method drafts from the text, or from the target's own heads."""
    method = METHODS.get(chosen.value) if chosen else None
    if method is None:
        return chosen is not None
    return method.needs == "nothing" or (method.needs == "heads" and named is None)


def _take_recipes_drafter(recipe: Recipe | None, chosen: Choice[str] | None) -> str | None:
    """Return the drafter of a recipe, unless another method was asked for than it drafts by."""
    if recipe is None:
        return None
    facts = recipe.drafter_facts
    family = facts.draft.family if facts and facts.draft else guess_family(recipe.drafter)
    return recipe.drafter if chosen is None or chosen.value == family else None


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


def _list_drafters(
    target: str, facts: "_Facts", machine: str | None, search: SearchHub | None, method: str | None
) -> DrafterList:
    listed = list_candidates(
        facts.find_target(target),
        machine=machine,
        library=facts.library,
        read=facts.read,
        search=search,
        method=method,
    )
    facts.notes.append(f"hub {listed.hub}")
    return listed


def _take_best(listed: DrafterList) -> FoundDrafter | None:
    """Return the best candidate that may be used without being asked for."""
    for candidate in listed.candidates:
        if candidate.drafter is not None and candidate.drafter == listed.chosen:
            licence = f"; licence {candidate.licence}" if candidate.licence else ""
            others = f"; slipstream drafters {listed.target} lists {len(listed.candidates)}"
            why = f"{candidate.why}{licence}{others}"
            return FoundDrafter(Choice(candidate.drafter, "index", why), candidate.draft_length)
    return None


def _fall_back(listed: DrafterList, target: Checkpoint, wishes: Wishes) -> Choice[str]:
    """Choose how to draft without a drafter: by the target's own heads, from the text, or not."""
    known = len(listed.candidates)
    lacking = f"none of the {known} drafters known can be taken unasked" if known else NO_DRAFTER
    told = f"{lacking} (slipstream drafters {listed.target}; hub {listed.hub})"
    if target.predicting_layers:
        because = f"{told}; the target has MTP layers, and they keep the prefix cache"
        return Choice("mtp", "checkpoint", because)
    if wishes.goal == "throughput":
        because = f"{told}; n-grams are verified by every sequence of a full batch"
        return Choice("plain", "default", because)
    because = f"{told}; n-grams take no memory and draft where an answer repeats its prompt"
    return Choice("ngram", "default", because)


def _refuse_method(listed: DrafterList, method: str) -> InvalidInputError:
    target = listed.target
    if not listed.candidates:
        return InvalidInputError(
            f"no drafter of method {method} is known for {target} (hub {listed.hub})",
            hint=f"slipstream plan {target} --method {method} --drafter NAME, "
            f"or slipstream plan {target}",
        )
    return InvalidInputError(
        f"none of the {len(listed.candidates)} drafters of method {method} known for {target} "
        "can be taken unasked",
        details=tuple(
            f"{one.drafter or 'in the target'} ({one.method}): {one.obstacle}"
            for one in listed.candidates
        ),
        hint=listed.candidates[0].command,
    )


def choose_recipe(
    recipes: tuple[Recipe, ...], target: str, drafter: str | None, machine: str | None
) -> Recipe | None:
    """Return the recipe for this pair on this kind of machine, else any other for the pair."""
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
    """Reads checkpoints; unreadable ones are described from the recipe and the library."""

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
