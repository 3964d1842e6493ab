"""`slipstream fleet stop`: groups finish their requests and end."""

import argparse
from datetime import UTC, datetime

from slipstream.cli.fleet import Board, add_fleet, add_force, choose_groups, load_fleet, raise_first
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.balancer.deploying import ask_balancer, closed_to
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.running.starting import stop_groups
from slipstream.fleet.running.status import read_fleet_status
from slipstream.reporting.fleet.status import render_fleet_status

EXAMPLES = """\
# let every group finish its requests, and stop it
slipstream fleet stop
# stop one group immediately
slipstream fleet stop a --now
"""


def add_arguments(add: OptionAdder) -> None:
    add("[GROUP ...]", "groups to stop (default: all)")
    add_fleet(add)
    add("--now", "do not wait for open requests")
    add_force(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Stop groups, and show what is left."""
    fleet = load_fleet(options)
    names = choose_groups(fleet, options.group)
    machines = [machine for name in names for machine in fleet.groups[name].machines]
    with open_ssh(fleet) as far:
        with holding(far, "stop", force=options.force) as held:
            before = read_fleet_status(held, datetime.now(UTC))
            show = Board(screen, machines).show
            with closed_to(held, names):
                faults = stop_groups(held, names, before, now=options.now, show=show)
            if not options.group and fleet.balancer is not None:
                ask_balancer(held, "stop")
        status = read_fleet_status(far, datetime.now(UTC))
    screen.show_data(text=render_fleet_status(status), document=status.to_json())
    raise_first(faults, screen)
    return ExitCode.DONE
