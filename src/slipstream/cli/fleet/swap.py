"""`slipstream fleet swap`: another drafter for all groups, or on a canary first."""

import argparse
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.fleet.roll import add_rollout, begin_now, find_left, finish, require_canary
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.machines.weights import place_drafter
from slipstream.fleet.rolling.rollout import Rollout, turn_back
from slipstream.fleet.rolling.steps import (
    leave_out_serving,
    list_swapping_groups,
    read_rollout,
)

EXAMPLES = """\
# replace the drafter of all groups, one after the other
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16
# try it on one group first, which keeps it only if its requests show that it is as good
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16 --canary 1
# go on with the other groups after an interruption
slipstream fleet swap --resume
"""


def add_arguments(add: OptionAdder) -> None:
    add("[DRAFTER]", "local folder, which is sent to the machines, or hub name of the drafter")
    add_fleet(add)
    add("--back", "return all groups to the previous drafter")
    add_rollout(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Swap group after group, and show the record; one that is rolled back leaves with 4."""
    chosen = [options.drafter is not None, options.back, options.resume]
    if sum(chosen) != 1 or (options.canary and options.drafter is None):
        raise UsageError(
            "give one of DRAFTER, --back and --resume",
            hint="slipstream fleet swap DRAFTER --canary 1",
        )
    fleet = load_fleet(options)
    groups = list_swapping_groups(fleet)
    require_canary(groups, options.canary)
    with open_ssh(fleet) as far, holding(far, "swap", force=options.force) as held:
        rollout = _find_swap(held) if options.back else find_left(held, resume=options.resume)
        if rollout is None:
            name = place_drafter(held, groups, options.drafter, screen.show_progress)
            groups = leave_out_serving(held, groups, name)
            require_canary(groups, options.canary)
            # The first groups of the file go on as before.
            first = len(groups) - options.canary
            rollout = begin_now(fleet, (*groups[first:], *groups[:first]), options, name)
        code = finish(held, rollout, {}, screen)
    return ExitCode.DONE if options.back and code == ExitCode.GATE_MISSED else code


def _find_swap(far: Machines) -> Rollout:
    """Return the fleet's last swap, to be rolled back."""
    rollout = read_rollout(far)
    if rollout is None or rollout.drafter is None or rollout.state == "rolled back":
        raise InvalidInputError(
            "there is no drafter swap to undo",
            hint="on its machine: slipstream swap RUN --back",
        )
    return turn_back(rollout, "the user rolled it back", datetime.now(UTC))
