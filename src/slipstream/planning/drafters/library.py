"""The sources of facts, and what is known without the files: published drafters, base models."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, get_args

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Family
from slipstream.checkpoints.hub import HubDrafter, name_stem
from slipstream.checkpoints.pairing import differ
from slipstream.recipes.recipe import KnownModel, PublishedDrafter, Recipe

# What two descriptions of the same files cannot disagree about.
_IDENTITY = ("hidden_size", "layer_count")
_DRAFT_IDENTITY = ("family", "block_size", "target_layer_ids")
_COMPLETED = (
    *("hidden_size", "attention_heads", "vocabulary_size", "context", "dtype", "weights"),
    *("conversation", "predicting_layers", "gated"),
)


SearchHub = Callable[[tuple[str, ...]], tuple[HubDrafter, ...]]


class ReadCheckpoint(Protocol):
    """Reads a checkpoint by name, with or without its tokenizer."""

    def __call__(self, name: str, *, tokenizer: bool) -> Checkpoint:
        """Read it."""


@dataclass(frozen=True, slots=True)
class Library:
    """Where facts come from: files, recipes, the index, known models, and the hub's listing."""

    read: ReadCheckpoint
    find_recipes: Callable[[str], tuple[Recipe, ...]] = lambda name: ()
    load_drafters: Callable[[], tuple[PublishedDrafter, ...]] = tuple
    load_models: Callable[[], tuple[KnownModel, ...]] = tuple
    search: SearchHub | None = None

    def remember(self) -> "Library":
        """Return the same sources, each asked once for the same thing."""
        return replace(
            self,
            read=cache(self.read),
            find_recipes=cache(self.find_recipes),
            load_drafters=cache(self.load_drafters),
            load_models=cache(self.load_models),
        )

    def describe(self, name: str) -> Checkpoint | None:
        """Return what is known of a target or drafter by its name, None if that is nothing."""
        for entry in self.load_drafters():
            if (entry.drafter or "").lower() == name.lower():
                return entry.facts or _describe_bare(entry)
        known = self.find_model(name)
        return None if known is None else known.describe(name)

    def list_smaller_builds(self, name: str) -> tuple[str, ...]:
        """Return the smaller published builds of the same model, the largest first."""
        model = self.find_model(name)
        own = model.describe(name).weights if model else None
        builds = sorted(model.builds if model else (), key=lambda build: -build.total_bytes)
        return tuple(
            build.name for build in builds if own is None or build.total_bytes < own.total_bytes
        )

    def find_model(self, name: str) -> KnownModel | None:
        """Return the known model that a name is of, or is a build of."""
        stem = name_stem(name)
        models = (model for model in self.load_models() if name_stem(model.facts.name) == stem)
        return next(models, None)

    def knows(self, name: str) -> bool:
        """Return whether a name is that of a published drafter, or of what one was made for."""
        stem, lower = name_stem(name), name.lower()
        return any(
            (entry.drafter or "").lower() == lower or name_stem(entry.target) == stem
            for entry in self.load_drafters()
        )


def _describe_bare(entry: PublishedDrafter) -> Checkpoint | None:
    """Return what the index alone says of a drafter: how it drafts, and for what."""
    family = "eagle3" if entry.method == "peagle" else entry.method
    if entry.drafter is None or family not in get_args(Family):
        return None
    draft = DraftPart.model_validate({"family": family, "verifier": entry.target})
    return Checkpoint(name=entry.drafter, source=entry.sources[0], draft=draft)


def complete_facts(facts: Checkpoint, known: Checkpoint | None) -> Checkpoint:
    """Fill what a recipe leaves open from the library, unless the two describe different files."""
    if known is None or _disagree(facts, known, _IDENTITY) or facts.complete:
        return facts
    if facts.draft and known.draft and _disagree(facts.draft, known.draft, _DRAFT_IDENTITY):
        return facts
    filled: dict[str, Any] = {
        field: getattr(known, field)
        for field in _COMPLETED
        if getattr(facts, field) is None and getattr(known, field) is not None
    }
    if known.layers is not None and not _has_sizes(facts):
        filled["layers"] = known.layers
    if facts.draft is not None and known.draft is not None:
        stated = facts.draft.model_dump(exclude_none=True)
        filled["draft"] = DraftPart(**known.draft.model_dump(exclude_none=True) | stated)
    return facts.model_copy(update=filled)


def _disagree(ours: object, theirs: object, fields: tuple[str, ...]) -> bool:
    return any(differ(getattr(ours, field), getattr(theirs, field)) for field in fields)


def _has_sizes(facts: Checkpoint) -> bool:
    """Return whether the cache size of every attention layer is known."""
    return facts.layers is not None and all(
        part.kind in ("recurrent", "shared", "none")
        or None not in (part.key_value_heads, part.head_size)
        for part in facts.layers
    )
