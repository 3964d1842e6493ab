"""`PlanInputs`: what a planning rule may look at."""

from dataclasses import dataclass
from typing import TypeVar

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart
from slipstream.engines.vllm import CPU_BLOCK_TOKENS, GPU_BLOCK_TOKENS, Runner, choose_version
from slipstream.engines.vllm_methods import METHODS, Method, find_method
from slipstream.engines.vllm_tables import is_since
from slipstream.hardware import Host, find_capability, name_kind
from slipstream.hardware.host import Accelerator
from slipstream.planning.settings import Choice, EngineOptions, EngineSettings
from slipstream.planning.settings.options import PlanOptions
from slipstream.planning.steering_verdicts import SteeringVerdicts, Way, make_key
from slipstream.recipes.recipe import Recipe, RecipeSettings
from slipstream.units import version_tuple

Value = TypeVar("Value")
# Drafters of these are read and checked; other methods, given as arguments, are passed on.
CHECKED_METHODS = (None, "dflash", "dspark", "eagle3", "draft_model")


@dataclass(frozen=True, slots=True)
class FoundDrafter:
    """A drafter that neither the user nor a recipe named, with its published draft length."""

    drafter: Choice[str]
    length: int | None = None


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """A machine, a target, perhaps a drafter and a recipe, and what was specified.

    `fixed` has the settings that are not to be chosen: the user's, the engine arguments of a
    recipe for this kind of machine, and the parallel sizes, on which all others depend. `found` is
    set for a drafter from the index or the hub. `method_choice` is the requested method, or the
    fallback when no drafter was found. `verdicts` are what `tune` measured on this machine.
    """

    host: Host
    target: Checkpoint
    drafter: Checkpoint | None
    recipe: Recipe | None
    options: PlanOptions
    fixed: EngineOptions
    found: FoundDrafter | None = None
    method_choice: Choice[str] | None = None
    verdicts: SteeringVerdicts | None = None

    @property
    def accelerators(self) -> tuple[Accelerator, ...]:
        """Return the accelerators that would hold the model: those of all copies on a machine."""
        return self.host.accelerators[: self.fixed.local_accelerators]

    @property
    def accelerator(self) -> Accelerator | None:
        """Return the accelerator with the least memory, unknown being the least, of those used."""
        return min(self.accelerators, key=lambda one: one.memory_total_bytes or 0, default=None)

    @property
    def on_cpu(self) -> bool:
        return not self.host.accelerators

    @property
    def capability(self) -> str | None:
        """Return the lowest compute capability of the accelerators used, such as 12.1."""
        return find_capability(self.accelerators)

    @property
    def capability_major(self) -> int | None:
        return None if self.capability is None else version_tuple(self.capability)[0]

    @property
    def is_unified(self) -> bool:
        return self.accelerator is not None and self.accelerator.memory_kind == "unified"

    @property
    def machine(self) -> str | None:
        return name_kind(self.host)

    @property
    def runner(self) -> Runner:
        return "V1" if self.on_cpu else "V2"

    @property
    def engine_version(self) -> str:
        """Return the known version of vLLM that is asked for, else the machine's."""
        return choose_version(self.host, self.options.vllm)

    def is_since(self, first: str) -> bool:
        """Return whether the engine is of this minor version or a later one."""
        return is_since(self.engine_version, first)

    @property
    def block_tokens(self) -> int:
        return CPU_BLOCK_TOKENS if self.on_cpu else GPU_BLOCK_TOKENS

    @property
    def method(self) -> Method | None:
        """Return how tokens are drafted, None if they are not or if the engine alone knows how."""
        if self.method_choice is not None:
            return METHODS.get(self.method_choice.value)
        if (requested := self.fixed.drafting.method) is not None:
            checked = requested.value in CHECKED_METHODS
            return find_method(requested.value) if checked else None
        draft = self.drafter.draft if self.drafter else None
        return METHODS[draft.family] if draft else None

    @property
    def draft(self) -> DraftPart | None:
        """Return the drafter's side, None without one that was trained for its target."""
        return self.drafter.draft if self.drafter is not None and self.method else None

    @property
    def draft_model(self) -> Checkpoint | None:
        return self.drafter if self.method is not None else None

    @property
    def advice(self) -> RecipeSettings:
        return self.recipe.settings if self.recipe is not None else RecipeSettings()

    @property
    def recipe_fits_machine(self) -> bool:
        return self.recipe is not None and self.machine in self.recipe.machines

    @property
    def local_advice(self) -> RecipeSettings:
        return self.advice if self.recipe_fits_machine else RecipeSettings()

    def from_recipe(self, value: Value | None) -> Choice[Value] | None:
        """Return a recipe's value as a choice that names the recipe, None without one."""
        if value is None or self.recipe is None:
            return None
        return Choice(value, "recipe", f"recipe {self.recipe.name} runs with it")

    def find_verdict(self, way: Way, settings: EngineSettings) -> Choice[bool] | None:
        """Return what `tune` found about this drafter and draft length here."""
        key = make_key(way, settings, self.target.name, self.machine, self.engine_version)
        return self.verdicts.find(key) if self.verdicts else None
