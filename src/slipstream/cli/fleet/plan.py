"""`slipstream fleet plan`: every rank's plan, the links, the ports, and what does not match."""

import argparse

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.options import OptionAdder
from slipstream.cli.planning.plan import plan_for
from slipstream.cli.planning.saved_plans import add_allow, require_named
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.plan import FleetPlan, FleetProbe, diff_fleet_plans
from slipstream.fleet.planning.planner import make_fleet_plan
from slipstream.fleet.planning.probing import probe_fleet
from slipstream.fleet.record import Fleet
from slipstream.planning.plan import DifferenceList
from slipstream.records import read_record
from slipstream.reporting.fleet.plan import render_fleet_plan
from slipstream.reporting.text.plan import render_difference

PLAN_HINT = "slipstream fleet plan --json > FILE"
PROBE_HINT = "slipstream fleet probe --json > FILE"
EXAMPLES = """\
# plan every rank of fleet.toml, with the reason of each setting
slipstream fleet plan --explain
# plan from a saved probe, and print the firewall rules
slipstream fleet plan --probe probe.json --firewall
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)
    add_probing(add)
    add(
        "--probe FILE", "plan from what `slipstream fleet probe --json` saved, without a connection"
    )
    add("--explain", "print the reason of every setting")
    add("--firewall", "print nftables rules per machine")
    add("--diff PLAN", "compare saved plans", nargs=2)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Plan the fleet and show it; a refused plan leaves with 1."""
    if options.diff is not None:
        left, right = (read_record(one, FleetPlan, hint=PLAN_HINT) for one in options.diff)
        differences = tuple(diff_fleet_plans(left, right))
        document = DifferenceList(differences=differences).to_json()
        screen.show_data(text=render_difference(differences), document=document)
        return ExitCode.DONE
    fleet = load_fleet(options)
    if options.probe is not None:
        probe = read_record(options.probe, FleetProbe, hint=PROBE_HINT)
    else:
        with open_ssh(fleet) as far:
            probe = look_at(options, far, screen)
    plan = plan_fleet(fleet, probe)
    text = render_fleet_plan(plan, explain=options.explain, firewall=options.firewall)
    screen.show_data(text=text, document=plan.to_json())
    return ExitCode.EXPECTED_FAILURE if plan.refusals else ExitCode.DONE


def add_probing(add: OptionAdder) -> None:
    """Add the options for probing machines."""
    add("--install", "install this version on machines that lack it, from a wheel made here")
    add(
        "--wheels FOLDER",
        "folder of the wheels that slipstream depends on, for machines without internet",
    )


def add_saved_plan(add: OptionAdder) -> None:
    """Add the option that names a plan, and the one by which a user trusts it."""
    add("--plan FILE", "plan saved by `slipstream fleet plan --json` (default: plan now)")
    add_allow(add)


def look_at(options: argparse.Namespace, far: Machines, screen: Screen) -> FleetProbe:
    """Look at every machine now."""
    if options.wheels is not None and not options.wheels.is_dir():
        raise InvalidInputError(
            f"{options.wheels} is not a folder", hint="pip download -d FOLDER slipstream"
        )
    progress = screen.show_progress
    return probe_fleet(far, progress, installing=options.install, wheels=options.wheels)


def plan_fleet(fleet: Fleet, probe: FleetProbe) -> FleetPlan:
    """Plan a fleet from what was seen of it."""
    return make_fleet_plan(fleet, probe, plan_for)


def take_fleet_plan(options: argparse.Namespace, far: Machines, screen: Screen) -> FleetPlan:
    """Return the plan that `--plan` names, or one that is made now."""
    if options.plan is None:
        return plan_fleet(far.fleet, look_at(options, far, screen))
    saved = read_record(options.plan, FleetPlan, hint=PLAN_HINT)
    if saved.fleet != far.fleet:
        raise UsageError(
            f"{options.plan} was made from another fleet file than {options.fleet}", hint=PLAN_HINT
        )
    # What the file says of its machines is no word of theirs.
    ranks = (rank.plan for group in saved.groups for rank in group.ranks)
    require_named(options.plan, ranks, options.allow, None)
    return saved
