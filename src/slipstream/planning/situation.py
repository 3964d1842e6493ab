"""What a rule looks at, and what it answers with."""

from dataclasses import dataclass
from typing import Generic, TypeVar

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.engines.vllm import CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS, Runner
from slipstream.hardware import Host, name_kind
from slipstream.hardware.host import Accelerator
from slipstream.planning.plan import Decision, Source
from slipstream.planning.wishes import Wishes
from slipstream.recipes.recipe import Recipe, Settings

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Choice(Generic[Value]):
    """A value with where it came from and why."""

    value: Value
    source: Source
    because: str

    def as_decision(self, flag: str) -> Decision:
        """Write the choice down under the engine's name for it."""
        return Decision(flag=flag, value=str(self.value), source=self.source, because=self.because)


@dataclass(frozen=True, slots=True)
class Situation:
    """A machine, a target, perhaps a drafter and a recipe, and what is wished for."""

    host: Host
    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    wishes: Wishes

    @property
    def accelerator(self) -> Accelerator | None:
        """Give the first accelerator; a machine's are taken to be alike."""
        return self.host.accelerators[0] if self.host.accelerators else None

    @property
    def on_cpu(self) -> bool:
        """Say whether the CPU itself would serve."""
        return self.accelerator is None

    @property
    def capability(self) -> str | None:
        """Give the compute capability, such as 12.1."""
        return None if self.accelerator is None else self.accelerator.compute_capability

    @property
    def capability_major(self) -> int | None:
        """Give the generation of the accelerator."""
        return None if self.capability is None else int(self.capability.partition(".")[0])

    @property
    def is_unified(self) -> bool:
        """Say whether accelerator and system share one memory."""
        return self.accelerator is not None and self.accelerator.memory_kind == "unified"

    @property
    def machine(self) -> str | None:
        """Name the kind of machine."""
        return name_kind(self.host)

    @property
    def runner(self) -> Runner:
        """Name the runner that the engine would use here."""
        return "V1" if self.on_cpu else "V2"

    @property
    def block_tokens(self) -> int:
        """Give the tokens of one cache block."""
        return CPU_BLOCK_TOKENS if self.on_cpu else GPU_BLOCK_TOKENS

    @property
    def draft(self) -> DraftPart | None:
        """Give the drafter's side, if speculation is wanted at all."""
        if self.drafter is None or not self.wishes.speculation:
            return None
        return self.drafter.draft

    @property
    def advice(self) -> Settings:
        """Give the recipe's settings, or none."""
        return self.recipe.settings if self.recipe is not None else Settings()

    @property
    def recipe_fits_machine(self) -> bool:
        """Say whether the recipe was made on this kind of machine."""
        return self.recipe is not None and self.machine in self.recipe.machines

    def from_recipe(self, value: Value) -> Choice[Value]:
        """Take a recipe's value over, naming the recipe."""
        assert self.recipe is not None
        return Choice(value, "recipe", f"recipe {self.recipe.name} runs with it")

    def from_wish(self, wish: str, value: Value) -> Choice[Value]:
        """Take a wish over."""
        return Choice(value, self.wishes.source_of(wish), "asked for")
