"""`slipstream fleet up`: every group started, with each machine's phase."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.fleet import Board, add_fleet, add_force, choose_groups, load_fleet, raise_first
from slipstream.cli.fleet.plan import add_probing, add_saved_plan, take_fleet_plan
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, SlipstreamError
from slipstream.fleet.balancer.deploying import deploy_balancer
from slipstream.fleet.machines.commands import Machines, ask_all
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.machines.weights import spread_weights
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import FILE_NAME
from slipstream.fleet.running.starting import require_startable, start_groups
from slipstream.fleet.running.status import (
    compare_groups,
    read_fleet_status,
    read_served_groups,
)
from slipstream.fleet.trust import (
    add_certificates,
    find_authority,
    renew_certificates,
    require_certificates,
    send_keys,
)
from slipstream.reporting.fleet.plan import render_fleet_plan
from slipstream.reporting.fleet.status import render_fleet_status

EXAMPLES = """\
# start all groups that do not run
slipstream fleet up
# show what would be started for one group
slipstream fleet up a --dry-run
"""


def add_arguments(add: OptionAdder) -> None:
    add("[GROUP ...]", "groups to start (default: all that do not run)")
    add_fleet(add)
    add_probing(add)
    add_saved_plan(add)
    add("--dry-run", "print the plan and start nothing")
    add_force(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Plan, start what does not run, and wait until it is ready."""
    fleet = load_fleet(options)
    names = choose_groups(fleet, options.group)
    with open_ssh(fleet) as far:
        plan = take_fleet_plan(options, far, screen)
        require_startable(plan, names)
        if options.dry_run:
            text = render_fleet_plan(plan, explain=False, firewall=False)
            screen.show_data(text=text, document=plan.to_json())
            return ExitCode.DONE
        with holding(far, "up", force=options.force) as held:
            before = read_fleet_status(held, datetime.now(UTC))
            idle = {group.name for group in before.groups if group.state in ("down", "failed")}
            wanted = [name for name in names if name in idle]
            # Those that run go on as they are, and are balanced where they are.
            running = [name for name in fleet.groups if name not in idle]
            served = read_served_groups(held, before, running)
            faults = _start(plan.replace_groups(served), wanted, held, screen, options.fleet)
        status = add_certificates(far, read_fleet_status(far, datetime.now(UTC)))
        status = compare_groups(status, plan, served)
    screen.show_data(text=render_fleet_status(status), document=status.to_json())
    raise_first(faults, screen)
    ready = {group.name for group in status.groups if group.state == "ready"}
    return ExitCode.DONE if {*names} <= ready else ExitCode.ENGINE


def _start(
    plan: FleetPlan, wanted: list[str], far: Machines, screen: Screen, file: Path
) -> dict[str, SlipstreamError]:
    """Start these groups and the load balancer, and return why machines did not get ready."""
    show = Board(screen, [one for name in wanted for one in far.fleet.groups[name].machines]).show
    # With it beside the keys, any machine is a control machine.
    ask_all(plan.machines, lambda name: far.send(name, file.read_bytes(), FILE_NAME))
    spread_weights(plan, wanted, far, show)
    renew_certificates(far, find_authority(file, plan.fleet.name), datetime.now(UTC))
    require_certificates(far, wanted)
    faults = start_groups(plan, wanted, far, show)
    if plan.balancer is not None:
        show(plan.balancer.machine, "balancer", "HAProxy is started")
        send_keys(far, plan.balancer.machine)
        deploy_balancer(plan, far)
    return faults
