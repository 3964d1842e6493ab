"""`slipstream fleet keys`: the keys of the fleet's file on every machine, without a restart."""

import argparse

from slipstream.cli.fleet.deliveries import show_deliveries
from slipstream.cli.fleet.options import add_fleet, add_force, load_fleet
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.fleet.lease import holding
from slipstream.fleet.openssh import open_ssh
from slipstream.fleet.trust.distribution import deliver_keys

EXAMPLES = """\
# send the fleet's keys to every machine
slipstream fleet keys
# the same for another fleet
slipstream fleet keys --fleet lab.toml
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet keys`."""
    add_fleet(parser)
    add_force(parser)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Bring the keys to all machines; gates and the front follow within a second."""
    fleet = load_fleet(options)
    if fleet.keys is None:
        raise InvalidInputError(
            "the fleet has no keys", hint='[keys] file = "keys.json" in the fleet\'s file'
        )
    with open_ssh(fleet) as transport, holding(fleet, transport, "keys", force=options.force):
        answers = deliver_keys(fleet, transport)
    show_deliveries(answers, screen)
    return ExitCode.DONE
