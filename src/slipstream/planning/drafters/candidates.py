"""Drafters for a target: found, checked against it and ranked.

Candidates come from recipes, the index and the hub. Anybody can publish a drafter for anything, so
one is ranked by who measured it, then by method and fit, then by its maker; and what does not name
the target, or a model that it was made from, is listed and never chosen.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from shlex import quote
from typing import Literal

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.hub import HubDrafter, name_stem
from slipstream.checkpoints.pairing import pair
from slipstream.engines.vllm import find_engine_faults
from slipstream.engines.vllm_methods import METHODS
from slipstream.engines.vllm_tables import VERSION
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.drafters.library import Library
from slipstream.recipes.recipe import PublishedDrafter
from slipstream.records import Record

# How the target is what the drafter was made for: itself, by a card's base model, or by its name.
Match = Literal["exact", "base", "name"]
Origin = Literal["index", "recipe", "hub"]
FitVerdict = Literal["fits", "does not fit", "cannot tell"]

MATCHES: tuple[Match, ...] = ("exact", "base", "name")
MOST_FROM_HUB = 8  # each is read, and anybody can be listed
MOST_HOPS = 3
MOST_LETTERS = 400
RUNNABLE = ("dflash", "dflash2", "dspark", "eagle3")
_PAIRED = (*RUNNABLE, "peagle", "draft_model")
_ENGINE_KEYS: dict[str, dict[str, object]] = {
    "dflash2": {"method": "dflash"},
    "peagle": {"method": "eagle3", "parallel_drafting": True},
}
# Where nobody measured: a block in one pass before a token in each; EAGLE and Medusa come last,
# for EAGLE-3's authors compare it with both.
_BY_PASSES = ("dflash", "dflash2", "dspark"), ("eagle3", "peagle"), ("mtp", "draft_model")
_USUAL_LENGTH = 3
_AGREES = "its published facts agree"
_SHARED = ("drafter", "method", "maker", "draft_length", "licence", "note", "sources")


class Candidate(Record):
    """A drafter for a target, with the verdict of the pair check and the reason for its rank."""

    drafter: str | None
    method: str
    maker: str
    made_for: str
    match: Match
    found: Origin
    verdict: FitVerdict
    because: str
    measured_here: tuple[str, ...] = ()
    measured_elsewhere: tuple[str, ...] = ()
    obstacle: str | None = None
    why: str = ""
    draft_length: int | None = None
    licence: str | None = None
    note: str | None = None
    sources: tuple[str, ...] = ()
    command: str = ""


class DrafterList(Record):
    """Every candidate for a target, best first; the one that `plan` chooses, and by what recipe."""

    schema_version: Literal[1] = 1
    target: str
    base_models: tuple[str, ...]
    machine: str | None
    hub: str
    candidates: tuple[Candidate, ...]
    chosen: str | None
    recipe: str | None = None


@dataclass(frozen=True, slots=True)
class ListedDrafter:
    """A published drafter with how it was found, and what speaks against choosing it."""

    entry: PublishedDrafter
    match: Match
    found: Origin
    obstacle: str | None = None


def list_candidates(
    target: Checkpoint,
    machine: str | None,
    library: Library,
    method: str | None = None,
    *,
    version: str = VERSION,
) -> DrafterList:
    """Find, check and rank the drafters for a target on a kind of machine, by one method or all."""
    bases = _trace_bases(target, library)
    finds = [*_find_in_recipes(target, library), *_find_in_index(target, bases, library)]
    hub = "not searched"
    if library.search is not None:
        try:
            listed = library.search((target.name, *bases))
            finds += islice(_find_on_hub(target, bases, listed), MOST_FROM_HUB)
            hub = f"searched: {len(listed)} drafters listed"
        except MissingPartError as fault:
            hub = f"not searched: {fault.message}"
    makers = Counter(entry.maker for entry in library.load_drafters())
    evaluated = [
        _evaluate(target, find, machine, library, method, version)
        for find in _drop_repeated(finds)
        if method in (None, find.entry.method)
    ]
    ranked = sorted(evaluated, key=lambda candidate: _rank(candidate, makers))
    return DrafterList(
        target=target.name,
        base_models=bases,
        machine=machine,
        hub=hub,
        candidates=tuple(ranked),
        chosen=next((one.drafter for one in ranked if one.obstacle is None), None),
    )


def _trace_bases(target: Checkpoint, library: Library) -> tuple[str, ...]:
    """Return what a target was made from, what that was made from, and so on as far as it reads."""
    bases = [base for base in target.base_models or () if base != target.name]
    further = bases[:1]
    for _ in range(MOST_HOPS):
        try:
            read_bases = library.read(further[0], tokenizer=False).base_models if further else None
        except (MissingPartError, InvalidInputError):
            break
        further = list(read_bases or ())[:1]
        if not further or further[0] in (target.name, *bases):
            break
        bases += further
    return tuple(bases)


def _find_in_recipes(target: Checkpoint, library: Library) -> Iterator[ListedDrafter]:
    """Yield the drafters of recipes for this target, the user's own recipes included."""
    for recipe in library.find_recipes(target.name):
        facts = recipe.drafter_facts
        if recipe.target.lower() == target.name.lower() and facts and facts.draft:
            entry = _publish(
                recipe.target, recipe.drafter, facts.draft.family, f"recipe {recipe.name}"
            )
            yield ListedDrafter(entry.model_copy(update={"facts": facts}), "exact", "recipe")


def _publish(
    target: str, drafter: str, method: str, source: str, licence: str | None = None
) -> PublishedDrafter:
    """Return a drafter that is not in the index as an entry of it; folders have names, too."""
    return PublishedDrafter.model_construct(
        target=target,
        drafter=drafter,
        method=method,
        maker=_name_owner(drafter),
        sources=(source,),
        licence=licence,
    )


def _find_in_index(
    target: Checkpoint, bases: tuple[str, ...], library: Library
) -> Iterator[ListedDrafter]:
    """Yield the index's drafters for this target, its base models, or models of its name."""
    for entry in library.load_drafters():
        if (match := match_target(entry.target, target.name, bases)) is not None:
            stem = entry.target.rpartition("/")[2].lower()
            other_build = match == "name" and stem != name_stem(entry.target)
            obstacle = f"trained for another build, {entry.target}" if other_build else None
            yield ListedDrafter(entry, match, "index", obstacle)


def match_target(made_for: str, target: str, bases: tuple[str, ...]) -> Match | None:
    """Return how a target is known to be, or to be made from, what a drafter was made for."""
    if made_for.lower() == target.lower():
        return "exact"
    if made_for.lower() in {base.lower() for base in bases}:
        return "base"
    if name_stem(made_for) in {name_stem(name) for name in (target, *bases)}:
        return "name"
    return None


def _find_on_hub(
    target: Checkpoint, bases: tuple[str, ...], listed: Iterable[HubDrafter]
) -> Iterator[ListedDrafter]:
    for drafter in listed:
        matches = {base: match_target(base, target.name, bases) for base in drafter.base_models}
        known = [(match, base) for base, match in matches.items() if match]
        match, made_for = min(
            known, key=lambda one: MATCHES.index(one[0]), default=("name", target.name)
        )
        source = f"https://huggingface.co/{drafter.name}"
        entry = _publish(made_for, drafter.name, drafter.method, source, drafter.licence)
        obstacle = (
            "its repository contains code, which slipstream never runs"
            if drafter.has_code
            else None
        )
        if match == "name":
            obstacle = "it does not name this target as its base"
        yield ListedDrafter(entry, match, "hub", obstacle)


def _drop_repeated(finds: Iterable[ListedDrafter]) -> list[ListedDrafter]:
    """Keep each drafter once, as the first source describes it."""
    kept: dict[str, ListedDrafter] = {}
    for find in finds:
        inside = f"{find.entry.method} of {find.entry.target}"
        kept.setdefault((find.entry.drafter or inside).lower(), find)
    return list(kept.values())


def _name_owner(name: str) -> str:
    return name.partition("/")[0]


def _evaluate(
    target: Checkpoint,
    find: ListedDrafter,
    machine: str | None,
    library: Library,
    method: str | None,
    version: str,
) -> Candidate:
    entry = find.entry
    verdict, stated, drafter = _check_pair(target, entry, library)
    because = _clean(stated)
    here, elsewhere = _list_evidence(entry.drafter, machine, library)
    obstacle = _find_obstacle(find, verdict, because, method) or _find_engine_obstacle(
        target, drafter, version, on_cpu=machine == "cpu"
    )
    return Candidate(
        **{name: getattr(entry, name) for name in _SHARED},
        made_for=entry.target,
        match=find.match,
        found=find.found,
        verdict=verdict,
        because=because,
        measured_here=here,
        measured_elsewhere=elsewhere,
        obstacle=obstacle,
        why=_explain(find, machine, here, elsewhere),
        command=_write_command(target.name, entry),
    )


def _check_pair(
    target: Checkpoint, entry: PublishedDrafter, library: Library
) -> tuple[FitVerdict, str, Checkpoint | None]:
    if entry.drafter is None:
        return "cannot tell", "its weights are part of the target's checkpoint", None
    if entry.method not in _PAIRED:
        return "cannot tell", f"pairs of method {entry.method} are not checked yet", None
    drafter = entry.facts
    try:
        drafter = library.read(entry.drafter, tokenizer=False)
    except MissingPartError:
        pass
    except InvalidInputError as fault:
        return "does not fit", "; ".join((fault.message, *fault.details)), None
    if drafter is None:
        return "cannot tell", "no local files", None
    if drafter.complete and drafter.weights is None:
        return "does not fit", "it has no safetensors, and other formats are not loaded", drafter
    pairing = pair(target, drafter, as_model=entry.method == "draft_model")
    if pairing.refusals:
        return "does not fit", "; ".join(fault.message for fault in pairing.refusals), drafter
    if not drafter.complete:
        return "cannot tell", f"no local files; {_AGREES}", drafter
    if not target.complete:
        return "cannot tell", "the target's files are not available", drafter
    return "fits", "its files agree with the target's", drafter


def _clean(text: str) -> str:
    """Return a text in which strangers' values may stand as one that a terminal shows as it is."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= MOST_LETTERS else f"{shown[:MOST_LETTERS]}..."


def _list_evidence(
    drafter: str | None, machine: str | None, library: Library
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Name the recipes that measured a drafter, a plan's first: on this machine, and on others."""
    measured = [
        recipe
        for recipe in (library.find_recipes(drafter) if drafter else ())
        if recipe.drafter.lower() == str(drafter).lower() and recipe.evidence
    ]
    measured.sort(key=lambda recipe: recipe.rank(machine))
    here = tuple(recipe.name for recipe in measured if machine in recipe.machines)
    return here, tuple(recipe.name for recipe in measured if recipe.name not in here)


def _find_obstacle(
    find: ListedDrafter, verdict: FitVerdict, because: str, method: str | None
) -> str | None:
    """Return why `plan` must not choose a candidate, None if it may."""
    if verdict == "does not fit":
        return f"does not fit: {because}"
    if find.obstacle is not None:
        return find.obstacle
    if find.entry.drafter is None:
        return "part of the target; `plan` uses it if no drafter fits"
    if find.entry.method not in (*RUNNABLE, method):
        return f"its method, {find.entry.method}, is used only on request"
    if find.found == "hub" and verdict != "fits":
        return f"known from the hub only, and whether it fits is unknown: {because}"
    return None


def _find_engine_obstacle(
    target: Checkpoint, drafter: Checkpoint | None, version: str, *, on_cpu: bool
) -> str | None:
    if drafter is None:
        return None
    plain = set(find_engine_faults(target, None, on_cpu=on_cpu, version=version))
    drafting = find_engine_faults(target, drafter, on_cpu=on_cpu, version=version)
    refused = (fault for fault in drafting if fault.verdict == "refuse" and fault not in plain)
    return next((f"vLLM {version}: {fault.message}" for fault in refused), None)


def _rank(candidate: Candidate, makers: Counter[str]) -> tuple[object, ...]:
    """Return the sort key: what may be chosen, by evidence, method, fit and maker."""
    passes = (place for place, group in enumerate(_BY_PASSES) if candidate.method in group)
    agrees = _AGREES in candidate.because
    return (
        candidate.verdict == "does not fit",
        candidate.match == "name" and candidate.obstacle is not None,
        (not candidate.measured_here, not candidate.measured_elsewhere),
        next(passes, len(_BY_PASSES)),
        0 if candidate.verdict == "fits" else 1 if agrees else 2,
        (MATCHES.index(candidate.match), candidate.found == "hub"),
        candidate.maker.lower() != _name_owner(candidate.made_for).lower(),
        (-makers[candidate.maker], -len(candidate.sources), candidate.draft_length is None),
        candidate.drafter or "",
    )


def _explain(
    find: ListedDrafter, machine: str | None, here: tuple[str, ...], elsewhere: tuple[str, ...]
) -> str:
    entry = find.entry
    origin = f"{entry.maker} made it for"
    how = {
        "exact": f"{origin} this target",
        "base": f"{origin} {entry.target}, which the target's card names as base",
        "name": f"{origin} {entry.target}, of which the target is a build by name",
    }[find.match]
    if find.found == "hub":
        return f"{how}; listed on the hub, not in the index"
    if here:
        return f"{how}; measured on {machine} (recipe {here[0]})"
    if elsewhere:
        return f"{how}; measured elsewhere (recipe {elsewhere[0]})"
    return f"{how}; not measured in the catalogue"


def _write_command(target: str, entry: PublishedDrafter) -> str:
    command = f"slipstream plan {quote(target)}"
    if entry.drafter is None:
        return f"{command} --method {entry.method}"
    if entry.method in RUNNABLE:
        return f"{command} --drafter {quote(entry.drafter)}"
    if entry.method in METHODS:
        return f"{command} --method {entry.method} --drafter {quote(entry.drafter)}"
    config: dict[str, object] = {**_ENGINE_KEYS.get(entry.method, {"method": entry.method})}
    config["model"] = entry.drafter
    config["num_speculative_tokens"] = entry.draft_length or _USUAL_LENGTH
    return f"{command} -- --speculative-config {quote(json.dumps(config))}"
