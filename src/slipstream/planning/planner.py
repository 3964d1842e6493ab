"""The planner: host, checkpoints, recipe and wishes in, a `LaunchPlan` out. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.engines import vllm
from slipstream.errors import UsageError
from slipstream.hardware import Host
from slipstream.planning.agent import decide_agent_drafts, find_agent_fault, note_dropped_drafter
from slipstream.planning.asked import AskedSettings, read_advised, read_asked
from slipstream.planning.attention import (
    decide_drafter_backend,
    decide_drafter_kv_dtype,
    decide_graph_mode,
    decide_kv_dtype,
    decide_prefix_caching,
    decide_target_backend,
)
from slipstream.planning.budget import Load, make_budget
from slipstream.planning.conversation import (
    decide_conversation,
    decide_served_names,
    find_conversation_faults,
    list_conversation_notes,
)
from slipstream.planning.faults import (
    find_headroom_fault,
    find_host_fault,
    find_layout_faults,
    find_memory_faults,
    find_pair_faults,
    find_pictures_fault,
    find_turboquant_fault,
)
from slipstream.planning.known_bad import Facts, find_known_bad
from slipstream.planning.method_faults import find_method_faults
from slipstream.planning.patches import decide_patches, name_patches
from slipstream.planning.placement import (
    count_shards,
    decide_dtype,
    decide_eager,
    decide_environment,
    decide_executor,
    decide_loader,
    decide_modalities,
    decide_parallel,
    decide_utilization,
    note_compilation,
)
from slipstream.planning.plan import LaunchPlan, MemoryBudget
from slipstream.planning.scheduling import (
    DEFAULT_CONTEXT,
    MANY_CONVERSATIONS,
    decide_batched_tokens,
    decide_context,
    decide_draft_length,
    decide_sequences,
)
from slipstream.planning.settings import Choice, EngineSettings, Speculation
from slipstream.planning.situation import FoundDrafter, Situation
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import KnownBad, Recipe

_WIDE = ("float32", "float")
# Asked for, and put right by their rules: too few tokens are raised, names are in capitals,
# objects are merged with what a rule adds.
_ADAPTED = ("batched_tokens", "attention_backend", "template_arguments", "generation_overrides")


def make_plan(
    host: Host,
    target: Checkpoint,
    drafter: Checkpoint | None,
    recipe: Recipe | None,
    wishes: Wishes,
    *,
    known_bad: tuple[KnownBad, ...] = (),
    found: FoundDrafter | None = None,
    chosen: Choice[str] | None = None,
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Decide every setting once, in the order of their dependencies."""
    asked = read_asked(wishes)
    situation = Situation(host, target, drafter, recipe, wishes, asked, found, chosen)
    situation, caching = decide_agent_drafts(situation)
    figures = _fit_context(situation, _decide_figures(situation))
    kv, load, memory = _decide_cache(situation, figures)
    decided = _decide_settings(situation, figures, kv, load, memory)
    if caching is not None:
        decided = decided.model_copy(update={"prefix_caching": caching})
    settings = _overlay(decided, situation)
    patches = decide_patches(situation, settings)
    facts = _gather_facts(situation, settings, load)
    faults = find_host_fault(host) or [
        *find_layout_faults(situation, settings),
        *find_pair_faults(situation, draft_length=load.draft_length, context=load.context),
        *find_method_faults(situation, settings),
        *find_headroom_fault(situation),
        *find_memory_faults(memory, load.sequences),
        *find_turboquant_fault(situation, load.kv_dtype),
        *find_agent_fault(situation),
        *find_pictures_fault(situation),
        *find_conversation_faults(situation, settings),
        *find_known_bad(known_bad, facts),
    ]
    return LaunchPlan(
        target=target.name,
        wishes=wishes,
        machine=situation.machine,
        capability=situation.capability,
        recipe=recipe.name if recipe else None,
        settings=settings,
        environment={**decide_environment(situation), **name_patches(patches)},
        patches=tuple(choice.value for choice in patches),
        memory=memory,
        notes=(
            *notes,
            *(() if load.eager else (note_compilation(situation),)),
            *_obsolete_notes(recipe),
            *note_dropped_drafter(drafter, situation, caching),
            *list_conversation_notes(situation, settings),
        ),
        warnings=tuple(fault for fault in faults if fault.verdict == "warn"),
        refusals=tuple(fault for fault in faults if fault.verdict == "refuse"),
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    """The settings that other settings and the memory depend on."""

    draft_length: Choice[int] | None
    context: Choice[int]
    sequences: Choice[int]
    batched_tokens: Choice[int]
    memory_utilization: Choice[float] | None
    dtype: Choice[str] | None
    eager: Choice[bool] | None
    parallel: Mapping[str, Choice[int]]

    @property
    def drafted(self) -> int:
        return self.draft_length.value if self.draft_length else 0


def _decide_figures(situation: Situation) -> _Figures:
    draft_length = decide_draft_length(situation) or situation.asked.speculation.get("length")
    sequences = decide_sequences(situation)
    drafted = draft_length.value if draft_length else 0
    return _Figures(
        draft_length=draft_length,
        context=decide_context(situation),
        sequences=sequences,
        batched_tokens=decide_batched_tokens(situation, sequences.value, drafted),
        memory_utilization=decide_utilization(situation),
        dtype=decide_dtype(situation),
        eager=decide_eager(situation),
        parallel=decide_parallel(situation),
    )


def _fit_context(situation: Situation, figures: _Figures) -> _Figures:
    """Halve a context that no user chose for an agent until two conversations fit."""
    longest = figures.context
    if situation.wishes.goal != "agent" or longest.source in ("user", "environment"):
        return figures
    because = f"two conversations of {longest.value} tokens do not fit"
    while figures.context.value > DEFAULT_CONTEXT:
        fit = _decide_cache(situation, figures)[2].sequences_that_fit
        if fit is None or fit >= MANY_CONVERSATIONS:
            break
        shorter = Choice(figures.context.value // 2, "hardware", because)
        figures = replace(figures, context=shorter)
    return figures


def _decide_cache(
    situation: Situation, figures: _Figures
) -> tuple[Choice[str] | None, Load, MemoryBudget]:
    """Choose the cache type, and the budget that goes with it."""

    def count_fitting(kv_dtype: str) -> int | None:
        return make_budget(situation, _make_load(situation, figures, kv_dtype)).sequences_that_fit

    wanted = figures.sequences.value
    kv = decide_kv_dtype(situation, wanted=wanted, count_fitting=count_fitting)
    load = _make_load(situation, figures, kv.value if kv else "auto")
    return kv, load, make_budget(situation, load)


def _make_load(situation: Situation, figures: _Figures, kv_dtype: str) -> Load:
    wide = figures.dtype is not None and figures.dtype.value in _WIDE
    if wide and kv_dtype == "auto":
        kv_dtype = "float32"
    drafter_kv = decide_drafter_kv_dtype(situation, kv_dtype)
    context = figures.context.value
    return Load(
        context=context if context > 0 else situation.target.context or 0,
        sequences=figures.sequences.value,
        batched_tokens=figures.batched_tokens.value,
        draft_length=figures.drafted,
        kv_dtype=kv_dtype,
        drafter_kv_dtype=drafter_kv.value if drafter_kv else kv_dtype,
        utilization=figures.memory_utilization.value if figures.memory_utilization else None,
        element_bytes=4 if wide else 2,
        eager=figures.eager is not None and figures.eager.value,
        shards=count_shards(
            figures.parallel.get("tensor_parallel"), figures.parallel.get("pipeline_parallel")
        ),
    )


def _decide_settings(
    situation: Situation,
    figures: _Figures,
    kv: Choice[str] | None,
    load: Load,
    memory: MemoryBudget,
) -> EngineSettings:
    target = situation.target
    return EngineSettings(
        model=Choice(target.name, "user", "asked for"),
        revision=_pin(target),
        served_names=decide_served_names(situation),
        host=Choice("127.0.0.1", "default", "vLLM would listen everywhere"),
        context=figures.context,
        sequences=figures.sequences,
        batched_tokens=figures.batched_tokens,
        memory_utilization=figures.memory_utilization,
        kv_cache_bytes=_decide_cache_bytes(situation, memory),
        attention_backend=decide_target_backend(situation),
        kv_dtype=kv,
        compilation=decide_graph_mode(situation, load.kv_dtype),
        prefix_caching=decide_prefix_caching(situation),
        dtype=figures.dtype,
        eager=figures.eager,
        quantization=_decide_quantization(situation),
        media_limits=decide_modalities(situation),
        executor=decide_executor(situation),
        load_format=decide_loader(situation),
        speculation=_decide_speculation(situation, figures, load),
    ).model_copy(update=dict(figures.parallel))


def _overlay(settings: EngineSettings, situation: Situation) -> EngineSettings:
    """Apply a recipe's extra arguments where nothing is decided, and the user's over everything."""
    advised = _read_advised(situation)
    settings = settings.model_copy(update=decide_conversation(situation, advised))
    open_fields = {
        name: choice for name, choice in advised.settings.items() if getattr(settings, name) is None
    }
    asked: dict[str, Any] = {**open_fields, **situation.asked.settings}
    for name in _ADAPTED:
        if getattr(settings, name) is not None:
            asked.pop(name, None)
    if (model := asked.get("model", settings.model).value) != settings.model.value:
        raise UsageError(
            f"--model {model} after -- is another model than {settings.model.value}",
            hint=f"slipstream plan {model}",
        )
    rest = {**advised.rest, **situation.asked.rest}
    return settings.model_copy(update={**asked, "rest": rest})


def _read_advised(situation: Situation) -> AskedSettings:
    recipe = situation.recipe
    if recipe is None or not situation.recipe_fits_machine or recipe.engine != "vllm":
        return AskedSettings()
    return read_advised(recipe.settings.extra_arguments, recipe.name)


def _pin(checkpoint: Checkpoint) -> Choice[str] | None:
    if checkpoint.revision is None:
        return None
    return Choice(checkpoint.revision, "checkpoint", "pinned to what was read")


def _decide_cache_bytes(situation: Situation, memory: MemoryBudget) -> Choice[int] | None:
    if not situation.on_cpu or not memory.kv_pool_bytes:
        return None
    why = "on a CPU the cache is sized in bytes: the wanted sequences at full length, if they fit"
    return Choice(memory.kv_pool_bytes, "hardware", why)


def _decide_quantization(situation: Situation) -> Choice[str] | None:
    advised = situation.advice.quantization
    if advised is None or situation.target.quantized or situation.on_cpu:
        return None
    return situation.from_recipe(advised)


def _decide_speculation(situation: Situation, figures: _Figures, load: Load) -> Speculation | None:
    asked, method, drafter = situation.asked, situation.method, situation.assistant
    if method is None:
        if asked.method is None:
            return None
        return Speculation.model_validate({**asked.speculation, "rest": asked.speculation_rest})
    name = method.name_for(on_cpu=situation.on_cpu)
    by_path = Choice(name, "checkpoint", "never left to the engine: it guesses by the path")
    decided: dict[str, Any] = {
        "method": replace(situation.chosen, value=name) if situation.chosen else by_path,
        "drafter": _name_drafter(situation, drafter) if drafter else None,
        "length": figures.draft_length,
        "revision": _pin(drafter) if drafter else None,
        "attention_backend": decide_drafter_backend(situation),
        "kv_dtype": decide_drafter_kv_dtype(situation, load.kv_dtype),
    }
    keys = {
        key: Choice(value, "default", method.keys_because) for key, value in method.keys.items()
    }
    rest = {**keys, **asked.speculation_rest}
    return Speculation(**{**decided, **asked.speculation}, rest=rest)


def _name_drafter(situation: Situation, drafter: Checkpoint) -> Choice[str]:
    if situation.recipe is not None and situation.recipe.drafter == drafter.name:
        return situation.from_recipe(drafter.name)
    if situation.found is not None:
        return situation.found.drafter
    return Choice(drafter.name, "user", "asked for")


def _gather_facts(situation: Situation, settings: EngineSettings, load: Load) -> Facts:
    speculation, caching = settings.speculation, settings.prefix_caching
    backend, recipe = speculation.attention_backend if speculation else None, situation.recipe
    return Facts(
        situation=situation,
        draft_length=load.draft_length,
        sequences=load.sequences,
        kv_dtype=load.kv_dtype,
        drafter_backend=backend.value if backend else None,
        prefix_caching=caching is None or caching.value,
        nodes=settings.nodes.value if settings.nodes else recipe.nodes if recipe else 1,
        engine="vllm",
        engine_version=vllm.VERSION,
    )


def _obsolete_notes(recipe: Recipe | None) -> tuple[str, ...]:
    if recipe is None:
        return ()
    return tuple(f"not taken from {recipe.name}: {old.what}: {old.why}" for old in recipe.obsolete)
