"""`slipstream fleet status`: every machine's run and every group's state."""

import argparse
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.running.status import read_fleet_status
from slipstream.fleet.trust import add_certificates
from slipstream.reporting.fleet.status import render_fleet_status

EXAMPLES = """\
# the state of every machine and group
slipstream fleet status
# the same for a script
slipstream fleet status --json
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Ask every machine; unless every group is ready, leave with 1."""
    fleet = load_fleet(options)
    # Certificates are a second question.
    with open_ssh(fleet, shared=fleet.balancer is not None) as far:
        status = add_certificates(far, read_fleet_status(far, datetime.now(UTC)))
    screen.show_data(text=render_fleet_status(status), document=status.to_json())
    return ExitCode.DONE if status.is_ready else ExitCode.EXPECTED_FAILURE
