"""How tokens are drafted: method, drafter and the keys of a method."""

from dataclasses import replace
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice, attention


def decide_speculation(inputs: PlanInputs, length: Choice[int] | None) -> dict[str, Any] | None:
    """Decide how to draft; a method that only the engine knows is passed on as it is."""
    method, drafter, given = inputs.method, inputs.draft_model, inputs.given.drafting
    if method is None:
        return None if given.method is None else dict(given)
    name = method.name_for(on_cpu=inputs.on_cpu)
    by_path = Choice(name, "checkpoint", "set explicitly: the engine would guess it from the path")
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
        "rest": {**keys, **given.rest},
    }


def _name_drafter(inputs: PlanInputs, drafter: Checkpoint) -> Choice[str]:
    named = inputs.recipe is not None and inputs.recipe.drafter == drafter.name
    advised = inputs.from_recipe(drafter.name if named else None)
    found = inputs.found.drafter if inputs.found else None
    return advised or found or Choice(drafter.name, "user", "requested")


def pin(checkpoint: Checkpoint) -> Choice[str] | None:
    if checkpoint.revision is None:
        return None
    return Choice(checkpoint.revision, "checkpoint", "pinned to the commit that was read")
