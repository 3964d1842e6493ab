"""Rules for patches: which ones the plugin applies inside vLLM, and why here.

The patches themselves are in `slipstream.vllm_plugin.patches`, which nothing imports; the engine
is told their names by a variable.
"""

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.settings import Choice, EngineSettings

VARIABLE = "SLIPSTREAM_PATCHES"
CPU_SAMPLING = "cpu-sampling"
CPU_TOP_K = "cpu-top-k"
DFLASH_NO_DRAFTS = "dflash-no-drafts"
DRAFTER_POSITIONS = "drafter-positions"
TURBOQUANT_GRAPHS = "turboquant-graphs"

_ONE_SPECULATOR = ("dflash", "dflash2", "dspark")


def decide_patches(inputs: PlanInputs, settings: EngineSettings) -> list[Choice[str]]:
    """Return every patch whose fault this plan would otherwise meet."""
    found = (
        *_decide_cpu_patches(inputs, settings),
        _decide_no_drafts(inputs, settings),
        _decide_drafter_positions(inputs, settings),
        _decide_turboquant_graphs(inputs, settings),
    )
    return [choice for choice in found if choice is not None]


def name_patches(patches: list[Choice[str]]) -> dict[str, Choice[str]]:
    """Return the variable by which the plugin in the engine learns the names."""
    if not patches:
        return {}
    names = ",".join(choice.value for choice in patches)
    because = "; ".join(choice.because for choice in patches)
    return {VARIABLE: Choice(names, patches[0].source, because)}


def drafts_past_its_context(inputs: PlanInputs, context: int) -> bool:
    """Return whether a drafter that knows too few positions can be given the others.

    Only on runner V2 (V1 stops drafting there), and only with unscaled positions: a scaled
    rotary table has a length of its own. The target must reach so far itself, or be stretched.
    """
    draft, drafter, target = inputs.draft, inputs.drafter, inputs.target
    if draft is None or drafter is None or inputs.runner == "V1":
        return False
    reaches = target.context is not None and context <= target.context
    return (
        draft.family in _ONE_SPECULATOR
        and drafter.context is not None
        and drafter.context < context
        and drafter.rope is not None
        and drafter.rope.scaling == "default"
        and (reaches or "--hf-overrides" in inputs.given.rest)
    )


def _decide_cpu_patches(inputs: PlanInputs, settings: EngineSettings) -> list[Choice[str]]:
    if not inputs.on_cpu or settings.speculation is None:
        return []
    return [
        Choice(
            CPU_SAMPLING,
            "hardware",
            "on a CPU, drafted requests with a temperature are sampled at uninitialised memory "
            "(vllm#55005)",
        ),
        Choice(
            CPU_TOP_K, "hardware", "on a CPU with drafts, top_k without top_p crashes the engine"
        ),
    ]


def _decide_no_drafts(inputs: PlanInputs, settings: EngineSettings) -> Choice[str] | None:
    if settings.speculation is None or inputs.runner != "V1" or inputs.draft is None:
        return None
    if inputs.draft.family != "dflash":
        return None
    return Choice(
        DFLASH_NO_DRAFTS,
        "default",
        "under load the draft length falls to zero, and the drafter's pass is skipped",
    )


def _decide_drafter_positions(inputs: PlanInputs, settings: EngineSettings) -> Choice[str] | None:
    context = settings.context
    if context is None or not drafts_past_its_context(inputs, context.value):
        return None
    return Choice(
        DRAFTER_POSITIONS,
        "checkpoint",
        "past the drafter's context vLLM reads beyond its rotary table (vllm#57941, PR #57964)",
    )


def _decide_turboquant_graphs(inputs: PlanInputs, settings: EngineSettings) -> Choice[str] | None:
    """Patch TurboQuant's graphs if the user chose them; our own plans split the graphs."""
    compiled = settings.eager is None or not settings.eager.value
    packed = settings.kv_dtype is not None and settings.kv_dtype.value in TURBOQUANT_BITS
    mode = settings.compilation.value.get("cudagraph_mode") if settings.compilation else None
    if (
        inputs.on_cpu
        or settings.speculation is None
        or not (compiled and packed)
        or mode in ("PIECEWISE", "NONE")
    ):
        return None
    return Choice(
        TURBOQUANT_GRAPHS,
        "user",
        "TurboQuant with speculation gives degenerate text under whole graphs "
        "(vllm#53180, PR #53406)",
    )
