"""The planner: host, checkpoints, recipe and options in, a `LaunchPlan` out. Pure.

What the user specified is laid down first, and each rule fills what is left, in the order of their
dependencies: layout over accelerators, load, cache, and then what depends on nothing else.
"""

from dataclasses import replace
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import UsageError
from slipstream.hardware import Host
from slipstream.planning.faults import find_faults
from slipstream.planning.inputs import FoundDrafter, PlanInputs
from slipstream.planning.memory.budget import make_budget
from slipstream.planning.plan import LaunchPlan, MemoryBudget
from slipstream.planning.settings import (
    Choice,
    EngineOptions,
    EngineSettings,
    attention,
    conversation,
    patches,
    placement,
    scheduling,
)
from slipstream.planning.settings.options import PlanOptions, read_engine_arguments
from slipstream.recipes.recipe import KnownBad, Recipe


def make_plan(
    host: Host,
    target: Checkpoint,
    drafter: Checkpoint | None,
    recipe: Recipe | None,
    options: PlanOptions,
    *,
    known_bad: tuple[KnownBad, ...] = (),
    found: FoundDrafter | None = None,
    method: Choice[str] | None = None,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Decide every setting once."""
    inputs = PlanInputs(host, target, drafter, recipe, options, options.engine, found)
    inputs = replace(inputs, method_choice=method or options.method)
    inputs = replace(inputs, given=_lay_down(inputs))
    inputs = replace(inputs, given=inputs.given.override(placement.decide_parallel(inputs)))
    inputs = _prefer_cache(inputs)
    settings = _fit_context(inputs, _decide_load(inputs))
    settings = _decide_cache(inputs, settings)
    memory = make_budget(inputs, settings)
    settings = _decide_rest(inputs, settings, memory)
    patched = patches.decide_patches(inputs, settings)
    faults = find_faults(inputs, settings, memory, known_bad)
    dropped = inputs.method_choice if inputs.drafter is None else None
    return LaunchPlan(
        target=target.name,
        options=options,
        machine=inputs.machine,
        capability=inputs.capability,
        threads=host.processor.usable_threads if inputs.on_cpu else None,
        recipe=recipe.name if recipe else None,
        settings=settings,
        environment={**placement.decide_environment(inputs), **patches.name_patches(patched)},
        patches=tuple(choice.value for choice in patched),
        memory=memory,
        notes=(
            *notes,
            *(() if settings.is_eager else (placement.note_compilation(inputs),)),
            *_note_obsolete(recipe),
            *((f"{drafter.name} is not used: {dropped.because}",) if drafter and dropped else ()),
            *conversation.list_conversation_notes(inputs, settings),
        ),
        warnings=tuple(fault for fault in faults if fault.verdict == "warn"),
        refusals=tuple(fault for fault in faults if fault.verdict == "refuse"),
    )


def _lay_down(inputs: PlanInputs) -> EngineOptions:
    """Return what is specified: the recipe's engine arguments, and the user's over them."""
    recipe, user = inputs.recipe, inputs.options.engine
    if user.model is not None and user.model.value != inputs.target.name:
        raise UsageError(
            f"--model {user.model.value} after -- is another model than {inputs.target.name}",
            hint=f"slipstream plan {user.model.value}",
        )
    if recipe is None or not inputs.recipe_fits_machine or recipe.engine != "vllm":
        return user
    words, because = recipe.settings.extra_arguments, f"recipe {recipe.name} runs with it"
    return read_engine_arguments(words, "recipe", because).override(user)


def _prefer_cache(inputs: PlanInputs) -> PlanInputs:
    """Leave out a drafter that no user named where it would cost an agent the prefix cache."""
    options, caching = inputs.options, inputs.given.prefix_caching
    refused = caching is not None and not caching.value
    named = options.method or options.engine.speculation
    if options.goal != "agent" or not attention.drafts_without_cache(inputs) or refused or named:
        return inputs
    name = "mtp" if inputs.target.predicting_layers else "plain"
    because = "an agent repeats its conversation in every turn, and the drafter would disable the "
    because += "prefix cache on this hybrid target (vllm#54360)"
    return replace(inputs, drafter=None, method_choice=Choice(name, "checkpoint", because))


def _decide_load(inputs: PlanInputs) -> EngineSettings:
    """Decide the settings that the memory depends on, but for the type of the cache."""
    given = inputs.given
    length = inputs.given.drafting.length or scheduling.decide_draft_length(inputs)
    sequences = given.sequences or scheduling.decide_sequences(inputs)
    drafted = length.value if length else 0
    return EngineSettings.model_validate(
        {
            **dict(given),
            "model": given.model or Choice(inputs.target.name, "user", "requested"),
            "context": given.context or scheduling.decide_context(inputs),
            "sequences": sequences,
            "batched_tokens": scheduling.decide_batched_tokens(inputs, sequences.value, drafted),
            "memory_utilization": given.memory_utilization or placement.decide_utilization(inputs),
            "dtype": given.dtype or placement.decide_dtype(inputs),
            "eager": given.eager or placement.decide_eager(inputs),
            "quantization": given.quantization or _decide_quantization(inputs),
            "speculation": _decide_speculation(inputs, length),
        }
    )


def _fit_context(inputs: PlanInputs, settings: EngineSettings) -> EngineSettings:
    """Halve a context that no user chose for an agent until two conversations fit."""
    longest = settings.context
    if inputs.options.goal != "agent" or longest is None or inputs.given.context is not None:
        return settings
    because = f"two conversations of {longest.value} tokens do not fit"
    tokens = longest.value
    while tokens > scheduling.DEFAULT_CONTEXT:
        fit = make_budget(inputs, _decide_cache(inputs, settings)).sequences_that_fit
        if fit is None or fit >= scheduling.MANY_CONVERSATIONS:
            break
        tokens //= 2
        settings = settings.change(context=Choice(tokens, "hardware", because))
    return settings


def _decide_cache(inputs: PlanInputs, settings: EngineSettings) -> EngineSettings:
    def store(kv_dtype: Choice[str] | None) -> EngineSettings:
        stored = settings.change(kv_dtype=kv_dtype)
        speculation = stored.speculation
        if speculation is None or speculation.kv_dtype is not None or inputs.method is None:
            return stored
        own = attention.decide_drafter_kv_dtype(inputs, stored.cache_dtype)
        return stored.change(speculation=speculation.change(kv_dtype=own))

    def count_fitting(kv_dtype: str) -> int | None:
        tried = store(Choice(kv_dtype, "hardware", "tried"))
        return make_budget(inputs, tried).sequences_that_fit

    wanted = settings.sequences.value if settings.sequences else 1
    given = inputs.given.kv_dtype
    return store(
        given or attention.decide_kv_dtype(inputs, wanted=wanted, count_fitting=count_fitting)
    )


def _decide_rest(
    inputs: PlanInputs, settings: EngineSettings, memory: MemoryBudget
) -> EngineSettings:
    given = inputs.given
    loopback: Choice[str] = Choice("127.0.0.1", "default", "vLLM would listen everywhere")
    return settings.change(
        revision=given.revision or _pin(inputs.target),
        served_names=given.served_names or conversation.decide_served_names(inputs),
        host=given.host or loopback,
        kv_cache_bytes=given.kv_cache_bytes or _decide_cache_bytes(inputs, memory),
        attention_backend=given.attention_backend or attention.decide_target_backend(inputs),
        compilation=given.compilation or attention.decide_graph_mode(inputs, settings.cache_dtype),
        prefix_caching=given.prefix_caching or attention.decide_prefix_caching(inputs),
        media_limits=given.media_limits or placement.decide_modalities(inputs),
        executor=given.executor or placement.decide_executor(inputs),
        load_format=given.load_format or placement.decide_loader(inputs),
        **conversation.decide_conversation(inputs),
    )


def _pin(checkpoint: Checkpoint) -> Choice[str] | None:
    if checkpoint.revision is None:
        return None
    return Choice(checkpoint.revision, "checkpoint", "pinned to the commit that was read")


def _decide_cache_bytes(inputs: PlanInputs, memory: MemoryBudget) -> Choice[int] | None:
    if not inputs.on_cpu or not memory.kv_pool_bytes:
        return None
    why = "on a CPU the cache is sized in bytes: the wanted sequences at full length, if they fit"
    return Choice(memory.kv_pool_bytes, "hardware", why)


def _decide_quantization(inputs: PlanInputs) -> Choice[str] | None:
    if inputs.target.quantized or inputs.on_cpu:
        return None
    return inputs.from_recipe(inputs.advice.quantization)


def _decide_speculation(inputs: PlanInputs, length: Choice[int] | None) -> dict[str, Any] | None:
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
        "revision": given.revision or (_pin(drafter) if drafter else None),
        "attention_backend": given.attention_backend or attention.decide_drafter_backend(inputs),
        "kv_dtype": given.kv_dtype,
        "rest": {**keys, **given.rest},
    }


def _name_drafter(inputs: PlanInputs, drafter: Checkpoint) -> Choice[str]:
    named = inputs.recipe is not None and inputs.recipe.drafter == drafter.name
    advised = inputs.from_recipe(drafter.name if named else None)
    found = inputs.found.drafter if inputs.found else None
    return advised or found or Choice(drafter.name, "user", "requested")


def _note_obsolete(recipe: Recipe | None) -> tuple[str, ...]:
    if recipe is None:
        return ()
    return tuple(f"not used from {recipe.name}: {old.what}: {old.why}" for old in recipe.obsolete)
