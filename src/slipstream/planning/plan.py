"""`LaunchPlan`: every setting with its source and reason, and the plan's faults.

`slipstream plan` prints exactly these; `slipstream serve` runs `argv()` and nothing else.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Self

from slipstream.checkpoints.pairing import Fault
from slipstream.engines import sglang, vllm
from slipstream.engines.arguments import render_argument, render_arguments
from slipstream.engines.vllm_methods import find_method
from slipstream.engines.vllm_tables import VERSION
from slipstream.hardware import Host, find_capability, name_kind
from slipstream.planning.group import Group
from slipstream.planning.settings import (
    SPECULATION,
    Choice,
    EngineSettings,
    Source,
    Speculation,
    copies,
    draft_lengths,
)
from slipstream.planning.settings.options import PlanOptions
from slipstream.records import Record
from slipstream.units import show_bytes

# Of one kind of accelerator drivers report slightly different sizes.
SAME_MEMORY = 0.95


class Decision(Record):
    """One setting as it is shown: a flag or variable, its text, its source and its reason."""

    flag: str
    value: str | None
    source: Source
    because: str


class Difference(Record):
    """One setting on which two plans disagree; None is not set."""

    flag: str
    left: str | None
    right: str | None
    because: str


class DifferenceList(Record):
    schema_version: Literal[1] = 1
    differences: tuple[Difference, ...]


class MemoryItem(Record):
    """One consumer of memory; None is an unknown size, and an estimate has a lower bound."""

    name: str
    size_bytes: int | None
    because: str
    least_bytes: int | None = None


class MemoryBudget(Record):
    """The memory use of a plan on one accelerator, or on a CPU of the system."""

    device_bytes: int | None
    usable_bytes: int | None
    items: tuple[MemoryItem, ...]
    kv_bytes_per_token: int | None
    bytes_per_sequence: int | None
    kv_pool_bytes: int | None
    sequences_that_fit: int | None
    # How many fit of the length that is taken for a request's.
    usual_tokens: int | None = None
    usual_sequences_that_fit: int | None = None
    unknown: tuple[str, ...]
    # What a sequence of full length takes at least: the target's part, if that is known.
    least_sequence_bytes: int = 0

    @property
    def rest_bytes(self) -> int | None:
        """Return what is left for the cache, None if a part is unknown."""
        sizes = [item.size_bytes for item in self.items]
        if self.usable_bytes is None or None in sizes:
            return None
        return max(0, self.usable_bytes - sum(filter(None, sizes)))

    @property
    def least_fixed_bytes(self) -> int:
        """Return what all but the cache takes at least; an unknown part counts as nothing."""
        return sum(
            item.size_bytes or 0 if item.least_bytes is None else item.least_bytes
            for item in self.items
        )

    @property
    def overflows(self) -> bool:
        """Return whether there is surely no room for a cache."""
        return self.usable_bytes is not None and self.least_fixed_bytes >= self.usable_bytes

    @property
    def lacks_sequence(self) -> bool:
        """Return whether there is surely no room for one sequence of full length."""
        least = self.least_fixed_bytes + self.least_sequence_bytes
        return self.usable_bytes is not None and least > self.usable_bytes


class LaunchPlan(Record):
    """How to start an engine for a target on a machine, or why not to."""

    schema_version: Literal[4] = 4
    engine: Literal["vllm"] = "vllm"
    engine_version: str = VERSION
    target: str
    options: PlanOptions
    machine: str | None
    capability: str | None
    # CPU threads that the engine computes on, None on accelerators.
    threads: int | None = None
    recipe: str | None
    settings: EngineSettings
    environment: dict[str, Choice[str]]
    patches: tuple[str, ...] = ()
    # Why vLLM's adaptive verification is not planned where it could be.
    adaptive_verification: str | None = None
    # The machines that the engine runs on, None for one alone.
    group: Group | None = None
    memory: MemoryBudget
    notes: tuple[str, ...] = ()
    warnings: tuple[Fault, ...]
    refusals: tuple[Fault, ...]

    @property
    def speculation(self) -> Speculation | None:
        return self.settings.speculation

    @property
    def drafter(self) -> str | None:
        """Return the name of the drafter's checkpoint, None for a method without one."""
        speculation = self.settings.speculation
        return speculation.drafter.value if speculation and speculation.drafter else None

    @property
    def is_drafted_by_model(self) -> bool:
        """Return whether a drafter with weights drafts, so that some tokens must be accepted."""
        if (speculation := self.settings.speculation) is None:
            return False
        method = find_method(speculation.method.value)
        return method is None or method.needs != "nothing"

    @property
    def context(self) -> int | None:
        """Return the tokens of the longest sequence, None if the engine finds them itself."""
        context = self.settings.context
        return context.value if context and context.value > 0 else None

    @property
    def sequences(self) -> int | None:
        return self.settings.sequences.value if self.settings.sequences else None

    @property
    def trusts_remote_code(self) -> bool:
        """Return whether the user lets code of the model's repository run."""
        trust = self.settings.trust_remote_code
        return trust is not None and trust.value

    @property
    def is_tuned(self) -> bool:
        """Return whether a setting or variable was measured."""
        return any(one.source == "measured" for one in (*self.decisions, *self.variables))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return tuple(self._list_decisions())

    @property
    def variables(self) -> tuple[Decision, ...]:
        return tuple(
            Decision(flag=name, value=choice.value, source=choice.source, because=choice.because)
            for name, choice in self.environment.items()
        )

    def argv(self) -> list[str]:
        headless = self.settings.headless
        command = vllm.HEADLESS_COMMAND if headless and headless.value else vllm.COMMAND
        return [*command, *render_arguments(self.settings.list_arguments())]

    def find_mismatch(self, host: Host) -> str | None:
        """Return in which way a machine is not of the kind that this is planned for."""
        if host.unread_gpu and self.capability is None and self.machine != "cpu":
            return None  # made for a GPU of AMD, which the probe does not see
        nodes = self.settings.nodes.value if self.settings.nodes else 1
        needed = max(1, self.settings.local_accelerators // nodes)
        used = host.accelerators[:needed]
        total = min((one.memory_total_bytes or 0 for one in used), default=host.memory.total_bytes)
        least = self.memory.device_bytes if used else self.memory.usable_bytes
        pairs = {
            "machine": (self.machine, name_kind(host) or used[0].name),
            "accelerators": (needed if self.capability else None, len(used)),
            "compute capability": (self.capability, find_capability(used)),
            "CPU threads": (self.threads, host.processor.usable_threads),
            "vLLM": (self.engine_version, vllm.find_installed(host)),
        }
        for what, (planned, here) in pairs.items():
            if planned is not None and here is not None and planned != here:
                return f"{what} {planned}, here {here}"
        if total and least and total < least * SAME_MEMORY:
            return f"{show_bytes(least)} of memory, here {show_bytes(total)}"
        return None

    def sglang_argv(self) -> tuple[list[str], list[str]]:
        """Return SGLang's command line for the same plan, and what it has no counterpart for."""
        return sglang.render_argv(self.settings.list_arguments(), self.capability)

    def describe_lengths(self) -> str | None:
        """Say whether the draft length is steered, fixed, or waits to be measured."""
        return draft_lengths.describe_lengths(
            self.settings,
            on_cpu=self.threads is not None,
            fixed=self.environment.get(draft_lengths.VARIABLE),
            steer=self.options.steer,
        )

    @property
    def awaits_tuning(self) -> bool:
        """Return whether the length is fixed only because nobody measured steering here."""
        return (self.describe_lengths() or "").endswith(draft_lengths.UNMEASURED)

    def find(self, flag: str) -> Decision | None:
        shown = (*self.decisions, *self.variables)
        return next((decision for decision in shown if decision.flag == flag), None)

    def change(self, **settings: Any) -> Self:
        """Return the plan with other settings; None leaves one to the engine."""
        return self.model_copy(update={"settings": self.settings.change(**settings)})

    def change_variables(self, variables: Mapping[str, Choice[str] | None]) -> Self:
        """Return the plan with other variables; None takes one out."""
        merged = {**self.environment, **variables}
        kept = {name: choice for name, choice in merged.items() if choice is not None}
        return self.model_copy(update={"environment": kept})

    def without_drafts(self) -> Self:
        """Return the same plan without speculation, and all else as it is.

        This is the twin that text is compared with. What speed is compared with is the plan that
        `plan_plain` makes: without drafts other settings are best.
        """
        # vLLM refuses to report the drafts of requests where there are none.
        plain = self.change(speculation=None, draft_metrics=None)
        return plain.change_variables({copies.VARIABLE: None})

    def with_plain_cache(self) -> Self:
        """Return the same plan with the target's own type of cache, and all else as it is."""
        why = "what a quantized cache is compared with"
        return self.change(kv_dtype=Choice("auto", "default", why))

    def _list_decisions(self) -> Iterator[Decision]:
        for flag, choice in self.settings.list_choices():
            if words := render_argument(flag, choice.value):
                name, equals, joined = words[0].partition("=")
                text = joined if equals else " ".join(words[1:]) or None
                yield Decision(flag=name, value=text, source=choice.source, because=choice.because)
        for key, part in self.speculation.list_choices() if self.speculation else ():
            text = part.value if isinstance(part.value, str) else json.dumps(part.value)
            yield Decision(
                flag=f"{SPECULATION}.{key}", value=text, source=part.source, because=part.because
            )


def diff_plans(left: LaunchPlan, right: LaunchPlan) -> tuple[Difference, ...]:
    """List the disagreements in the order of the plans, with the right side's reason."""
    ours, theirs = (
        {one.flag: one for one in (*plan.decisions, *plan.variables)} for plan in (left, right)
    )
    differences = []
    for flag in {**ours, **theirs}:
        sides = [side.get(flag) for side in (ours, theirs)]
        shown = [None if one is None else one.value or "set" for one in sides]
        if shown[0] != shown[1]:
            because = next(one.because for one in reversed(sides) if one)
            differences.append(
                Difference(flag=flag, left=shown[0], right=shown[1], because=because)
            )
    return tuple(differences)
