"""Rules for patches: which ones the plugin applies inside vLLM, and why here.

The patches themselves are in `slipstream.vllm_plugin.patches`, which nothing imports; the engine
is told their names by a variable.
"""

from collections.abc import Iterator

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.planning.settings.copies import decide_copies

VARIABLE = "SLIPSTREAM_PATCHES"
CPU_SAMPLING = "cpu-sampling"
CPU_TOP_K = "cpu-top-k"
DFLASH_NO_DRAFTS = "dflash-no-drafts"
DFLASH_SURVIVAL = "dflash-survival"
DFLASH_V2_COPY = "dflash-v2-copy"
DRAFTER_POSITIONS = "drafter-positions"
GREEDY_VERIFICATION = "greedy-verification"
TURBOQUANT_GRAPHS = "turboquant-graphs"

_ONE_SPECULATOR = ("dflash", "dflash2", "dspark")


def decide_patches(inputs: PlanInputs, settings: EngineSettings) -> list[Choice[str]]:
    """Return every patch whose fault this plan would otherwise meet: all are about drafts."""
    return [] if settings.speculation is None else list(_find_patches(inputs, settings))


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
        and (reaches or "--hf-overrides" in inputs.fixed.rest)
    )


def _find_patches(inputs: PlanInputs, settings: EngineSettings) -> Iterator[Choice[str]]:
    if inputs.on_cpu:
        why = "requests with drafts and a temperature are sampled from uninitialised memory"
        yield Choice(CPU_SAMPLING, "hardware", f"on a CPU, {why} (vllm#55005)")
        why = "on a CPU with drafts, top_k without top_p crashes the engine"
        yield Choice(CPU_TOP_K, "hardware", why)
        why = "on a CPU, verifying greedy drafts copies logits in every step"
        yield Choice(GREEDY_VERIFICATION, "hardware", why)
    if inputs.runner == "V1" and inputs.draft is not None and inputs.draft.family == "dflash":
        why = "under load the draft length falls to zero, and the drafter's pass is skipped"
        yield Choice(DFLASH_NO_DRAFTS, "default", why)
        why = "draft tokens that the drafter itself finds unlikely are not verified"
        yield Choice(DFLASH_SURVIVAL, "default", why)
    if inputs.runner == "V2" and decide_copies(inputs):
        yield Choice(DFLASH_V2_COPY, "user", "drafts are copied where a request repeats its text")
    beyond = settings.context and drafts_past_its_context(inputs, settings.context.value)
    if beyond and not inputs.is_since("0.33"):
        why = "past the drafter's context vLLM reads beyond its rotary table"
        yield Choice(DRAFTER_POSITIONS, "checkpoint", f"{why} (vllm#57941, PR #57964)")
    # Only if the user chose whole graphs: our own plans split them.
    mode = settings.compilation.value.get("cudagraph_mode") if settings.compilation else None
    whole = not settings.is_eager and mode not in ("PIECEWISE", "NONE")
    if not inputs.on_cpu and whole and settings.cache_dtype in TURBOQUANT_BITS:
        why = "TurboQuant with speculation gives degenerate text under whole graphs"
        yield Choice(TURBOQUANT_GRAPHS, "user", f"{why} (vllm#53180, PR #53406)")
