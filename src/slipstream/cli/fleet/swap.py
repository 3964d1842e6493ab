"""`slipstream fleet swap`: another drafter for all groups, or on a canary first."""

import argparse
from datetime import UTC, datetime

from slipstream.cli.fleet import Board, add_fleet, choose_groups, load_fleet
from slipstream.cli.fleet.roll import add_rollout, begin_now, find_left, finish, require_canary
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.machines.weights import place_drafter, place_learned
from slipstream.fleet.rolling.rollout import Rollout, turn_back
from slipstream.fleet.rolling.steps import (
    find_learned,
    leave_out_serving,
    list_swapping_groups,
    read_rollout,
)

EXAMPLES = """\
# replace the drafter of all groups, one after the other
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16
# try it on one group first, which keeps it only if its requests show that it is as good
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16 --canary 1
# have all groups take the drafter that group b has learned and kept
slipstream fleet swap --learned b
# go on with the other groups after an interruption
slipstream fleet swap --resume
"""


def add_arguments(add: OptionAdder) -> None:
    add("[DRAFTER]", "local folder, which is sent to the machines, or hub name of the drafter")
    add_fleet(add)
    add("--learned GROUP", "the drafter that a group has learned from its traffic and kept", str)
    add("--back", "return all groups to the previous drafter")
    add_rollout(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Swap group after group, and show the record; one that is rolled back leaves with 4."""
    is_given = options.drafter is not None or options.learned is not None
    chosen = [options.drafter, options.learned, options.back or None, options.resume or None]
    if chosen.count(None) != 3 or (options.canary and not is_given):
        raise UsageError(
            "give one of DRAFTER, --learned, --back and --resume",
            hint="slipstream fleet swap DRAFTER --canary 1",
        )
    fleet = load_fleet(options)
    groups = list_swapping_groups(fleet)
    if options.learned is not None:
        choose_groups(fleet, [options.learned])
        groups = tuple(name for name in groups if name != options.learned)
        if not groups:
            raise InvalidInputError(
                f"no group but {options.learned} drafts", hint="slipstream fleet status"
            )
    require_canary(groups, options.canary)
    with open_ssh(fleet) as far, holding(far, "swap", force=options.force) as held:
        rollout = _find_swap(held) if options.back else find_left(held, resume=options.resume)
        if rollout is None:
            if options.learned is None:
                name = place_drafter(held, groups, options.drafter, screen.show_progress)
            else:
                learned = find_learned(held, options.learned)
                source = fleet.groups[options.learned].machines[0]
                show = Board(screen, fleet.machines).show
                name = place_learned(held, groups, source, learned, show)
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
