"""Plans of every recipe on every machine, without the hub: the recipe's own facts are used."""

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.errors import MissingPartError
from slipstream.hardware import load_host, name_kind
from slipstream.planning import LaunchPlan, Wishes, make_plan
from slipstream.planning.resolution import resolve
from slipstream.recipes import Recipe, load_known_bad


def read_nothing(name: str, *, tokenizer: bool) -> Checkpoint:
    """Stand for a hub that does not answer."""
    raise MissingPartError(f"the hub does not tell about {name}", hint="none")


def plan_cell(recipe: Recipe, machine: str, wishes: Wishes | None = None) -> LaunchPlan:
    """Plan one recipe on one machine."""
    host = load_host(machine)
    wishes = wishes or Wishes()
    resolved = resolve(
        recipe.target,
        recipe.drafter,
        recipes=(recipe,),
        machine=name_kind(host),
        speculation=wishes.speculation,
        read=read_nothing,
    )
    return make_plan(
        host,
        resolved.target,
        resolved.drafter,
        resolved.recipe,
        wishes,
        known_bad=load_known_bad(),
        notes=resolved.notes,
    )
