"""The planner: host, checkpoints, recipe and wishes in, a `LaunchPlan` out. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.engines import vllm
from slipstream.hardware import Host
from slipstream.planning.attention import (
    decide_drafter_backend,
    decide_drafter_kv_dtype,
    decide_graph_mode,
    decide_kv_dtype,
    decide_prefix_caching,
    decide_target_backend,
)
from slipstream.planning.budget import Load, make_budget
from slipstream.planning.faults import (
    find_headroom_fault,
    find_host_fault,
    find_layout_faults,
    find_memory_faults,
    find_pair_faults,
    find_turboquant_fault,
)
from slipstream.planning.known_bad import Facts, find_known_bad
from slipstream.planning.patches import decide_patches, name_patches
from slipstream.planning.placement import (
    decide_eager,
    decide_environment,
    decide_executor,
    decide_loader,
    decide_modalities,
    decide_nodes,
    decide_utilization,
    note_compilation,
)
from slipstream.planning.plan import Decision, LaunchPlan, MemoryBudget
from slipstream.planning.raw_arguments import absorb, override
from slipstream.planning.scheduling import (
    decide_batched_tokens,
    decide_context,
    decide_draft_length,
    decide_sequences,
)
from slipstream.planning.situation import Choice, Situation
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import KnownBad, Recipe


def make_plan(
    host: Host,
    target: Checkpoint,
    drafter: Checkpoint | None,
    recipe: Recipe | None,
    wishes: Wishes,
    *,
    known_bad: tuple[KnownBad, ...] = (),
    notes: tuple[str, ...] = (),
) -> LaunchPlan:
    """Decide everything, once, in the order in which one thing depends on another."""
    situation = Situation(host, target, drafter, recipe, absorb(wishes))
    figures = _decide_figures(situation)
    kv, load, memory = _decide_cache(situation, figures)
    ours = (
        *_decide_serving(situation, figures, memory),
        *_decide_attention(situation, kv, load),
        *_decide_placement(situation, figures),
        *_decide_speculation(situation, figures, load),
    )
    decisions = override(ours, wishes.raw)
    settled = {decision.flag: decision.value for decision in decisions}
    patches = decide_patches(situation, figures.context.value, settled)
    facts = Facts(
        situation=situation,
        draft_length=figures.drafted,
        sequences=figures.sequences.value,
        kv_dtype=load.kv_dtype,
        drafter_backend=settled.get("--speculative-config.attention_backend"),
        prefix_caching="--no-enable-prefix-caching" not in settled,
        nodes=recipe.nodes if recipe else 1,
        engine="vllm",
        engine_version=vllm.VERSION,
    )
    faults = find_host_fault(host) or [
        *find_layout_faults(situation),
        *find_pair_faults(situation, draft_length=figures.drafted, context=figures.context.value),
        *find_headroom_fault(situation),
        *find_memory_faults(memory, figures.sequences.value),
        *find_turboquant_fault(situation, load.kv_dtype),
        *find_known_bad(known_bad, facts),
    ]
    return LaunchPlan(
        target=target.name,
        drafter=drafter.name if situation.draft and drafter else None,
        machine=situation.machine,
        capability=situation.capability,
        recipe=recipe.name if recipe else None,
        decisions=decisions,
        environment=(*decide_environment(situation), *name_patches(patches)),
        patches=tuple(choice.value for choice in patches),
        memory=memory,
        notes=(
            *notes,
            *(() if figures.eager else (note_compilation(situation),)),
            *_obsolete_notes(recipe),
        ),
        warnings=tuple(fault for fault in faults if fault.verdict == "warn"),
        refusals=tuple(fault for fault in faults if fault.verdict == "refuse"),
    )


@dataclass(frozen=True, slots=True)
class _Figures:
    """The figures that other decisions depend on."""

    draft_length: Choice[int] | None
    context: Choice[int]
    sequences: Choice[int]
    batched_tokens: Choice[int]
    utilization: Choice[float] | None
    eager: Choice[bool] | None
    nodes: list[Decision]

    @property
    def drafted(self) -> int:
        return self.draft_length.value if self.draft_length else 0


def _decide_figures(situation: Situation) -> _Figures:
    draft_length = decide_draft_length(situation)
    sequences = decide_sequences(situation)
    drafted = draft_length.value if draft_length else 0
    return _Figures(
        draft_length=draft_length,
        context=decide_context(situation),
        sequences=sequences,
        batched_tokens=decide_batched_tokens(situation, sequences.value, drafted),
        utilization=decide_utilization(situation),
        eager=decide_eager(situation),
        nodes=decide_nodes(situation),
    )


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
    drafter_kv = decide_drafter_kv_dtype(situation, kv_dtype)
    return Load(
        context=figures.context.value,
        sequences=figures.sequences.value,
        batched_tokens=figures.batched_tokens.value,
        draft_length=figures.drafted,
        kv_dtype=kv_dtype,
        drafter_kv_dtype=drafter_kv.value if drafter_kv else kv_dtype,
        utilization=figures.utilization.value if figures.utilization else None,
        eager=figures.eager is not None,
        shards=int(figures.nodes[0].value or 1) if figures.nodes else 1,
    )


def _decide_serving(
    situation: Situation, figures: _Figures, memory: MemoryBudget
) -> Iterator[Decision]:
    target = situation.target
    yield Decision(flag="--model", value=target.name, source="user", because="asked for")
    yield from _revision(target)
    yield from _named("--served-model-name", _served_name(situation))
    yield from _named("--host", Choice("127.0.0.1", "default", "vLLM would listen everywhere"))
    yield from _named("--max-model-len", figures.context)
    yield from _named("--max-num-seqs", figures.sequences)
    yield from _named("--max-num-batched-tokens", figures.batched_tokens)
    yield from _named("--gpu-memory-utilization", figures.utilization)
    yield from _cache_bytes(situation, memory)


def _decide_attention(
    situation: Situation, kv: Choice[str] | None, load: Load
) -> Iterator[Decision]:
    yield from _named("--attention-backend", decide_target_backend(situation))
    yield from _named("--kv-cache-dtype", kv)
    yield from _named("--compilation-config", decide_graph_mode(situation, load.kv_dtype))
    yield from _bare("--no-enable-prefix-caching", decide_prefix_caching(situation))


def _decide_placement(situation: Situation, figures: _Figures) -> Iterator[Decision]:
    yield from _bare("--enforce-eager", figures.eager)
    yield from _quantization(situation)
    yield from _named("--limit-mm-per-prompt", decide_modalities(situation))
    yield from _named("--distributed-executor-backend", decide_executor(situation))
    yield from _named("--load-format", decide_loader(situation))
    yield from figures.nodes


def _named(flag: str, choice: Choice[str] | Choice[int] | Choice[float] | None) -> list[Decision]:
    return [] if choice is None else [choice.as_decision(flag)]


def _bare(flag: str, choice: Choice[bool] | None) -> list[Decision]:
    if choice is None:
        return []
    return [Decision(flag=flag, value=None, source=choice.source, because=choice.because)]


def _revision(target: Checkpoint) -> list[Decision]:
    if target.revision is None:
        return []
    return _named("--revision", Choice(target.revision, "checkpoint", "pinned to what was read"))


def _served_name(situation: Situation) -> Choice[str] | None:
    name = situation.wishes.served_name
    return None if name is None else situation.from_wish("served_name", name)


def _cache_bytes(situation: Situation, memory: MemoryBudget) -> list[Decision]:
    if not situation.on_cpu or not memory.kv_pool_bytes:
        return []
    why = "on a CPU the cache is sized in bytes: the wanted sequences at full length, if they fit"
    return _named("--kv-cache-memory-bytes", Choice(memory.kv_pool_bytes, "hardware", why))


def _quantization(situation: Situation) -> list[Decision]:
    asked = situation.advice.quantization
    if asked is None or situation.target.quantized or situation.on_cpu:
        return []
    return _named("--quantization", situation.from_recipe(asked))


def _decide_speculation(situation: Situation, figures: _Figures, load: Load) -> list[Decision]:
    draft, drafter, draft_length = situation.draft, situation.drafter, figures.draft_length
    if draft is None or drafter is None or draft_length is None:
        return []
    prefix = "--speculative-config."
    if situation.recipe is not None and situation.recipe.drafter == drafter.name:
        named = situation.from_recipe(drafter.name)
    else:
        named = Choice(drafter.name, "user", "asked for")
    method = Choice(
        vllm.name_method(draft), "checkpoint", "never left to the engine: it guesses by the path"
    )
    rest: list[tuple[str, Choice[str] | None]] = [
        ("attention_backend", decide_drafter_backend(situation)),
        ("kv_cache_dtype", decide_drafter_kv_dtype(situation, load.kv_dtype)),
    ]
    if drafter.revision is not None:
        rest.append(("revision", Choice(drafter.revision, "checkpoint", "pinned to what was read")))
    return [
        method.as_decision(f"{prefix}method"),
        named.as_decision(f"{prefix}model"),
        draft_length.as_decision(f"{prefix}num_speculative_tokens"),
        *(decision for key, choice in rest for decision in _named(prefix + key, choice)),
    ]


def _obsolete_notes(recipe: Recipe | None) -> tuple[str, ...]:
    if recipe is None:
        return ()
    return tuple(f"not taken from {recipe.name}: {old.what}: {old.why}" for old in recipe.obsolete)
