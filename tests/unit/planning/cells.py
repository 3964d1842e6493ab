"""Plans of every recipe on every machine, without the hub: the recipe's own facts are used."""

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import MissingPartError
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, PlanOptions
from slipstream.planning.drafters.library import Library
from slipstream.planning.drafters.resolution import plan_target
from slipstream.recipes import Recipe, load_known_bad


def read_nothing(name: str, *, tokenizer: bool) -> Checkpoint:
    """Stand for a hub that does not answer."""
    raise MissingPartError(f"the hub does not tell about {name}", hint="none")


def plan_cell(recipe: Recipe, machine: str, options: PlanOptions | None = None) -> LaunchPlan:
    """Plan one recipe on one machine."""
    return plan_target(
        load_host(machine),
        recipe.target,
        options or PlanOptions(),
        Library(read_nothing, lambda name: (recipe,)),
        known_bad=load_known_bad(),
    )
