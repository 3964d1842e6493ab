"""The catalogue's known-bad combinations, compared with a plan."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.situation import Situation
from slipstream.recipes.recipe import Condition, KnownBad


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a condition can test."""

    situation: Situation
    draft_length: int
    sequences: int
    kv_dtype: str
    drafter_backend: str | None
    prefix_caching: bool
    nodes: int
    engine: str
    engine_version: str


def find_known_bad(known: tuple[KnownBad, ...], facts: Facts) -> Iterator[Fault]:
    """Yield a fault for every combination that is met."""
    for entry in known:
        if is_met(entry.when, facts):
            yield Fault(
                code=entry.name,
                verdict=entry.verdict,
                message=f"{entry.message} ({', '.join(entry.sources)})",
                hint=entry.hint,
            )


def is_met(when: Condition, facts: Facts) -> bool:
    """Check every field that is given; one about an unknown fact is not met."""
    situation = facts.situation
    draft, drafter, target = situation.draft, situation.drafter, situation.target
    given = set(when.model_fields_set)
    about_drafts = {"drafters", "families", "drafter_quantized", "draft_length_under_block"}
    if given & about_drafts and (draft is None or drafter is None):
        return False
    checks: dict[str, bool] = {
        "targets": _matches(when.targets, target.name),
        "drafters": drafter is not None and _matches(when.drafters, drafter.name),
        "families": draft is not None and draft.family in when.families,
        "capabilities": situation.capability in when.capabilities,
        "machines": situation.machine in when.machines,
        "kv_dtypes": facts.kv_dtype in when.kv_dtypes,
        "drafter_backends": facts.drafter_backend in when.drafter_backends,
        "prefix_caching": facts.prefix_caching is when.prefix_caching,
        "schemes": target.quantization is not None and target.quantization.scheme in when.schemes,
        "runners": situation.runner in when.runners,
        "drafter_quantized": drafter is not None and drafter.quantized is when.drafter_quantized,
        "hybrid": target.layers is not None and target.is_hybrid is when.hybrid,
        "sequences_over": facts.sequences > (when.sequences_over or 0),
        "draft_length_under_block": draft is not None
        and draft.longest_draft is not None
        and (facts.draft_length < draft.longest_draft) is when.draft_length_under_block,
        "memory_under_bytes": _has_less_memory(situation, when.memory_under_bytes),
        "driver_prefixes": (situation.host.software.nvidia_driver or "").startswith(
            when.driver_prefixes or ("no driver",)
        ),
        "nodes_over": facts.nodes > (when.nodes_over or 0),
        "engine": facts.engine == when.engine,
        "engine_below": _version(facts.engine_version) < _version(when.engine_below or "0"),
        "environment": any(
            f"{name}={value}" in when.environment or name in when.environment
            for name, value in situation.advice.environment.items()
        ),
    }
    return bool(given) and all(checks[field] for field in given)


def _matches(patterns: tuple[str, ...], name: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern.lower()) for pattern in patterns)


def _has_less_memory(situation: Situation, limit: int | None) -> bool:
    accelerator = situation.accelerator
    if accelerator is None or accelerator.memory_total_bytes is None or limit is None:
        return False
    return accelerator.memory_total_bytes < limit


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())
