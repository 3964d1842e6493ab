"""Rules for attention: backends of target and drafter, cache types, prefix caching."""

from collections.abc import Callable

from pydantic import JsonValue

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.settings import Choice, EngineSettings
from slipstream.units import version_tuple

GEMMA4 = "Gemma4"
TURBOQUANT_BACKEND = "TURBOQUANT"
# Major capabilities on which FlashAttention reads an fp8 cache: its version 3 on sm_90, and its
# version 4 on sm_100 and sm_103 (fa_utils.py).
FP8_FLASH_ATTENTION = (9, 10)
# The lowest compute capability with native FP8; Triton does not emulate it.
FP8_CAPABILITY = (8, 9)
# TurboQuant is slower: where neither holds all, it must hold this much more.
HANDICAP = {"fp8": 1.0, "turboquant_k8v4": 1.2}
COST_OF_A_SMALLER_CACHE = {
    "fp8": "no loss was seen with it (vLLM's blog, 11 May 2026)",
    "turboquant_k8v4": "it costs 1.2 % more perplexity and is slower than fp8",
}


def is_gemma4(inputs: PlanInputs) -> bool:
    architecture, name = inputs.target.architecture, inputs.target.name.lower()
    return architecture.startswith(GEMMA4) if architecture else "gemma-4" in name


def decide_target_backend(inputs: PlanInputs) -> Choice[str] | None:
    """Leave the target's backend to the engine, but for Gemma 4 where only Triton runs it.

    Old recipes force one because their engine drafted on it only; since vllm#39930 the
    drafter has its own. On sm_90 vLLM runs all layers of Gemma 4 on FlashAttention 4; on sm_110
    its selector names FlashAttention, which then falls back to a version without such heads.
    """
    if inputs.on_cpu or not is_gemma4(inputs) or inputs.capability_major == 9:
        return None
    why = "Gemma 4's heads are 512 wide, which FlashAttention 4 runs on sm_90 only (fa_utils.py)"
    return Choice("TRITON_ATTN", "checkpoint", why)


def decide_drafter_backend(inputs: PlanInputs) -> Choice[str] | None:
    """Choose the drafter's backend: it must support non-causal attention and is not inherited."""
    if not _drafts_in_one_pass(inputs) or inputs.on_cpu:
        return None
    advised = inputs.from_recipe(inputs.local_advice.drafter_backend)
    asserts = inputs.capability == "12.1"
    if advised is not None and not (asserts and advised.value == "FLASH_ATTN"):
        return advised
    if asserts:
        why = "FlashAttention 2 fails a device assert in non-causal drafts on sm_121 (vllm#50707)"
        return Choice("TRITON_ATTN", "hardware", why)
    if inputs.host.on_rocm:
        return Choice("TRITON_ATTN", "hardware", "every ROCm build of vLLM drafts on it")
    why = "the engine's first choice for non-causal drafts"
    if inputs.capability_major == 10:
        why = "FlashInfer's non-causal path is known to be faulty on sm_100 (platforms/cuda.py)"
    return Choice("FLASH_ATTN", "hardware", why)


def _drafts_in_one_pass(inputs: PlanInputs) -> bool:
    return inputs.method is not None and inputs.method.in_one_pass


def find_turboquant_obstacle(inputs: PlanInputs) -> str | None:
    target = inputs.target
    if inputs.on_cpu:
        return "the CPU backend does not support TurboQuant"
    backend = inputs.fixed.attention_backend
    if backend is not None and backend.value != TURBOQUANT_BACKEND:
        return f"--attention-backend {backend.value} cannot read it: leave that out"
    if target.has_sliding_windows:
        return "TurboQuant does not support sliding windows"
    if target.attention_sinks:
        return "TurboQuant does not support attention sinks"
    if target.layers is None:
        return "the target's layers are unknown"
    for part in target.layers:
        if part.kind == "latent":
            return "TurboQuant does not support an MLA cache"
        if part.kind == "full" and (part.head_size or 0).bit_count() != 1:
            return f"its rotation needs heads of a power of two, not {part.head_size}"
    return None


def has_fp8_cache(inputs: PlanInputs) -> bool:
    """Return whether a backend here surely reads an fp8 cache."""
    backend = inputs.fixed.attention_backend
    if backend is not None and backend.value == "FLASH_ATTN":
        return inputs.capability_major in FP8_FLASH_ATTENTION
    return version_tuple(inputs.capability or "0.0") >= FP8_CAPABILITY


def decide_kv_dtype(
    inputs: PlanInputs, *, wanted: int, count_fitting: Callable[[str], int | None]
) -> Choice[str] | None:
    """Choose the target's cache type by how many of the wanted sequences fit in it.

    A smaller cache buys capacity, never speed, and TurboQuant costs more of it than fp8.
    """
    if inputs.on_cpu:
        return None
    if (advised := inputs.from_recipe(inputs.local_advice.kv_dtype)) is not None:
        return advised
    if inputs.options.goal != "capacity":
        return None
    plain = count_fitting("auto")
    if plain is None or plain >= wanted:
        return None
    held = {kv_dtype: count_fitting(kv_dtype) or 0 for kv_dtype in _find_smaller_caches(inputs)}
    enough = (kv_dtype for kv_dtype, count in held.items() if count >= wanted)
    chosen = next(enough, max(held, key=lambda kind: held[kind] / HANDICAP[kind], default="auto"))
    if held.get(chosen, 0) <= plain:
        return None
    fits = f"bfloat16 holds {plain} of {wanted} sequences, this type {held[chosen]}"
    return Choice(chosen, "hardware", f"{fits}; {COST_OF_A_SMALLER_CACHE[chosen]}")


def list_cache_notes(inputs: PlanInputs, settings: EngineSettings) -> list[str]:
    """Say what a cache that was made smaller costs this target in quality, or what measures it."""
    choice = settings.kv_dtype
    if choice is None or choice.source != "hardware":
        return []
    evidence = inputs.recipe.evidence if inputs.recipe is not None else ()
    known = [
        f"with a cache in {choice.value}, {100 * one.lost_share:.1f} of 100 tokens are no longer "
        f"the target's best one ({one.by}, {one.hardware}: {one.source})"
        for one in evidence
        if one.kv_dtype == choice.value and one.lost_share is not None
    ]
    words = f"{inputs.target.name} --cache -- --kv-cache-dtype {choice.value}"
    unknown = f"the effect of a cache in {choice.value} on this target's text is not measured"
    return known or [f"{unknown}: slipstream verify {words}"]


def _find_smaller_caches(inputs: PlanInputs) -> list[str]:
    """Return the cache types that are possible here, the cheapest first."""
    possible = {
        "fp8": has_fp8_cache(inputs),
        "turboquant_k8v4": find_turboquant_obstacle(inputs) is None,
    }
    return [kv_dtype for kv_dtype, here in possible.items() if here]


def decide_drafter_kv_dtype(inputs: PlanInputs, kv_dtype: str) -> Choice[str] | None:
    """Choose the type of the drafter's cache, which would otherwise inherit the target's."""
    if not _drafts_in_one_pass(inputs):
        return None
    if (advised := inputs.from_recipe(inputs.local_advice.drafter_kv_dtype)) is not None:
        return advised
    if kv_dtype in TURBOQUANT_BITS:
        why = "no non-causal backend supports TurboQuant for the drafter"
        return Choice("bfloat16", "checkpoint", why)
    stored = inputs.target.quantization
    if kv_dtype == "auto" and stored is not None and stored.kv_dtype is not None:
        kv_dtype = stored.kv_dtype
    read_here = inputs.capability_major in FP8_FLASH_ATTENTION and kv_dtype != "fp8_e5m2"
    if kv_dtype.startswith("fp8") and not read_here:
        backend = inputs.fixed.drafting.attention_backend or decide_drafter_backend(inputs)
        if inputs.on_cpu:
            why = (
                "the CPU backend has fp8 and the model's own type, and writes past any other's end"
            )
            return Choice("auto", "hardware", why)
        why = "drafts from an fp8 cache were not measured here"
        if backend is not None and backend.value == "FLASH_ATTN":
            why = "FlashAttention reads fp8_e4m3 only, on sm_90 and sm_10x"
        return Choice("bfloat16", "hardware", f"{why}; the drafter's is small")
    return None


def decide_graph_mode(inputs: PlanInputs, kv_dtype: str) -> Choice[dict[str, JsonValue]] | None:
    """Choose piecewise graphs where a full one gives wrong text (vllm#53180)."""
    if inputs.method is None or kv_dtype not in TURBOQUANT_BITS:
        return None
    why = "TurboQuant with speculation gives degenerate text under full graphs (vllm#53180)"
    return Choice({"cudagraph_mode": "PIECEWISE"}, "checkpoint", why)


def decide_prefix_caching(inputs: PlanInputs) -> Choice[bool] | None:
    """Turn prefix caching off where speculation breaks it, and on for an agent elsewhere."""
    if drafts_without_cache(inputs):
        why = "on a hybrid target drafts drop the trailing block: no cache hits, only cost "
        return Choice(False, "checkpoint", f"{why}(vllm#54360, #51250)")
    needed = inputs.options.goal == "agent"
    # On a hybrid target a recipe does without it for its drafts, which an agent does not have.
    if not (needed and inputs.target.is_hybrid) and inputs.local_advice.prefix_caching is False:
        return inputs.from_recipe(False)
    if needed:
        why = "every turn of an agent repeats the conversation so far"
        return Choice(True, "default", f"{why}: only the new part is computed")
    return None


def drafts_without_cache(inputs: PlanInputs) -> bool:
    """Return whether the drafter leaves the prefix cache without hits (vllm#54360).

    MTP keeps it: vLLM finds the draft layers of that method (v1/core/kv_cache_utils.py). From 0.33
    on nothing is dropped, unless a drafter reads ahead while the cache is sent elsewhere.
    """
    draft = inputs.draft
    if draft is None or draft.family == "mtp" or not inputs.target.is_hybrid:
        return False
    reads_ahead = inputs.method is not None and not inputs.method.in_one_pass
    sent = "--kv-transfer-config" in inputs.fixed.rest
    return not inputs.is_since("0.33") or (reads_ahead and sent)
