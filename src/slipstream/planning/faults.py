"""What speaks against a plan: refusals and warnings, each with a way out.

Faults between two checkpoints are in `checkpoints/pairing.py`, those of an engine version in
`engines/vllm.py`, combinations that were seen to fail in `recipes/catalogue/known-bad/`.
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.pairing import Fault, pair, refuse, warn
from slipstream.engines import vllm
from slipstream.engines.arguments import find_unknown
from slipstream.engines.vllm_methods import METHODS, keeps_mtp
from slipstream.engines.vllm_tables import VERSION, VERSIONS
from slipstream.hardware import find_obstacle
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.plan import MemoryBudget
from slipstream.planning.settings import FLAGS, EngineSettings
from slipstream.planning.settings.attention import drafts_without_cache, find_turboquant_obstacle
from slipstream.planning.settings.conversation import find_conversation_faults
from slipstream.planning.settings.copies import find_copy_obstacle
from slipstream.planning.settings.draft_lengths import ADAPTIVE, find_adaptive_obstacle
from slipstream.planning.settings.options import AFTER_DASHES
from slipstream.planning.settings.patches import DRAFTER_POSITIONS, drafts_past_its_context
from slipstream.planning.settings.placement import (
    decide_utilization,
    describe_users,
    find_undivided,
    takes_images,
)
from slipstream.planning.settings.scheduling import USUAL_LENGTH
from slipstream.recipes.recipe import Condition, KnownBad
from slipstream.units import show_bytes, version_tuple

# A chat template and a short question take about so many tokens.
LEAST_CONTEXT = 64
# Keys of config.json by which more positions are possible than it states.
SCALING_KEYS = {"rope_parameters", "rope_scaling", "model_max_length"}


def find_faults(
    inputs: PlanInputs,
    settings: EngineSettings,
    memory: MemoryBudget,
    known_bad: tuple[KnownBad, ...],
) -> list[Fault]:
    """Return all faults; where the machine cannot serve anything, no other matters."""
    if (obstacle := find_obstacle(inputs.host)) is not None:
        return [refuse("host", obstacle.message, obstacle.hint)]
    return [
        *_find_layout_faults(inputs, settings),
        *_find_rocm_fault(inputs),
        *_find_version_fault(inputs, settings),
        *_find_context_fault(inputs, settings),
        *_find_pair_faults(inputs, settings),
        *_find_method_faults(inputs, settings),
        *_find_headroom_fault(inputs),
        *_find_memory_faults(inputs, settings, memory),
        *_find_turboquant_fault(inputs, settings),
        *_find_agent_fault(inputs),
        *_find_images_fault(inputs),
        *_find_copy_fault(inputs),
        *_find_adaptive_fault(inputs, settings),
        *_find_lossy_fault(inputs, settings),
        *_find_gated_faults(inputs),
        *find_conversation_faults(inputs, settings),
        *_find_known_bad(known_bad, inputs, settings),
    ]


def _find_layout_faults(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Compare the accelerators and machines that a model needs with those that exist."""
    nodes = settings.nodes.value if settings.nodes else 1
    seen, needed = len(inputs.host.accelerators), settings.local_accelerators
    name = inputs.target.name
    if nodes == 1 and needed > max(1, seen):
        copies = seen // settings.shards
        hint = f"slipstream plan {name} -- {FLAGS['data_parallel']} {copies}"
        yield refuse(
            "accelerators",
            f"the plan needs {needed} accelerators, and this machine has {seen}",
            hint if copies else f"slipstream plan {name}, without parallel sizes after --",
        )
    if nodes > inputs.host.machines:
        linked = any(port.active for port in inputs.host.fabric)
        state = "has an active link; the others were not found" if linked else "has no active link"
        message = f"the model needs {nodes} machines: this one {state}"
        yield (warn if linked else refuse)("nodes", message, "slipstream probe, on each of them")
    ranks = settings.tensor_parallel.value if settings.tensor_parallel else 1
    if (undivided := find_undivided(inputs, ranks)) is not None:
        sizes = range(1, min(ranks, max(1, seen) + 1))
        fitting = max(size for size in sizes if find_undivided(inputs, size) is None)
        yield refuse(
            "heads",
            f"{undivided}, which {ranks} ranks cannot share",
            f"slipstream plan {name} -- {FLAGS['tensor_parallel']} {fitting}",
        )


def _find_context_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Refuse a context beyond the target's positions, as vLLM does, and one for no conversation."""
    context, positions = settings.context, _find_positions(inputs.target, settings)
    if context is not None and 0 <= context.value < LEAST_CONTEXT:
        yield refuse(
            "context",
            f"a context of {context.value} tokens is too short for a prompt and its answer",
            f"slipstream plan {inputs.target.name} --context {USUAL_LENGTH}",
        )
    if context is None or positions is None or context.value <= positions:
        return
    flag = f"-- {FLAGS['context']}" if context.because == AFTER_DASHES else "--context"
    yield refuse(
        "context",
        f"a context of {context.value} tokens is longer than the {positions} positions of "
        f"{inputs.target.name}",
        f"slipstream plan {inputs.target.name} {flag} {positions}",
    )


def _find_positions(target: Checkpoint, settings: EngineSettings) -> int | None:
    """Return the target's positions, None if they are unknown or --hf-overrides scales them."""
    overrides = settings.rest.get("--hf-overrides")
    if overrides is None:
        return target.context
    changed = overrides.value if isinstance(overrides.value, dict) else {}
    inner = changed.get("text_config")
    changed = {**changed, **(inner if isinstance(inner, dict) else {})}
    if not changed or SCALING_KEYS & changed.keys():
        return None
    stated = changed.get("max_position_embeddings", target.context)
    return stated if isinstance(stated, int) else None


def _find_rocm_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn on an AMD GPU: vLLM drafts there, and no plan has been tried on one."""
    if inputs.host.on_rocm:
        yield warn(
            "rocm",
            "vLLM's ROCm build drafts on ROCM_ATTN, TRITON_ATTN and, on Instinct with AITER, "
            "ROCM_AITER_FA; no plan of slipstream was tried on an AMD GPU, and drafts on ROCM_ATTN "
            "were slower than plain decoding on MI300X (vllm-project/recipes#601)",
            f"slipstream plan {inputs.target.name} --host {inputs.machine} --json > plan.json, and "
            "on that machine slipstream compare plan.json",
        )


def _find_version_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Refuse what another known version of vLLM has, and the planned one has not."""
    given = settings.list_arguments()
    for unknown in find_unknown(given, inputs.engine_version):
        others = [one for one in VERSIONS if unknown not in find_unknown(given, one)]
        yield refuse(
            "version",
            f"vLLM {inputs.engine_version} has no {unknown}",
            f"leave it out{''.join(f', or pip install vllm=={one}' for one in others)}",
        )


def _find_pair_faults(inputs: PlanInputs, settings: EngineSettings) -> list[Fault]:
    method, drafter = inputs.method, inputs.drafter
    if method is None and (inputs.method_choice or inputs.fixed.drafting.method):
        drafter = None
    engine = vllm.find_engine_faults(
        inputs.target,
        drafter,
        on_cpu=inputs.on_cpu,
        capability=inputs.capability,
        version=inputs.engine_version,
    )
    if drafter is None:
        return list(engine)
    planned = settings.context.value if settings.context else -1
    context = planned if planned > 0 else inputs.target.context or 0
    pairing = pair(
        inputs.target,
        drafter,
        draft_length=settings.draft_length or None,
        context=context,
        as_model=method is not None and method.needs == "model",
    )
    patched = drafts_past_its_context(inputs, context)
    by = (
        f"vLLM {inputs.engine_version}" if inputs.is_since("0.33") else f"patch {DRAFTER_POSITIONS}"
    )
    return [*(_ease(fault, by) if patched else fault for fault in pairing.faults), *engine]


def _ease(fault: Fault, by: str) -> Fault:
    """Turn too few positions of a drafter into a warning where something adds the others."""
    if fault.code != "drafter-context":
        return fault
    message = f"{fault.message}: the drafter is untrained beyond them ({by} adds positions)"
    return warn(fault.code, message, fault.hint)


def _find_method_faults(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Return the faults of a drafting method with the drafter, the target and other settings."""
    if (method := inputs.method) is None:
        return
    target, draft, drafter = inputs.target, inputs.draft, inputs.drafter
    family = draft.family if draft and method.needs != "model" else None
    if drafter and family and METHODS[family].engine_name != method.engine_name:
        message = f"{drafter.name} is a {family} drafter, not a {method.name} one"
        yield refuse("method", message, f"--method {family}")
    if method.needs == "heads" and inputs.draft_model is None and not target.predicting_layers:
        known = target.predicting_layers is not None
        lack = "has no MTP layers" if known else "may have no MTP layers: its files are not here"
        hint = f"slipstream plan {target.name} --method ngram"
        yield (refuse if known else warn)("mtp-layers", f"{target.name} {lack}", hint)
    elif method.needs == "heads" and inputs.draft_model is None and not keeps_mtp(target.name):
        message = f"vLLM takes {target.name} for a drafter because of its name, whatever the method"
        hint = f"rename its folder, or slipstream plan {target.name} --method ngram"
        yield refuse("mtp-name", message, hint)
    package = (method.package or "").partition("==")[0]
    if package and package not in inputs.host.software.packages:
        message = f"{method.name} needs {method.package} where the engine is installed"
        yield warn("package", message, f"pip install {method.package}")
    stages = settings.pipeline_parallel
    if stages is not None and stages.value > 1 and inputs.runner == "V1":
        yield refuse(
            "pipeline",
            "vLLM drafts over pipeline stages on its V2 runner only, and this machine runs V1",
            f"slipstream plan {target.name} --method plain",
        )
    # These propose on the CPU (config/vllm.py).
    wanted, name = settings.rest.get("--async-scheduling"), method.name_for(on_cpu=inputs.on_cpu)
    if wanted is not None and wanted.value and name in ("ngram", "suffix"):
        message = f"vLLM has no asynchronous scheduling with {name}"
        yield refuse("async-scheduling", message, "leave out --async-scheduling")


def _find_headroom_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn if a share of unified memory leaves the system too little, which freezes the machine."""
    given, ours = inputs.fixed.memory_utilization, decide_utilization(inputs)
    if given is not None and inputs.is_unified and ours is not None and given.value > ours.value:
        yield warn(
            "headroom",
            f"a share of {given.value:g} was requested; on this machine {ours.value:g} leaves the "
            "system the memory it needs, and DGX Sparks froze at 0.85",
            f"--gpu-memory-utilization {ours.value:g} after --",
        )


def _find_memory_faults(
    inputs: PlanInputs, settings: EngineSettings, memory: MemoryBudget
) -> Iterator[Fault]:
    """Refuse what does not fit, and warn about what is requested and fits in part, or unknown.

    Hints of what does not fit are replaced by commands that were tried (`alternatives.py`).
    """
    left, usable = memory.kv_pool_bytes, show_bytes(memory.usable_bytes)
    if memory.overflows:
        taken = f"weights and buffers take {show_bytes(memory.least_fixed_bytes)}"
        message = f"{taken}, and {usable} are usable here{describe_users(inputs)}"
        yield refuse("memory", message, "--host NAME")
        return
    if memory.items[0].size_bytes is None:
        message = "the size of the weights is unknown, so it is not known whether they fit"
        yield warn("memory-unknown", message, "run this again with access to the hub")
        return
    if memory.sequences_that_fit == 0 or memory.lacks_sequence:
        exact = all(item.least_bytes is None for item in memory.items)
        sure = exact or memory.lacks_sequence
        tokens = f"a sequence of {settings.context.value if settings.context else 0} tokens"
        message = f"{tokens} takes {show_bytes(memory.bytes_per_sequence)}, and {show_bytes(left)} "
        message += "are left for it" + ("" if sure else ", by estimated sizes of the weights")
        message += describe_users(inputs)
        yield (refuse if sure else warn)("cache", message, "--context TOKENS")
        return
    sequences, context = inputs.fixed.sequences, inputs.fixed.context
    held = memory.sequences_that_fit if context else memory.usual_sequences_that_fit
    if sequences is not None and held is not None and held < sequences.value:
        length = context.value if context else memory.usual_tokens
        message = (
            f"the cache holds {held} of the {sequences.value} sequences at {length} tokens each"
        )
        yield warn("cache", message, f"--users {max(1, held)}, or --goal capacity")


def _find_turboquant_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    kv_dtype = settings.cache_dtype
    obstacle = find_turboquant_obstacle(inputs) if kv_dtype in TURBOQUANT_BITS else None
    if obstacle is not None:
        hint = "leave the cache in bfloat16, or --kv-cache-dtype fp8 after --"
        yield refuse("turboquant", f"{kv_dtype} cannot be used: {obstacle}", hint)


def _find_agent_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn about a requested drafter that costs an agent the prefix cache."""
    caching = inputs.fixed.prefix_caching
    refused = caching is not None and not caching.value
    if inputs.options.goal == "agent" and drafts_without_cache(inputs) and not refused:
        yield warn(
            "agent-drafts",
            "the drafter disables the prefix cache on this hybrid target (vllm#54360), so every "
            "turn computes the whole conversation again",
            "leave out --drafter, --method, --k and engine arguments for speculation, "
            "or add --no-speculation",
        )


def _find_images_fault(inputs: PlanInputs) -> Iterator[Fault]:
    target = inputs.target
    if inputs.options.images and not takes_images(inputs):
        known = target.architecture is not None
        reason = f"{target.architecture} has no vision part" if known else "its class is unknown"
        yield refuse(
            "images",
            f"--images was requested, but {target.name} accepts none: {reason}",
            f"slipstream plan {target.name}, without --images",
        )


def _find_copy_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Refuse copies that were requested and cannot be made."""
    if inputs.options.copy_drafts and (obstacle := find_copy_obstacle(inputs)) is not None:
        hint = f"without --copy: slipstream plan {inputs.target.name}"
        yield refuse("copy", f"--copy was requested: {obstacle}", hint)


def _find_adaptive_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Refuse adaptive verification where vLLM raises as it starts."""
    chosen = inputs.fixed.drafting.rest.get(ADAPTIVE)
    if chosen is None or not chosen.value or settings.speculation is None:
        return
    if (obstacle := find_adaptive_obstacle(inputs, settings)) is not None:
        yield refuse(
            "adaptive",
            f"vLLM does not start with {ADAPTIVE}: {obstacle}",
            f"slipstream plan {inputs.target.name}, without {ADAPTIVE}",
        )


def _find_lossy_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Warn about a verification that lets other text through, as FLy of vLLM 0.33 does."""
    if settings.speculation is not None and (lossy := settings.speculation.lossy) is not None:
        yield warn(
            "lossy",
            f"rejection_sample_method {lossy} accepts tokens that {inputs.target.name} would not "
            "choose: the text changes, and `slipstream verify` does not certify it",
            f"slipstream plan {inputs.target.name}, without rejection_sample_method",
        )


def _find_gated_faults(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn about a model whose files were not read and that the hub gives only to some."""
    for model in (inputs.target, inputs.draft_model):
        if model is not None and model.gated and not model.complete:
            yield warn(
                "gated",
                f"{model.name} is gated: the hub serves it only to users with access",
                f"accept the terms on the hub's page of {model.name}, then set HF_TOKEN",
            )


def _find_known_bad(
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
    accelerator, software = inputs.accelerator, inputs.host.software
    engine = software.engine
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
        "drivers": software.nvidia_driver,
        "nodes_over": settings.nodes.value if settings.nodes else 1,
        "engine_below": inputs.options.vllm or (engine.version if engine else VERSION),
        "environment": [
            f"{name}={value}" for name, value in inputs.local_advice.environment.items()
        ],
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
    if isinstance(wanted, bool):
        return bool(fact == wanted)
    return bool(fact > wanted if field.endswith("_over") else fact < wanted)
