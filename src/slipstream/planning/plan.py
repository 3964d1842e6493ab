"""`LaunchPlan`: every setting with its source and its reason, and what speaks against it.

`slipstream plan` prints exactly these; `slipstream serve` runs `argv()` and nothing else.
"""

from typing import Literal

from slipstream.checkpoints.pairing import Fault
from slipstream.engines import sglang, vllm
from slipstream.records import Record

Source = Literal["user", "environment", "recipe", "hardware", "checkpoint", "measured", "default"]


class Decision(Record):
    """One engine setting, where it came from and why."""

    flag: str
    value: str | None
    source: Source
    because: str


class MemoryItem(Record):
    """One consumer of memory; None is a size that could not be told."""

    name: str
    size_bytes: int | None
    because: str


class MemoryBudget(Record):
    """What a plan takes of one accelerator (or of the system, on a CPU)."""

    device_bytes: int | None
    usable_bytes: int | None
    items: tuple[MemoryItem, ...]
    kv_bytes_per_token: int | None
    bytes_per_sequence: int | None
    kv_pool_bytes: int | None
    sequences_that_fit: int | None
    unknown: tuple[str, ...]


class LaunchPlan(Record):
    """How to start an engine for a target on a machine, or why not to."""

    schema_version: Literal[1] = 1
    engine: Literal["vllm"] = "vllm"
    engine_version: str = vllm.VERSION
    target: str
    drafter: str | None
    machine: str | None
    capability: str | None
    recipe: str | None
    decisions: tuple[Decision, ...]
    environment: tuple[Decision, ...]
    patches: tuple[str, ...] = ()
    memory: MemoryBudget
    notes: tuple[str, ...] = ()
    warnings: tuple[Fault, ...]
    refusals: tuple[Fault, ...]

    def argv(self) -> list[str]:
        """Give the engine's command line."""
        return vllm.render_argv(self._settings())

    def sglang_argv(self) -> tuple[list[str], list[str]]:
        """Give SGLang's command line for the same plan, and what it has no name for."""
        return sglang.render_argv(self._settings(), self.capability)

    def find(self, flag: str) -> Decision | None:
        """Give the decision about a flag or variable."""
        for decision in (*self.decisions, *self.environment):
            if decision.flag == flag:
                return decision
        return None

    def _settings(self) -> list[tuple[str, str | None]]:
        return [(decision.flag, decision.value) for decision in self.decisions]
