"""`slipstream fleet probe`: every machine as it is, and the links between them."""

import argparse

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.fleet.plan import add_probing, look_at
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.reporting.fleet.plan import render_probe

EXAMPLES = """\
# probe every machine of fleet.toml
slipstream fleet probe
# install this version where it is missing, and save the result
slipstream fleet probe --install --json
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)
    add_probing(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Probe all machines; exit with 1 if one of them cannot be reached."""
    fleet = load_fleet(options)
    with open_ssh(fleet) as far:
        probe = look_at(options, far, screen)
    screen.show_data(text=render_probe(probe), document=probe.to_json())
    return ExitCode.EXPECTED_FAILURE if probe.faults else ExitCode.DONE
