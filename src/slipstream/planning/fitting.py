"""Makes a plan fit the machine: parallel sizes, cache type, context, sequences, tokens per step.

What nobody asked for gives way, what is missed least first: more accelerators are used, then steps
take fewer tokens, then sequences get shorter, then the cache gets smaller numbers. What the user
asked for stays; whether that fits is said in `faults.py`.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from slipstream.planning.inputs import PlanInputs
from slipstream.planning.memory.budget import make_budget
from slipstream.planning.plan import MemoryBudget
from slipstream.planning.settings import Choice, EngineSettings, attention, placement, scheduling
from slipstream.planning.settings.speculation import decide_speculation
from slipstream.units import show_bytes

LEAST_BATCHED_TOKENS = 2048
# A context is lowered to the first before the cache is made smaller, and never below the second.
USEFUL_CONTEXT = 8192
LEAST_CONTEXT = 4096
CONTEXT_STEP = 1024


@dataclass(frozen=True)
class Fitted:
    """The settings that the memory depends on, and a line for each that gave way."""

    inputs: PlanInputs
    settings: EngineSettings
    adjusted: tuple[str, ...] = ()

    @cached_property
    def memory(self) -> MemoryBudget:
        return make_budget(self.inputs, self.settings)

    @property
    def context(self) -> int:
        return self.settings.context.value if self.settings.context else -1

    @property
    def is_short(self) -> bool:
        """Return whether the cache surely lacks room for what must fit."""
        return self.lacks_length or self._lacks_seats()

    @property
    def lacks_length(self) -> bool:
        """Return whether too few sequences of full length fit."""
        full = self.memory.sequences_that_fit
        return self.memory.overflows if full is None else full < self.count_needed()

    def _lacks_seats(self) -> bool:
        """Return whether fewer sequences of a usual length fit than the user asked for."""
        if (sequences := self.inputs.fixed.sequences) is None:
            return False
        usual = self.count_usual()
        return usual is not None and usual < sequences.value

    def count_needed(self) -> int:
        """Return how many sequences of full length must fit: one, or two conversations."""
        chosen = self.inputs.fixed.context is None
        agents = chosen and self.inputs.options.goal == "agent"
        return scheduling.MANY_CONVERSATIONS if agents else 1

    def count_usual(self) -> int | None:
        """Return how many sequences of a usual length the cache holds."""
        usual = scheduling.find_usual_length(self.inputs, self.context)
        tried = {"context": Choice(usual, "default", "tried")}
        shorter = self.settings.model_copy(update=tried)
        one, pool = make_budget(self.inputs, shorter).bytes_per_sequence, self.memory.kv_pool_bytes
        return pool // one if one and pool is not None else None

    def describe_memory(self) -> MemoryBudget:
        usual = scheduling.find_usual_length(self.inputs, self.context)
        held = {"usual_tokens": usual, "usual_sequences_that_fit": self.count_usual()}
        return self.memory.model_copy(update=held)

    def change(self, **fields: Any) -> "Fitted":
        """Return the same with other settings, which are rules' own and need no check."""
        return replace(self, settings=self.settings.model_copy(update=fields))

    def adjust(self, what: str) -> "Fitted":
        return replace(self, adjusted=(*self.adjusted, what))

    def store(self, kv_dtype: Choice[str] | None) -> "Fitted":
        """Return the same with another cache type, and the drafter's own where it must differ."""
        stored = self.change(kv_dtype=kv_dtype)
        speculation = stored.settings.speculation
        given = self.inputs.fixed.drafting.kv_dtype
        if speculation is None or given is not None or self.inputs.method is None:
            return stored
        own = attention.decide_drafter_kv_dtype(self.inputs, stored.settings.cache_dtype)
        return stored.change(speculation=speculation.change(kv_dtype=own))


def fit(inputs: PlanInputs) -> Fitted:
    """Return the fewest accelerators on which all fits, else the most, adjusted."""
    first, *larger = placement.list_tensor_parallel(inputs)
    fitted = _place(inputs, first)
    for size in larger:
        if not fitted.is_short:
            break
        fitted = _place(inputs, size, _describe_shortage(fitted))
    return _admit(_give_way(fitted) if fitted.is_short else fitted)


def _place(inputs: PlanInputs, size: int, shortage: str = "") -> Fitted:
    layout = placement.decide_parallel(inputs, size, shortage)
    placed = replace(inputs, fixed=inputs.fixed.override(layout))
    return _choose_cache(Fitted(placed, _decide_load(placed)))


def _decide_load(inputs: PlanInputs) -> EngineSettings:
    """Decide the settings that the memory depends on, but for the type of the cache."""
    given = inputs.fixed
    length = given.drafting.length or scheduling.decide_draft_length(inputs)
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
            "quantization": given.quantization or placement.decide_quantization(inputs),
            "speculation": decide_speculation(inputs, length),
        }
    )


def _choose_cache(fitted: Fitted) -> Fitted:
    def count_fitting(kv_dtype: str) -> int | None:
        return fitted.store(Choice(kv_dtype, "hardware", "tried")).memory.sequences_that_fit

    inputs = fitted.inputs
    wanted = inputs.fixed.sequences.value if inputs.fixed.sequences else scheduling.MANY_SEQUENCES
    return fitted.store(
        inputs.fixed.kv_dtype
        or attention.decide_kv_dtype(inputs, wanted=wanted, count_fitting=count_fitting)
    )


def _describe_shortage(fitted: Fitted) -> str:
    memory, count = fitted.memory, fitted.inputs.fixed.shards
    where = "one accelerator" if count == 1 else f"{count} accelerators"
    if memory.overflows:
        taken, usable = show_bytes(memory.least_fixed_bytes), show_bytes(memory.usable_bytes)
        return f"on {where} a share of the weights takes {taken} of {usable}"
    one, left = show_bytes(memory.bytes_per_sequence), show_bytes(memory.kv_pool_bytes)
    return f"on {where} {left} are left for sequences of {one}"


def _give_way(fitted: Fitted) -> Fitted:
    """Return the first of the adjustments that suffices, else the last of them."""
    fewer = _take_fewer_tokens(fitted)
    if not fewer.is_short or fewer.memory.overflows:
        return fewer
    if not (shorter := _shorten(fewer, USEFUL_CONTEXT)).is_short:
        return shorter
    smaller = _shorten(_store_smaller(fewer))
    if not smaller.is_short or shorter.lacks_length > smaller.lacks_length:
        return smaller
    return _shorten(fewer) if shorter.lacks_length else shorter


def _take_fewer_tokens(fitted: Fitted) -> Fitted:
    """Lower the tokens of a step: their activations, and what windows keep of a step."""
    settings, inputs = fitted.settings, fitted.inputs
    tokens = settings.batched_tokens
    users = inputs.fixed.sequences.value if inputs.fixed.sequences else 1
    least = max(LEAST_BATCHED_TOKENS, users * (settings.draft_length + 1))
    if tokens is None or inputs.fixed.batched_tokens or tokens.value < 2 * least:
        return fitted
    why = f"{tokens.value} leave too little memory for the cache"
    fewer = fitted
    while fewer.is_short and tokens.value >= 2 * least:
        tokens = Choice(tokens.value // 2, "hardware", why)
        fewer = fitted.change(batched_tokens=tokens)
    return fewer.adjust(f"{tokens.value} tokens per step: {why}")


def _shorten(fitted: Fitted, least: int = LEAST_CONTEXT) -> Fitted:
    """Lower the context to the most that fits, and to no less than the least."""
    most = fitted.context
    if not fitted.lacks_length or fitted.inputs.fixed.context is not None or most <= least:
        return fitted
    many = "two conversations" if fitted.count_needed() > 1 else "a sequence"
    why = f"no room for {many} of {most} tokens"

    def lower(steps: int) -> Fitted:
        return fitted.change(context=Choice(steps * CONTEXT_STEP, "hardware", why))

    low, high = least // CONTEXT_STEP, most // CONTEXT_STEP
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (low, middle - 1) if lower(middle).lacks_length else (middle, high)
    return lower(low).adjust(f"context of {low * CONTEXT_STEP} tokens: {why}")


def _store_smaller(fitted: Fitted) -> Fitted:
    """Store the cache in 8 bits where a backend surely reads it."""
    if fitted.settings.kv_dtype is not None or not attention.has_fp8_cache(fitted.inputs):
        return fitted
    least = fitted.context if fitted.inputs.fixed.context else USEFUL_CONTEXT
    lacking = f"a sequence of {least} tokens does" if fitted.lacks_length else "the users do"
    why = f"in bfloat16 {lacking} not fit"
    cost = attention.COST_OF_A_SMALLER_CACHE["fp8"]
    return fitted.store(Choice("fp8", "hardware", why)).adjust(f"cache in fp8: {why}; {cost}")


def _admit(fitted: Fitted) -> Fitted:
    """Admit as many sequences as the cache holds of a usual length, where nobody says how many."""
    sequences, inputs = fitted.settings.sequences, fitted.inputs
    if sequences is None or sequences.source != "default" or fitted.lacks_length:
        return fitted
    chosen = scheduling.find_most_sequences(inputs, fitted.settings)
    usual = scheduling.find_usual_length(inputs, fitted.context)
    wider = fitted
    while chosen.value > 1:
        wider = fitted.change(sequences=chosen)
        held = wider.count_usual()
        if held is None:
            break
        if held >= chosen.value and not wider.is_short:
            return wider
        fewer = min(held, chosen.value - 1) if not wider.is_short else chosen.value // 2
        chosen = Choice(max(1, fewer), "hardware", f"the cache holds this many of {usual} tokens")
    else:
        return fitted.change(sequences=chosen)
    return fitted.change(sequences=scheduling.CACHE_UNKNOWN)
