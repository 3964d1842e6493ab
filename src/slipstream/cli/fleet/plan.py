"""`slipstream fleet plan`: every rank's plan, the links, the ports, and what does not match."""

import argparse
from pathlib import Path

from slipstream.cli.fleet.options import (
    add_fleet,
    add_probing,
    load_fleet,
    look_at,
    plan_fleet,
    read_probe,
)
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.difference import diff_fleet_plans
from slipstream.fleet.openssh import open_ssh
from slipstream.fleet.plan import FleetPlan
from slipstream.planning.plan import DifferenceList
from slipstream.records import read_record
from slipstream.reporting.text.fleet import render_fleet_plan
from slipstream.reporting.text.plan import render_difference

FLEET_PLAN_HINT = "slipstream fleet plan --json > FILE"


EXAMPLES = """\
# plan every rank of fleet.toml, with the reason of each setting
slipstream fleet plan --explain
# plan from a saved probe, and print the firewall rules
slipstream fleet plan --probe probe.json --firewall
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet plan`."""
    add_fleet(parser)
    add_probing(parser)
    parser.add_argument(
        "--probe",
        metavar="FILE",
        type=Path,
        help="plan from what `slipstream fleet probe --json` saved, without a connection",
    )
    parser.add_argument("--explain", action="store_true", help="print the reason of every setting")
    parser.add_argument("--firewall", action="store_true", help="print nftables rules per machine")
    parser.add_argument("--diff", nargs=2, metavar="PLAN", type=Path, help="compare saved plans")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Plan the fleet and show it; a refused plan leaves with 1."""
    if options.diff is not None:
        left, right = (read_record(one, FleetPlan, hint=FLEET_PLAN_HINT) for one in options.diff)
        differences = diff_fleet_plans(left, right)
        document = DifferenceList(differences=differences).to_json()
        screen.show_data(text=render_difference(differences), document=document)
        return ExitCode.DONE
    fleet = load_fleet(options)
    if options.probe is not None:
        probe = read_probe(options.probe)
    else:
        with open_ssh(fleet) as transport:
            probe = look_at(options, fleet, transport, screen)
    plan = plan_fleet(fleet, probe)
    text = render_fleet_plan(plan, explain=options.explain, firewall=options.firewall)
    screen.show_data(text=text, document=plan.to_json())
    return ExitCode.EXPECTED_FAILURE if plan.refusals else ExitCode.DONE
