"""Faults of a plan beyond its rules: machine, layout, pair, memory, cache."""

from dataclasses import replace

from slipstream.checkpoints.pairing import Fault, pair
from slipstream.engines import vllm
from slipstream.hardware import Host, find_obstacle
from slipstream.planning.asked import AskedSettings
from slipstream.planning.attention import find_turboquant_obstacle
from slipstream.planning.memory import TURBOQUANT_BITS
from slipstream.planning.patches import DRAFTER_POSITIONS, drafts_past_its_context
from slipstream.planning.placement import count_shards, decide_utilization, takes_pictures
from slipstream.planning.plan import MemoryBudget
from slipstream.planning.settings import EngineSettings
from slipstream.planning.situation import Situation
from slipstream.units import show_bytes


def find_host_fault(host: Host) -> list[Fault]:
    """Return why a machine cannot serve anything; no other fault matters then."""
    obstacle = find_obstacle(host)
    if obstacle is None:
        return []
    return [Fault(code="host", verdict="refuse", message=obstacle.message, hint=obstacle.hint)]


def find_layout_faults(situation: Situation, settings: EngineSettings) -> list[Fault]:
    """Compare the accelerators and machines that a model needs with those that exist."""
    nodes = settings.nodes.value if settings.nodes else 1
    shards = count_shards(settings.tensor_parallel, settings.pipeline_parallel)
    seen = len(situation.host.accelerators)
    if nodes == 1 and shards > max(1, seen):
        return [
            Fault(
                code="accelerators",
                verdict="refuse",
                message=f"the model is to be spread over {shards} accelerators, "
                f"and this machine has {seen}",
                hint=f"slipstream recipes --target {situation.target.name}",
            )
        ]
    if nodes == 1:
        return []
    linked = any(port.active for port in situation.host.fabric)
    state = "has an active link; the others were not seen" if linked else "has no active link"
    return [
        Fault(
            code="nodes",
            verdict="warn" if linked else "refuse",
            message=f"the model is to be spread over {nodes} machines: this one {state}",
            hint="slipstream probe, on each of them",
        )
    ]


def find_pair_faults(situation: Situation, *, draft_length: int, context: int) -> list[Fault]:
    """Return the faults of the pair, and of the engine with this pair."""
    method, drafter = situation.method, situation.drafter
    if not situation.wishes.speculation or (method is None and situation.asked.method):
        drafter = None
    engine = vllm.find_engine_faults(
        situation.target,
        drafter,
        runner=situation.runner,
        on_cpu=situation.on_cpu,
        capability=situation.capability,
    )
    if drafter is None:
        return list(engine)
    pairing = pair(
        situation.target,
        drafter,
        draft_length=draft_length or None,
        context=context,
        as_model=method is not None and method.needs == "model",
    )
    patched = drafts_past_its_context(situation, context)
    return [*(_ease(fault) if patched else fault for fault in pairing.faults), *engine]


def _ease(fault: Fault) -> Fault:
    """Turn too few positions of a drafter into a warning where a patch adds the others."""
    if fault.code != "drafter-context":
        return fault
    message = f"{fault.message}: past them it drafts untrained (patch {DRAFTER_POSITIONS})"
    return fault.model_copy(update={"verdict": "warn", "message": message})


def find_headroom_fault(situation: Situation) -> list[Fault]:
    """Warn if a share of unified memory leaves the system too little, which freezes the machine."""
    asked = situation.find_asked("memory_utilization")
    if asked is None or not situation.is_unified:
        return []
    wishes = situation.wishes.model_copy(update={"memory_utilization": None})
    ours = decide_utilization(replace(situation, wishes=wishes, asked=AskedSettings()))
    if ours is None or asked.value <= ours.value:
        return []
    return [
        Fault(
            code="headroom",
            verdict="warn",
            message=f"a share of {asked.value:g} was asked for; here {ours.value:g} leaves the "
            "system what it needs, and Sparks froze at 0.85",
            hint=f"--gpu-memory-utilization {ours.value:g} after --",
        )
    ]


def find_memory_faults(memory: MemoryBudget, sequences: int) -> list[Fault]:
    """Refuse what does not fit, and warn about what fits in part or is unknown."""
    if memory.items[0].size_bytes is None:
        return [
            Fault(
                code="memory-unknown",
                verdict="warn",
                message="the size of the weights could not be told, nor whether they fit",
                hint="run this again where the hub can be read",
            )
        ]
    weights = [item.size_bytes for item in memory.items if item.name.endswith("weights")]
    known = sum(size for size in weights if size is not None)
    if memory.usable_bytes is not None and known > memory.usable_bytes:
        return [
            Fault(
                code="memory",
                verdict="refuse",
                message=f"the weights take {show_bytes(known)}, "
                f"and {show_bytes(memory.usable_bytes)} are usable here",
                hint="a smaller quantization, or a machine with more memory",
            )
        ]
    fit = memory.sequences_that_fit
    if fit is None or fit >= sequences:
        return []
    return [
        Fault(
            code="cache",
            verdict="refuse" if fit == 0 else "warn",
            message=f"{fit} sequences of full length fit beside the weights, not {sequences}",
            hint=_suggest_context(memory),
        )
    ]


def _suggest_context(memory: MemoryBudget) -> str:
    """Return the longest context that would fit, if that is known."""
    if memory.kv_pool_bytes and memory.kv_bytes_per_token and memory.sequences_that_fit == 0:
        tokens = memory.kv_pool_bytes // memory.kv_bytes_per_token // 1024 * 1024
        if tokens:
            return f"--context {tokens}"
    return "a shorter --context, fewer --users, or --goal capacity"


def find_turboquant_fault(situation: Situation, kv_dtype: str) -> list[Fault]:
    """Refuse a TurboQuant cache on a target or backend that does not support it."""
    obstacle = find_turboquant_obstacle(situation) if kv_dtype in TURBOQUANT_BITS else None
    if obstacle is None:
        return []
    return [
        Fault(
            code="turboquant",
            verdict="refuse",
            message=f"{kv_dtype} was asked for, but {obstacle}",
            hint="leave the cache in bfloat16, or --kv-cache-dtype fp8 after --",
        )
    ]


def find_pictures_fault(situation: Situation) -> list[Fault]:
    """Refuse pictures for a model that takes none."""
    if not situation.wishes.pictures or takes_pictures(situation):
        return []
    return [
        Fault(
            code="pictures",
            verdict="refuse",
            message=f"--pictures was asked for, and {situation.target.name} takes none: "
            f"{situation.target.architecture or 'its class is unknown, and'} has no vision part",
            hint=f"slipstream plan {situation.target.name}, without --pictures",
        )
    ]
