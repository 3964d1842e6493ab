"""Rules for attention: backends of target and drafter, cache types, prefix caching."""

from collections.abc import Callable
from dataclasses import replace

from pydantic import JsonValue

from slipstream.planning.memory import TURBOQUANT_BITS
from slipstream.planning.settings import Choice
from slipstream.planning.situation import Situation

GEMMA4 = "Gemma4"
TURBOQUANT_BACKEND = "TURBOQUANT"
# The first with 8-bit floats of its own; Triton refuses to emulate them.
FP8_CAPABILITY = (8, 9)
# TurboQuant is slower: where neither holds all, it must hold this much more.
HANDICAP = {"fp8": 1.0, "turboquant_k8v4": 1.2}
COST_OF_A_SMALLER_CACHE = {
    "fp8": "no loss was seen with it (vLLM's blog, 11 May 2026)",
    "turboquant_k8v4": "it costs 1.2 % more perplexity and is slower than fp8",
}


def is_gemma4(situation: Situation) -> bool:
    """Return whether this is Gemma 4, by its class or else by its name."""
    architecture, name = situation.target.architecture, situation.target.name.lower()
    return architecture.startswith(GEMMA4) if architecture else "gemma-4" in name


def decide_target_backend(situation: Situation) -> Choice[str] | None:
    """Leave the target's backend to the engine, but for Gemma 4.

    Old recipes force one because their engine drafted on it only; since vllm#39930 the
    drafter has its own.
    """
    if situation.on_cpu:
        return None
    if (asked := situation.find_asked("attention_backend")) is not None:
        return replace(asked, value=asked.value.upper())
    if is_gemma4(situation):
        return Choice(
            "TRITON_ATTN",
            "checkpoint",
            "Gemma 4's 512-wide heads run on Triton only (NVIDIA forum 367271)",
        )
    return None


def decide_drafter_backend(situation: Situation) -> Choice[str] | None:
    """Choose the drafter's backend: it must support non-causal attention and is not inherited."""
    if not _drafts_in_one_pass(situation) or situation.on_cpu:
        return None
    advised = situation.advice.drafter_backend
    if situation.recipe_fits_machine and advised is not None:
        return situation.from_recipe(advised)
    if situation.capability == "12.1":
        return Choice(
            "TRITON_ATTN",
            "hardware",
            "FlashAttention 2 fails a device assert in non-causal drafts on sm_121 (vllm#50707)",
        )
    if situation.capability_major == 10:
        return Choice(
            "FLASH_ATTN",
            "hardware",
            "FlashInfer's non-causal path is known to be faulty on sm_100 (platforms/cuda.py)",
        )
    return Choice("FLASH_ATTN", "hardware", "the engine's first choice for non-causal drafts")


def _drafts_in_one_pass(situation: Situation) -> bool:
    return situation.method is not None and situation.method.in_one_pass


def find_turboquant_obstacle(situation: Situation) -> str | None:
    """Return why the cache cannot be compressed here, or None."""
    target = situation.target
    if situation.on_cpu:
        return "the CPU backend has no TurboQuant"
    asked = situation.find_asked("attention_backend")
    backend = asked.value.upper() if asked else TURBOQUANT_BACKEND
    if backend != TURBOQUANT_BACKEND:
        return f"--attention-backend {backend} cannot read it: leave that out, it has its own"
    if target.has_sliding_windows:
        return "TurboQuant has no sliding windows"
    if target.attention_sinks:
        return "TurboQuant has no attention sinks"
    if target.layers is None:
        return "the target's layers are unknown"
    for part in target.layers:
        if part.kind == "latent":
            return "TurboQuant has no latent (MLA) cache"
        if part.kind == "full" and (part.head_size or 0).bit_count() != 1:
            return f"its rotation needs heads of a power of two, not {part.head_size}"
    return None


def has_fp8_cache(situation: Situation) -> bool:
    """Return whether a backend here surely reads an fp8 cache."""
    version = tuple(map(int, (situation.capability or "0.0").split(".")))
    asked = situation.find_asked("attention_backend")
    flash = asked is not None and asked.value.upper() == "FLASH_ATTN"
    return version[0] == 9 if flash else version >= FP8_CAPABILITY


def decide_kv_dtype(
    situation: Situation, *, wanted: int, count_fitting: Callable[[str], int | None]
) -> Choice[str] | None:
    """Choose the target's cache type by how many of the wanted sequences fit in it.

    A smaller cache buys capacity, never speed, and TurboQuant costs more of it than fp8.
    """
    if (asked := situation.find_asked("kv_dtype")) is not None:
        return asked
    if situation.on_cpu:
        return None
    advised = situation.advice.kv_dtype
    if advised is not None and situation.recipe_fits_machine:
        return situation.from_recipe(advised)
    if situation.wishes.goal != "capacity":
        return None
    plain = count_fitting("auto")
    if plain is None or plain >= wanted:
        return None
    held = {kv_dtype: count_fitting(kv_dtype) or 0 for kv_dtype in _find_smaller_caches(situation)}
    enough = (kv_dtype for kv_dtype, count in held.items() if count >= wanted)
    chosen = next(enough, max(held, key=lambda kind: held[kind] / HANDICAP[kind], default="auto"))
    if held.get(chosen, 0) <= plain:
        return None
    told = f"bfloat16 holds {plain} of the wanted {wanted} sequences, this {held[chosen]}"
    return Choice(chosen, "hardware", f"{told}; {COST_OF_A_SMALLER_CACHE[chosen]}")


def _find_smaller_caches(situation: Situation) -> list[str]:
    """Return the cache types that are possible here, the cheapest first."""
    possible = {
        "fp8": has_fp8_cache(situation),
        "turboquant_k8v4": find_turboquant_obstacle(situation) is None,
    }
    return [kv_dtype for kv_dtype, here in possible.items() if here]


def decide_drafter_kv_dtype(situation: Situation, kv_dtype: str) -> Choice[str] | None:
    """Choose the type of the drafter's cache, which would otherwise inherit the target's."""
    if not _drafts_in_one_pass(situation):
        return None
    if situation.recipe_fits_machine and situation.advice.drafter_kv_dtype:
        return situation.from_recipe(situation.advice.drafter_kv_dtype)
    if kv_dtype in TURBOQUANT_BITS:
        return Choice(
            "bfloat16", "checkpoint", "a drafter with TurboQuant finds no non-causal backend"
        )
    if kv_dtype.startswith("fp8") and situation.capability_major != 9:
        return Choice(
            "bfloat16",
            "hardware",
            "FlashAttention reads an fp8 cache on sm_90 only, and the drafter's is small",
        )
    return None


def decide_graph_mode(situation: Situation, kv_dtype: str) -> Choice[dict[str, JsonValue]] | None:
    """Choose piecewise graphs where a full one gives wrong text (vllm#53180)."""
    if situation.method is None or kv_dtype not in TURBOQUANT_BITS:
        return None
    return Choice(
        {"cudagraph_mode": "PIECEWISE"},
        "checkpoint",
        "TurboQuant with speculation gives degenerate text under full graphs (vllm#53180)",
    )


def decide_prefix_caching(situation: Situation) -> Choice[bool] | None:
    """Turn prefix caching off where speculation breaks it."""
    draft = situation.draft
    if draft is not None and draft.family != "mtp" and situation.target.is_hybrid:
        return Choice(
            False,
            "checkpoint",
            "on a hybrid target drafts drop the trailing block: no hits, only cost "
            "(vllm#54360, #51250)",
        )
    if situation.recipe_fits_machine and situation.advice.prefix_caching is False:
        return situation.from_recipe(False)
    return None
