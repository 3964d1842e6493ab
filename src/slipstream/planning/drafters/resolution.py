"""From a target's name to its plan: the recipe, the drafter and the sources of their facts."""

from dataclasses import dataclass, field
from typing import Literal

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.checkpoints.draft_part import guess_family
from slipstream.engines.vllm import choose_version
from slipstream.engines.vllm_methods import METHODS, keeps_mtp
from slipstream.engines.vllm_tables import VERSION
from slipstream.errors import GatedModelError, InvalidInputError, MissingPartError
from slipstream.hardware import Host, name_kind
from slipstream.planning.alternatives import name_alternatives
from slipstream.planning.drafters.candidates import DrafterList, list_candidates
from slipstream.planning.drafters.library import Library, complete_facts
from slipstream.planning.inputs import CHECKED_METHODS, FoundDrafter
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.options import PLAIN, Goal, PlanOptions
from slipstream.planning.steering_verdicts import SteeringVerdicts
from slipstream.recipes import KnownBad, Recipe, find_recipes
from slipstream.records import Record

NO_DRAFTER = "no drafter is known"


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target with its drafter, method and recipe, and notes on facts that replaced files."""

    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    notes: tuple[str, ...]
    found: FoundDrafter | None = None
    method: Choice[str] | None = None


class ModelReport(Record):
    """What is known of a target: its facts, recipes for it, and the drafters by rank."""

    schema_version: Literal[1] = 1
    target: Checkpoint
    notes: tuple[str, ...]
    recipes: tuple[Recipe, ...]
    drafters: DrafterList


def plan_target(
    host: Host,
    target: str,
    options: PlanOptions,
    library: Library,
    *,
    known_bad: tuple[KnownBad, ...] = (),
    verdicts: SteeringVerdicts | None = None,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Find the recipe and drafter for a target on a machine, and return the plan."""
    remembered = library.remember()

    def plan_once(there: Host, name: str, changed: PlanOptions) -> LaunchPlan:
        return _plan_once(there, name, changed, remembered, known_bad, verdicts, notes)

    plan = plan_once(host, target, options)
    return name_alternatives(plan, host, plan_once, remembered.list_smaller_builds(target))


def _plan_once(
    host: Host,
    target: str,
    options: PlanOptions,
    library: Library,
    known_bad: tuple[KnownBad, ...],
    verdicts: SteeringVerdicts | None,
    notes: tuple[str, ...],
) -> LaunchPlan:
    version = choose_version(host, options.vllm)
    resolved = resolve(target, options, name_kind(host), library, version)
    method = resolved.method
    if method is not None and method != options.method:
        notes = (f"method {method.value}: {method.because}", *notes)
    return make_plan(
        host,
        resolved.target,
        resolved.drafter,
        resolved.recipe,
        options,
        known_bad=known_bad,
        verdicts=verdicts,
        found=resolved.found,
        method=method,
        notes=(*resolved.notes, *notes),
    )


def report_model(target: str, machine: str | None, library: Library) -> ModelReport:
    """Read a target, or what is known of it, and list its drafters."""
    facts = _Facts(None, library)
    known = facts.find_target(target)
    listed = list_candidates(known, machine, library)
    recipes = library.find_recipes(target)
    if (recipe := choose_recipe(recipes, target, None, machine)) is not None:
        first = sorted(listed.candidates, key=lambda one: one.drafter != recipe.drafter)
        taken = {"chosen": recipe.drafter, "recipe": recipe.name, "candidates": tuple(first)}
        listed = listed.model_copy(update=taken)
    return ModelReport(
        target=known,
        notes=facts.list_notes(),
        recipes=find_recipes(recipes, target=target),
        drafters=listed,
    )


def resolve(
    target: str,
    options: PlanOptions,
    machine: str | None,
    library: Library,
    version: str = VERSION,
) -> Resolved:
    """Find recipe and drafter, then read both checkpoints, or use what is known about them."""
    drafting = options.engine.drafting
    named = drafting.drafter.value if drafting.drafter else None
    recipe = choose_recipe(library.find_recipes(target), target, named, machine)
    facts = _Facts(recipe, library)
    method: Choice[str] | None = options.method
    requested = drafting.method.value if drafting.method else None
    if requested not in CHECKED_METHODS or _needs_none(method, named):
        return Resolved(facts.find_target(target), None, recipe, facts.list_notes(), None, method)
    found = None
    if (name := named or _take_recipes_drafter(recipe, method)) is None:
        wanted = method.value if method else requested
        known = facts.find_target(target)
        listed = list_candidates(known, machine, library, wanted, version=version)
        found = _take_best(listed)
        if found is None and wanted is not None:
            raise _refuse_method(listed, wanted)
        if found is None:
            method = _fall_back(listed, known, options.goal)
            return Resolved(known, None, recipe, facts.list_notes(), None, method)
        name = found.drafter.value
    drafter = facts.find_drafter(name)
    if method is not None and method.value == "eagle" and drafter.draft is None:
        # Its first makers published plain Llama configurations.
        drafter = drafter.model_copy(update={"draft": DraftPart(family="eagle")})
    known = facts.find_target(target, tokenizer=drafter.tokenizer_sha256 is not None)
    return Resolved(known, drafter, recipe, facts.list_notes(), found, method)


def _needs_none(method: Choice[str] | None, named: str | None) -> bool:
    """Return whether nothing drafts, or the text or the target's own heads do."""
    if method is None:
        return False
    if method.value == PLAIN:
        return True
    needs = METHODS[method.value].needs
    return needs == "nothing" or (needs == "heads" and named is None)


def _take_recipes_drafter(recipe: Recipe | None, method: Choice[str] | None) -> str | None:
    """Return the recipe's drafter unless a different method was requested."""
    if recipe is None:
        return None
    facts = recipe.drafter_facts
    family = facts.draft.family if facts and facts.draft else guess_family(recipe.drafter)
    return recipe.drafter if method is None or method.value == family else None


def _take_best(listed: DrafterList) -> FoundDrafter | None:
    """Return the best candidate that may be used without being requested."""
    for candidate in listed.candidates:
        if candidate.drafter is not None and candidate.drafter == listed.chosen:
            licence = f"; licence {candidate.licence}" if candidate.licence else ""
            others = f"; slipstream models {listed.target} lists {len(listed.candidates)}"
            why = f"{candidate.why}{licence}{others}"
            return FoundDrafter(Choice(candidate.drafter, "index", why), candidate.draft_length)
    return None


def _fall_back(listed: DrafterList, target: Checkpoint, goal: Goal) -> Choice[str]:
    """Choose how to draft without a drafter: by the target's own heads, from the text, or not."""
    known = sum(one.drafter is not None for one in listed.candidates)
    why = f"none of {known} known drafters can be used" if known else NO_DRAFTER
    if known or listed.hub.startswith("not searched"):
        why += f" (slipstream models {listed.target})"
    heads = any(one.drafter is None and one.method == "mtp" for one in listed.candidates)
    found = target.predicting_layers or (target.predicting_layers is None and heads)
    if found and keeps_mtp(target.name):
        because = f"{why}; the target has MTP layers, which keep the prefix cache"
        return Choice("mtp", "checkpoint", because)
    if goal == "throughput":
        because = f"{why}; n-grams cost verification in every sequence of a full batch"
        return Choice(PLAIN, "default", because)
    because = f"{why}; n-grams need no memory and draft where an answer repeats its prompt"
    return Choice("ngram", "default", because)


def _refuse_method(listed: DrafterList, method: str) -> InvalidInputError:
    named = f"slipstream plan {listed.target} --method {method} --drafter NAME"
    return InvalidInputError(
        f"no drafter of method {method} can be used for {listed.target} (hub {listed.hub})",
        details=tuple(
            f"{one.drafter or 'in the target'} ({one.method}): {one.obstacle}"
            for one in listed.candidates
        ),
        hint=listed.candidates[0].command if listed.candidates else named,
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
    return min(fitting, key=lambda recipe: recipe.rank(machine), default=None)


@dataclass(slots=True)
class _Facts:
    """Reads checkpoints; unreadable ones are described from the recipe and the library."""

    recipe: Recipe | None
    library: Library
    unread: dict[str, str] = field(default_factory=dict)
    target: Checkpoint | None = None

    def list_notes(self) -> tuple[str, ...]:
        """Say in one line which models were not read, and what stood in for their files."""
        if not self.unread:
            return ()
        sources = dict.fromkeys(self.unread.values())
        named = {one: [name for name, by in self.unread.items() if by == one] for one in sources}
        known = "; ".join(
            f"{' and '.join(names)} are from {source}" for source, names in named.items()
        )
        return (f"the hub could not be read; facts of {known}",)

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
            return self.library.read(name, tokenizer=tokenizer)
        except MissingPartError as fault:
            found = self._recall(name, facts)
            if found is None:
                raise
            gated = isinstance(fault, GatedModelError)
            return found.model_copy(update={"gated": True}) if gated else found

    def _recall(self, name: str, facts: Checkpoint | None) -> Checkpoint | None:
        """Return what the recipe and the library say of a model, None if they do not know it."""
        known = self.library.describe(name)
        recipe = f"recipe {self.recipe.name}" if self.recipe else "the index"
        if facts is not None:
            self.unread[name] = recipe
            return complete_facts(facts, known)
        if known is not None:
            self.unread[name] = "the index"
            return known
        if self.recipe is None and not self.library.knows(name):
            return None
        self.unread[name] = "its name alone"
        return Checkpoint(name=name, source=recipe)
