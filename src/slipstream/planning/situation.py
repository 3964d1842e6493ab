"""The input of a planning rule."""

from dataclasses import dataclass, field
from typing import Any, TypeVar

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.engines.vllm import CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS, Runner
from slipstream.engines.vllm_methods import METHODS, Method, find_method
from slipstream.hardware import Host, name_kind
from slipstream.hardware.host import Accelerator
from slipstream.planning.asked import CHECKED_METHODS, AskedSettings
from slipstream.planning.settings import Choice
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import Recipe, Settings

Value = TypeVar("Value")
_WISHES = {
    "sequences": "users",
    "context": "context",
    "batched_tokens": "batched_tokens",
    "memory_utilization": "memory_utilization",
    "attention_backend": "attention_backend",
    "kv_dtype": "kv_dtype",
}


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """A drafter that neither the user nor a recipe named, with its published draft length."""

    drafter: Choice[str]
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine, a target, perhaps a drafter and a recipe, and the wishes.

    `found` is set if the drafter was found in the index or on the hub, `chosen` if the method was
    asked for, or taken because no drafter could be.
    """

    host: Host
    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    wishes: Wishes
    asked: AskedSettings = field(default_factory=AskedSettings)
    found: FoundDrafter | None = None
    chosen: Choice[str] | None = None

    @property
    def accelerator(self) -> Accelerator | None:
        """Return the first accelerator; a machine's are taken to be alike."""
        return self.host.accelerators[0] if self.host.accelerators else None

    @property
    def on_cpu(self) -> bool:
        """Return whether the CPU itself would serve."""
        return self.accelerator is None

    @property
    def capability(self) -> str | None:
        """Return the compute capability, such as 12.1."""
        return None if self.accelerator is None else self.accelerator.compute_capability

    @property
    def capability_major(self) -> int | None:
        """Return the generation of the accelerator."""
        return None if self.capability is None else int(self.capability.partition(".")[0])

    @property
    def is_unified(self) -> bool:
        """Return whether accelerator and system share one memory."""
        return self.accelerator is not None and self.accelerator.memory_kind == "unified"

    @property
    def machine(self) -> str | None:
        """Return the kind of machine."""
        return name_kind(self.host)

    @property
    def runner(self) -> Runner:
        """Return the runner that the engine would use here."""
        return "V1" if self.on_cpu else "V2"

    @property
    def block_tokens(self) -> int:
        """Return the tokens of one cache block."""
        return CPU_BLOCK_TOKENS if self.on_cpu else GPU_BLOCK_TOKENS

    @property
    def method(self) -> Method | None:
        """Return how tokens are drafted, None if they are not or if the engine alone knows how."""
        if not self.wishes.speculation or self.asked.method not in CHECKED_METHODS:
            return None
        if self.asked.method is not None:
            return find_method(self.asked.method)
        if self.chosen is not None:
            return METHODS.get(self.chosen.value)
        draft = self.drafter.draft if self.drafter else None
        return METHODS[draft.family] if draft else None

    @property
    def draft(self) -> DraftPart | None:
        """Return the drafter's side, None without one that was trained for its target."""
        return self.drafter.draft if self.drafter is not None and self.method else None

    @property
    def assistant(self) -> Checkpoint | None:
        """Return the checkpoint that drafts, None without one."""
        return self.drafter if self.method is not None else None

    @property
    def advice(self) -> Settings:
        """Return the recipe's settings, or none."""
        return self.recipe.settings if self.recipe is not None else Settings()

    @property
    def recipe_fits_machine(self) -> bool:
        """Return whether the recipe was made on this kind of machine."""
        return self.recipe is not None and self.machine in self.recipe.machines

    def from_recipe(self, value: Value) -> Choice[Value]:
        """Return a recipe's value as a choice that names the recipe."""
        assert self.recipe is not None
        return Choice(value, "recipe", f"recipe {self.recipe.name} runs with it")

    def find_asked(self, setting: str) -> Choice[Any] | None:
        """Return what was asked for a setting: an engine's argument, then a wish."""
        if (choice := self.asked.settings.get(setting)) is not None:
            return choice
        return self.wishes.find(_WISHES[setting]) if setting in _WISHES else None
