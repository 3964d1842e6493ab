"""The catalogue's known-bad combinations, compared with a plan."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from slipstream.checkpoints.pairing import Fault
from slipstream.engines import vllm
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import EngineSettings
from slipstream.recipes.recipe import Condition, KnownBad
from slipstream.units import version_tuple


def find_known_bad(
    known: tuple[KnownBad, ...], inputs: PlanInputs, settings: EngineSettings
) -> Iterator[Fault]:
    facts = list_facts(inputs, settings)
    for entry in known:
        if is_met(entry.when, facts):
            yield Fault(
                code=entry.name,
                verdict=entry.verdict,
                message=f"{entry.message} ({', '.join(entry.sources)})",
                hint=entry.hint,
            )


def list_facts(inputs: PlanInputs, settings: EngineSettings) -> dict[str, Any]:
    """Return the fact that each field of a condition is about; None is unknown."""
    target, drafter, draft = inputs.target, inputs.draft_model, inputs.draft
    speculation, caching = settings.speculation, settings.prefix_caching
    backend = speculation.attention_backend if speculation else None
    longest = draft.longest_draft if draft else None
    accelerator, recipe = inputs.accelerator, inputs.recipe
    return {
        "targets": target.name,
        "drafters": drafter.name if drafter and draft else None,
        "families": draft.family if draft else None,
        "capabilities": inputs.capability,
        "machines": inputs.machine,
        "kv_dtypes": settings.cache_dtype,
        "drafter_backends": backend.value if backend else None,
        "prefix_caching": caching is None or caching.value,
        "runners": inputs.runner,
        "drafter_quantized": drafter.quantized if drafter and draft else None,
        "hybrid": None if target.layers is None else target.is_hybrid,
        "sequences_over": settings.sequences.value if settings.sequences else None,
        "draft_length_under_block": None if longest is None else settings.draft_length < longest,
        "memory_under_bytes": accelerator.memory_total_bytes if accelerator else None,
        "drivers": inputs.host.software.nvidia_driver,
        "nodes_over": settings.nodes.value if settings.nodes else recipe.nodes if recipe else 1,
        "engine": "vllm",
        "engine_below": vllm.VERSION,
        "environment": [f"{name}={value}" for name, value in inputs.advice.environment.items()],
    }


def is_met(when: Condition, facts: dict[str, Any]) -> bool:
    """Check every field that is given; one about an unknown fact is not met."""
    given = when.model_fields_set
    return bool(given) and all(
        facts[field] is not None and _holds(field, getattr(when, field), facts[field])
        for field in given
    )


def _holds(field: str, wanted: Any, fact: Any) -> bool:
    if field == "engine_below":
        return version_tuple(fact) < version_tuple(wanted)
    if isinstance(wanted, tuple):
        texts = fact if isinstance(fact, list) else [fact]
        return any(fnmatchcase(text.lower(), one.lower()) for text in texts for one in wanted)
    if isinstance(wanted, bool | str):
        return bool(fact == wanted)
    return bool(fact > wanted if field.endswith("_over") else fact < wanted)
