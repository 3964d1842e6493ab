"""The planner: host, checkpoints, recipe and options in, a `LaunchPlan` out. Pure.

What the user specified is laid down first, and each rule fills what is left, in the order of their
dependencies: what the memory decides (`fitting.py`), and then what depends on nothing else.
"""

from dataclasses import replace

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.engines.arguments import render_arguments
from slipstream.engines.vllm_methods import keeps_mtp
from slipstream.errors import UsageError
from slipstream.hardware import Host
from slipstream.planning.faults import find_faults
from slipstream.planning.fitting import fit
from slipstream.planning.inputs import FoundDrafter, PlanInputs
from slipstream.planning.plan import LaunchPlan, MemoryBudget
from slipstream.planning.settings import (
    Choice,
    EngineOptions,
    EngineSettings,
    attention,
    conversation,
    copies,
    draft_lengths,
    patches,
    placement,
)
from slipstream.planning.settings.options import PlanOptions, read_engine_arguments
from slipstream.planning.settings.speculation import pin
from slipstream.planning.steering_verdicts import SteeringVerdicts
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
    verdicts: SteeringVerdicts | None = None,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Decide every setting once."""
    inputs = PlanInputs(host, target, drafter, recipe, options, options.engine, found)
    inputs = replace(inputs, method_choice=method or options.method, verdicts=verdicts)
    inputs = replace(inputs, fixed=_lay_down(inputs))
    fitted = fit(_prefer_cache(inputs))
    inputs, memory = fitted.inputs, fitted.describe_memory()
    settings = _decide_rest(inputs, fitted.settings, memory)
    patched = patches.decide_patches(inputs, settings)
    faults = find_faults(inputs, settings, memory, known_bad)
    dropped = inputs.method_choice if inputs.drafter is None else None
    return LaunchPlan(
        engine_version=inputs.engine_version,
        target=target.name,
        options=options.model_copy(update={"steer": draft_lengths.find_steer(inputs, settings)}),
        adaptive_verification=draft_lengths.explain_adaptive(inputs, settings),
        machine=inputs.machine,
        capability=inputs.capability,
        threads=host.processor.usable_threads if inputs.on_cpu else None,
        recipe=recipe.name if recipe else None,
        settings=settings,
        environment={
            **placement.decide_environment(inputs),
            **patches.name_patches(patched),
            **copies.decide_copies(inputs),
        },
        patches=tuple(choice.value for choice in patched),
        memory=memory,
        notes=(
            *(f"adjusted: {line}" for line in fitted.adjusted),
            *attention.list_cache_notes(inputs, settings),
            *((f"{drafter.name} is not used: {dropped.because}",) if drafter and dropped else ()),
            *placement.list_accelerator_remarks(inputs),
            *placement.note_idle(inputs),
            *conversation.list_conversation_notes(inputs, settings),
            *notes,
            *(() if settings.is_eager else (placement.note_compilation(inputs),)),
            *_note_unused(inputs, settings),
        ),
        warnings=tuple(fault for fault in faults if fault.verdict == "warn"),
        refusals=tuple(fault for fault in faults if fault.verdict == "refuse"),
    )


def _lay_down(inputs: PlanInputs) -> EngineOptions:
    """Return what is specified: the recipe's engine arguments, and the user's over them."""
    recipe, user = inputs.recipe, inputs.options.engine
    if user.model is not None and user.model.value != inputs.target.name:
        raise UsageError(
            f"--model {user.model.value} after -- is not {inputs.target.name}",
            hint=f"slipstream plan {user.model.value}",
        )
    if recipe is None or not inputs.recipe_fits_machine or recipe.engine != "vllm":
        return user
    words, because = recipe.settings.extra_arguments, f"recipe {recipe.name} runs with it"
    return read_engine_arguments(words, "recipe", because).override(user)


def _prefer_cache(inputs: PlanInputs) -> PlanInputs:
    """Leave out a drafter that no user named where it would cost an agent the prefix cache."""
    options, caching = inputs.options, inputs.fixed.prefix_caching
    refused = caching is not None and not caching.value
    named = options.method or options.engine.speculation
    if options.goal != "agent" or not attention.drafts_without_cache(inputs) or refused or named:
        return inputs
    heads = inputs.target.predicting_layers and keeps_mtp(inputs.target.name)
    name = "mtp" if heads else "plain"
    because = "an agent repeats its conversation in every turn, and the drafter would disable the "
    because += "prefix cache on this hybrid target (vllm#54360)"
    return replace(inputs, drafter=None, method_choice=Choice(name, "checkpoint", because))


def _decide_rest(
    inputs: PlanInputs, settings: EngineSettings, memory: MemoryBudget
) -> EngineSettings:
    given = inputs.fixed
    loopback: Choice[str] = Choice("127.0.0.1", "default", "vLLM would listen everywhere")
    graphs = given.compilation or attention.decide_graph_mode(inputs, settings.cache_dtype)
    settings = settings.change(compilation=graphs)
    speculation = settings.speculation
    if speculation is not None:
        found = draft_lengths.decide_adaptive(inputs, settings)
        found = found or draft_lengths.decide_schedule(inputs, settings)
        speculation = speculation.change(rest={**speculation.rest, **found})
    return settings.change(
        speculation=speculation,
        revision=given.revision or pin(inputs.target),
        served_names=given.served_names or conversation.decide_served_names(inputs),
        host=given.host or loopback,
        kv_cache_bytes=given.kv_cache_bytes or _decide_cache_bytes(inputs, memory),
        attention_backend=given.attention_backend or attention.decide_target_backend(inputs),
        prefix_caching=given.prefix_caching or attention.decide_prefix_caching(inputs),
        media_limits=given.media_limits or placement.decide_modalities(inputs),
        executor=given.executor or placement.decide_executor(inputs),
        load_format=given.load_format or placement.decide_loader(inputs),
        **conversation.decide_conversation(inputs),
    )


def _decide_cache_bytes(inputs: PlanInputs, memory: MemoryBudget) -> Choice[int] | None:
    if not inputs.on_cpu or not memory.kv_pool_bytes:
        return None
    why = "on a CPU the cache is sized in bytes: the planned sequences at full length, if they fit"
    return Choice(memory.kv_pool_bytes, "hardware", why)


def _note_unused(inputs: PlanInputs, settings: EngineSettings) -> tuple[str, ...]:
    """Name what of this machine's recipe is obsolete, unless the user asked for it again."""
    if (recipe := inputs.recipe) is None or not inputs.recipe_fits_machine:
        return ()
    command = " ".join(render_arguments(settings.list_arguments())).lower()
    unused = [
        old.what
        for old in recipe.obsolete
        if old.argument is None or old.argument.lower() not in command
    ]
    why = f"why: slipstream models --recipe {recipe.name}"
    return (f"not used from its recipe: {'; '.join(unused)}; {why}",) if unused else ()
