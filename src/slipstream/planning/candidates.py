"""Drafters for a target: found, checked against it and ranked.

Anybody can publish a drafter for anything. So a candidate counts by who measured it, then by
whether it fits, then by its maker, and what only looks alike is named and never chosen.
"""

import json
from collections import Counter
from collections.abc import Callable
from itertools import islice
from shlex import quote
from typing import Literal, Protocol

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.hub_search import HubDrafter
from slipstream.checkpoints.pairing import pair
from slipstream.engines.vllm import VERSION, Runner, find_engine_faults
from slipstream.engines.vllm_methods import METHODS
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.drafter_sources import (
    MATCHES,
    Find,
    Match,
    Origin,
    drop_repeated,
    find_by_name,
    find_by_recipe,
    find_by_shape,
    find_on_hub,
    name_owner,
)
from slipstream.planning.library import Library
from slipstream.recipes.published import PublishedDrafter
from slipstream.records import Record

Verdict = Literal["fits", "does not fit", "cannot tell"]
SearchHub = Callable[[tuple[str, ...]], tuple[HubDrafter, ...]]

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
_BY_PASSES = (("dflash", "dflash2", "dspark"), ("eagle3", "peagle"), ("mtp", "draft_model"))
_USUAL_LENGTH = 3
_AGREES = "what is published of it agrees"


class ReadCheckpoint(Protocol):
    """Reads a checkpoint by name, with or without its tokenizer."""

    def __call__(self, name: str, *, tokenizer: bool) -> Checkpoint:
        """Read it."""


class Candidate(Record):
    """A drafter for a target, with the verdict of the pair check and the reason for its rank."""

    drafter: str | None
    method: str
    maker: str
    made_for: str
    match: Match
    found: Origin
    verdict: Verdict
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
    """Every candidate for a target, best first, and the one that `plan` chooses."""

    schema_version: Literal[1] = 1
    target: str
    base_models: tuple[str, ...]
    machine: str | None
    hub: str
    candidates: tuple[Candidate, ...]
    chosen: str | None


def list_candidates(
    target: Checkpoint,
    *,
    machine: str | None,
    library: Library,
    read: ReadCheckpoint,
    search: SearchHub | None = None,
    method: str | None = None,
) -> DrafterList:
    """Find, check and rank the drafters for a target on a kind of machine, by one method or all."""
    bases = _trace_bases(target, read)
    finds = [*find_by_recipe(target, library), *find_by_name(target, bases, library)]
    finds = finds or list(find_by_shape(target, library))
    hub = "not asked"
    if search is not None:
        try:
            listed = search((target.name, *bases))
            finds += islice(find_on_hub(target, bases, listed), MOST_FROM_HUB)
            hub = f"asked: {len(listed)} drafters listed"
        except MissingPartError as fault:
            hub = f"not asked: {fault.message}"
    makers = Counter(entry.maker for entry in library.drafters)
    judged = [
        _judge(target, find, machine=machine, library=library, read=read, method=method)
        for find in drop_repeated(finds)
        if method in (None, find.entry.method)
    ]
    ranked = sorted(judged, key=lambda candidate: _rank(candidate, makers))
    return DrafterList(
        target=target.name,
        base_models=bases,
        machine=machine,
        hub=hub,
        candidates=tuple(ranked),
        chosen=next((one.drafter for one in ranked if one.obstacle is None), None),
    )


def _trace_bases(target: Checkpoint, read: ReadCheckpoint) -> tuple[str, ...]:
    """Return what a target was made from, what that was made from, and so on as far as it reads."""
    bases = [base for base in target.base_models or () if base != target.name]
    for base in bases[:1]:
        for _ in range(MOST_HOPS):
            try:
                further = read(base, tokenizer=False).base_models
            except (MissingPartError, InvalidInputError):
                break
            if not further or further[0] in (target.name, *bases):
                break
            base = further[0]
            bases.append(base)
    return tuple(bases)


def _judge(
    target: Checkpoint,
    find: Find,
    *,
    machine: str | None,
    library: Library,
    read: ReadCheckpoint,
    method: str | None,
) -> Candidate:
    entry = find.entry
    verdict, stated, drafter = _check_pair(target, entry, read)
    because = _clean(stated)
    here, elsewhere = _list_evidence(entry.drafter, machine, library)
    obstacle = _find_obstacle(find, verdict, because, method) or _find_engine_obstacle(
        target, drafter, on_cpu=machine == "cpu"
    )
    return Candidate(
        drafter=entry.drafter,
        method=entry.method,
        maker=entry.maker,
        made_for=entry.target,
        match=find.match,
        found=find.found,
        verdict=verdict,
        because=because,
        measured_here=here,
        measured_elsewhere=elsewhere,
        obstacle=obstacle,
        why=_explain(find, machine, here, elsewhere),
        draft_length=entry.draft_length,
        licence=entry.licence,
        note=entry.note,
        sources=entry.sources,
        command=_write_command(target.name, entry),
    )


def _check_pair(
    target: Checkpoint, entry: PublishedDrafter, read: ReadCheckpoint
) -> tuple[Verdict, str, Checkpoint | None]:
    if entry.drafter is None:
        return "cannot tell", "its weights are part of the target's checkpoint", None
    if entry.method not in _PAIRED:
        return "cannot tell", f"pairs of method {entry.method} are not checked yet", None
    drafter = entry.facts
    try:
        drafter = read(entry.drafter, tokenizer=False)
    except MissingPartError:
        pass
    except InvalidInputError as fault:
        return "does not fit", "; ".join((fault.message, *fault.details)), None
    if drafter is None:
        return "cannot tell", "files not here", None
    if drafter.complete and drafter.weights is None:
        return "does not fit", "it has no safetensors, and nothing else is loaded", drafter
    pairing = pair(target, drafter, as_model=entry.method == "draft_model")
    faults = [fault for fault in pairing.faults if fault.verdict == "refuse"]
    if faults:
        return "does not fit", "; ".join(fault.message for fault in faults), drafter
    if not drafter.complete:
        return "cannot tell", f"files not here; {_AGREES}", drafter
    if not target.complete:
        return "cannot tell", "the target's files are not here", drafter
    return "fits", "its files agree with the target's", drafter


def _clean(text: str) -> str:
    """Return a text in which strangers' values may stand as one that a terminal shows as it is."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= MOST_LETTERS else f"{shown[:MOST_LETTERS]}..."


def _list_evidence(
    drafter: str | None, machine: str | None, library: Library
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if drafter is None:
        return (), ()
    measured = [
        recipe
        for recipe in library.find_recipes(drafter)
        if recipe.drafter.lower() == drafter.lower() and recipe.evidence
    ]
    here = tuple(recipe.name for recipe in measured if machine in recipe.machines)
    return here, tuple(recipe.name for recipe in measured if recipe.name not in here)


def _find_obstacle(find: Find, verdict: Verdict, because: str, method: str | None) -> str | None:
    """Return why `plan` must not choose a candidate, None if it may."""
    if verdict == "does not fit":
        return f"it does not fit: {because}"
    if find.obstacle is not None:
        return find.obstacle
    if find.entry.drafter is None:
        return "it is part of the target: plan takes it if no drafter can be"
    if find.entry.method not in (*RUNNABLE, method):
        return f"its method, {find.entry.method}, is taken only if it is asked for"
    if find.found == "hub" and verdict != "fits":
        return f"it is known from the hub only, and whether it fits cannot be told: {because}"
    return None


def _find_engine_obstacle(
    target: Checkpoint, drafter: Checkpoint | None, *, on_cpu: bool
) -> str | None:
    if drafter is None:
        return None
    runner: Runner = "V1" if on_cpu else "V2"
    plain = set(find_engine_faults(target, None, runner=runner, on_cpu=on_cpu))
    drafting = find_engine_faults(target, drafter, runner=runner, on_cpu=on_cpu)
    refused = (fault for fault in drafting if fault.verdict == "refuse" and fault not in plain)
    return next((f"vLLM {VERSION}: {fault.message}" for fault in refused), None)


def _rank(candidate: Candidate, makers: Counter[str]) -> tuple[object, ...]:
    """Return the sort key: evidence here, evidence elsewhere, method, fit, maker; unfit last."""
    return (
        candidate.verdict == "does not fit",
        candidate.match == "shape",
        candidate.match == "name" and candidate.obstacle is not None,
        not candidate.measured_here,
        not candidate.measured_elsewhere,
        _count_before(candidate.method),
        candidate.verdict != "fits",
        _AGREES not in candidate.because,
        MATCHES.index(candidate.match),
        candidate.obstacle is not None,
        candidate.found == "hub",
        candidate.maker.lower() != name_owner(candidate.made_for).lower(),
        -makers[candidate.maker],
        -len(candidate.sources),
        candidate.draft_length is None,
        candidate.drafter or "",
    )


def _count_before(method: str) -> int:
    """Return how many groups of methods are taken before this one."""
    found = (place for place, group in enumerate(_BY_PASSES) if method in group)
    return next(found, len(_BY_PASSES))


def _explain(
    find: Find, machine: str | None, here: tuple[str, ...], elsewhere: tuple[str, ...]
) -> str:
    entry = find.entry
    how = {
        "exact": f"{entry.maker} made it for this target",
        "base": f"{entry.maker} made it for {entry.target}, which the target's card names as base",
        "name": f"{entry.maker} made it for {entry.target}, of which the target is a build by name",
        "shape": f"{entry.maker} made it for {entry.target}, which has the target's shape: a guess",
    }[find.match]
    if find.found == "hub":
        return f"{how}; listed by the hub, not in the index"
    if here:
        return f"{how}; measured on {machine} (recipe {here[0]})"
    if elsewhere:
        return f"{how}; measured elsewhere (recipe {elsewhere[0]})"
    return f"{how}; not measured in the catalogue"


def _write_command(target: str, entry: PublishedDrafter) -> str:
    """Return the command that plans with this drafter."""
    if entry.drafter is not None and entry.method in RUNNABLE:
        return f"slipstream plan {quote(target)} --drafter {quote(entry.drafter)}"
    if entry.drafter is None:
        return f"slipstream plan {quote(target)} --method {entry.method}"
    if entry.method in METHODS:
        named = f"--method {entry.method} --drafter {quote(entry.drafter)}"
        return f"slipstream plan {quote(target)} {named}"
    config: dict[str, object] = {**_ENGINE_KEYS.get(entry.method, {"method": entry.method})}
    config["model"] = entry.drafter
    config["num_speculative_tokens"] = entry.draft_length or _USUAL_LENGTH
    return f"slipstream plan {quote(target)} -- --speculative-config {quote(json.dumps(config))}"
