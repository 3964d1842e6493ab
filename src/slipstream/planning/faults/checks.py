"""Faults of a plan beyond its rules: machine, layout, pair, method, memory, cache."""

from collections.abc import Iterator

from slipstream.checkpoints.pairing import Fault, pair, refuse, warn
from slipstream.engines import vllm
from slipstream.engines.vllm_methods import METHODS
from slipstream.hardware import Host, find_obstacle
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.plan import MemoryBudget
from slipstream.planning.settings import EngineSettings
from slipstream.planning.settings.attention import drafts_without_cache, find_turboquant_obstacle
from slipstream.planning.settings.patches import DRAFTER_POSITIONS, drafts_past_its_context
from slipstream.planning.settings.placement import decide_utilization, takes_pictures
from slipstream.units import show_bytes


def find_host_fault(host: Host) -> list[Fault]:
    obstacle = find_obstacle(host)
    return [] if obstacle is None else [refuse("host", obstacle.message, obstacle.hint)]


def find_layout_faults(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    """Compare the accelerators and machines that a model needs with those that exist."""
    nodes = settings.nodes.value if settings.nodes else 1
    seen = len(inputs.host.accelerators)
    if nodes == 1 and settings.shards > max(1, seen):
        yield refuse(
            "accelerators",
            f"the model needs {settings.shards} accelerators, and this machine has {seen}",
            f"slipstream models {inputs.target.name}",
        )
    if nodes > 1:
        linked = any(port.active for port in inputs.host.fabric)
        state = "has an active link; the others were not found" if linked else "has no active link"
        message = f"the model needs {nodes} machines: this one {state}"
        yield (warn if linked else refuse)("nodes", message, "slipstream probe, on each of them")


def find_pair_faults(inputs: PlanInputs, settings: EngineSettings) -> list[Fault]:
    method, drafter = inputs.method, inputs.drafter
    if method is None and (inputs.method_choice or inputs.given.drafting.method):
        drafter = None
    engine = vllm.find_engine_faults(
        inputs.target, drafter, on_cpu=inputs.on_cpu, capability=inputs.capability
    )
    if drafter is None:
        return list(engine)
    asked = settings.context.value if settings.context else -1
    context = asked if asked > 0 else inputs.target.context or 0
    pairing = pair(
        inputs.target,
        drafter,
        draft_length=settings.draft_length or None,
        context=context,
        as_model=method is not None and method.needs == "model",
    )
    patched = drafts_past_its_context(inputs, context)
    return [*(_ease(fault) if patched else fault for fault in pairing.faults), *engine]


def _ease(fault: Fault) -> Fault:
    """Turn too few positions of a drafter into a warning where a patch adds the others."""
    if fault.code != "drafter-context":
        return fault
    message = f"{fault.message}: beyond them its drafts are untrained (patch {DRAFTER_POSITIONS})"
    return warn(fault.code, message, fault.hint)


def find_method_faults(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
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
    if method.package is not None:
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


def find_headroom_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn if a share of unified memory leaves the system too little, which freezes the machine."""
    given, ours = inputs.given.memory_utilization, decide_utilization(inputs)
    if given is not None and inputs.is_unified and ours is not None and given.value > ours.value:
        yield warn(
            "headroom",
            f"a share of {given.value:g} was asked for; here {ours.value:g} leaves the "
            "system what it needs, and Sparks froze at 0.85",
            f"--gpu-memory-utilization {ours.value:g} after --",
        )


def find_memory_faults(settings: EngineSettings, memory: MemoryBudget) -> Iterator[Fault]:
    """Refuse what does not fit, and warn about what fits in part or is unknown."""
    if memory.items[0].size_bytes is None:
        message = "the size of the weights is unknown, and so is whether they fit"
        yield warn("memory-unknown", message, "run this again with access to the hub")
        return
    weights = [item.size_bytes for item in memory.items if item.name.endswith("weights")]
    known = sum(size for size in weights if size is not None)
    if memory.usable_bytes is not None and known > memory.usable_bytes:
        yield refuse(
            "memory",
            f"the weights take {show_bytes(known)}, "
            f"and {show_bytes(memory.usable_bytes)} are usable here",
            "a smaller quantization, or a machine with more memory",
        )
        return
    fit, wanted = memory.sequences_that_fit, settings.sequences.value if settings.sequences else 1
    if fit is not None and fit < wanted:
        message = f"{fit} sequences of full length fit into memory, not {wanted}"
        yield (warn if fit else refuse)("cache", message, _suggest_context(memory))


def _suggest_context(memory: MemoryBudget) -> str:
    if memory.kv_pool_bytes and memory.kv_bytes_per_token and memory.sequences_that_fit == 0:
        tokens = memory.kv_pool_bytes // memory.kv_bytes_per_token // 1024 * 1024
        if tokens:
            return f"--context {tokens}"
    return "a shorter --context, fewer --users, or --goal capacity"


def find_turboquant_fault(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Fault]:
    kv_dtype = settings.cache_dtype
    obstacle = find_turboquant_obstacle(inputs) if kv_dtype in TURBOQUANT_BITS else None
    if obstacle is not None:
        hint = "leave the cache in bfloat16, or --kv-cache-dtype fp8 after --"
        yield refuse("turboquant", f"{kv_dtype} cannot be used: {obstacle}", hint)


def find_agent_fault(inputs: PlanInputs) -> Iterator[Fault]:
    """Warn about a requested drafter that costs an agent the prefix cache."""
    caching = inputs.given.prefix_caching
    refused = caching is not None and not caching.value
    if inputs.options.goal == "agent" and drafts_without_cache(inputs) and not refused:
        yield warn(
            "agent-drafts",
            "the drafter disables the prefix cache on this hybrid target (vllm#54360), so every "
            "turn computes the whole conversation again",
            "leave out --drafter, --method, --k and engine arguments for speculation, "
            "or add --no-speculation",
        )


def find_pictures_fault(inputs: PlanInputs) -> Iterator[Fault]:
    target = inputs.target
    if inputs.options.pictures and not takes_pictures(inputs):
        yield refuse(
            "pictures",
            f"--pictures was asked for, and {target.name} takes none: "
            f"{target.architecture or 'its class is unknown, and'} has no vision part",
            f"slipstream plan {target.name}, without --pictures",
        )
