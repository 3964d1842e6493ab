"""`slipstream fleet doctor`: what is wrong with machines, links, ports and runs."""

import argparse
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.fleet.plan import plan_fleet
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.planning.probing import probe_fleet
from slipstream.fleet.running.examination import examine_fleet
from slipstream.fleet.running.status import read_fleet_status
from slipstream.fleet.trust import add_certificates
from slipstream.reporting.fleet.status import render_fleet_examination

EXAMPLES = """\
# check machines, links, ports and runs
slipstream fleet doctor
# the same for a script
slipstream fleet doctor --json
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Examine the fleet; a fault leaves with 1."""
    fleet = load_fleet(options)
    with open_ssh(fleet) as far:
        plan = plan_fleet(fleet, probe_fleet(far, screen.show_progress))
        status = add_certificates(far, read_fleet_status(far, datetime.now(UTC)))
        examination = examine_fleet(plan, status, far)
    screen.show_data(text=render_fleet_examination(examination), document=examination.to_json())
    return ExitCode.EXPECTED_FAILURE if examination.count("fault") else ExitCode.DONE
