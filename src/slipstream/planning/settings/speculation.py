"""How tokens are drafted: method, drafter and the keys of a method."""

from dataclasses import replace
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import SPECULATION, Choice, attention

KEPT_BLOCK = "disable_eagle_block_drop"
SAMPLING = "draft_sample_method"


def decide_speculation(inputs: PlanInputs, length: Choice[int] | None) -> dict[str, Any] | None:
    """Decide how to draft; a method that only the engine knows is passed on as it is."""
    method, drafter, given = inputs.method, inputs.draft_model, inputs.fixed.drafting
    if method is None:
        return None if given.method is None else dict(given)
    name = method.name_for(on_cpu=inputs.on_cpu)
    by_path = Choice(
        name, "checkpoint", "set explicitly: the engine would otherwise guess it from the path"
    )
    chosen = replace(inputs.method_choice, value=name) if inputs.method_choice else by_path
    keys = {
        key: Choice(value, "default", method.keys_because) for key, value in method.keys.items()
    }
    return {
        "method": given.method or chosen,
        "drafter": given.drafter or (_name_drafter(inputs, drafter) if drafter else None),
        "length": length,
        "revision": given.revision or (pin(drafter) if drafter else None),
        "attention_backend": given.attention_backend or attention.decide_drafter_backend(inputs),
        "kv_dtype": given.kv_dtype,
        "rest": {**keys, **_keep_cached_block(inputs), **_draft_greedily(inputs), **given.rest},
    }


def _keep_cached_block(inputs: PlanInputs) -> dict[str, Choice[bool]]:
    """Keep the last block of a prefix hit, which vLLM 0.32 drops for every drafter with states.

    EAGLE needs that: its cache at a position holds the next token, too. DFlash and DSpark store
    what the target's state at that position gives, so 0.33 keeps the block for both
    (`needs_eagle_block_drop`). A recurrent target's states are not kept by block.
    """
    layers, caching = inputs.target.layers, inputs.fixed.prefix_caching
    caching = caching or attention.decide_prefix_caching(inputs)
    cached = caching is None or caching.value
    one_pass = inputs.method is not None and inputs.method.in_one_pass
    if inputs.is_since("0.33") or not one_pass or layers is None:
        return {}
    if inputs.target.is_hybrid or not cached:
        return {}
    why = "vLLM 0.32 drops the last cached block of a prompt, which only EAGLE and MTP need: "
    why += f"{inputs.block_tokens} tokens would be computed again"
    return {KEPT_BLOCK: Choice(True, "default", why)}


def _draft_greedily(inputs: PlanInputs) -> dict[str, Choice[str]]:
    """Draft the likeliest token of each position, also for requests with a temperature.

    A block's positions are drawn apart from each other, so drawn ones do not go together; and
    their probabilities would have to be kept, and cannot be told of a copied token.
    """
    if inputs.method is None or not inputs.method.in_one_pass:
        return {}
    why = "tokens sampled independently within a block do not fit together; not measured here: "
    why += f"slipstream compare with a plan made with {SPECULATION}.{SAMPLING} probabilistic"
    return {SAMPLING: Choice("greedy", "default", why)}


def _name_drafter(inputs: PlanInputs, drafter: Checkpoint) -> Choice[str]:
    named = inputs.recipe is not None and inputs.recipe.drafter == drafter.name
    advised = inputs.from_recipe(drafter.name if named else None)
    found = inputs.found.drafter if inputs.found else None
    return advised or found or Choice(drafter.name, "user", "requested")


def pin(checkpoint: Checkpoint) -> Choice[str] | None:
    if checkpoint.revision is None:
        return None
    return Choice(checkpoint.revision, "checkpoint", "pinned to the commit that was read")
