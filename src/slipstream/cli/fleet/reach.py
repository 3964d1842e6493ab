"""`slipstream fleet reach`: which ports this machine can reach; `fleet doctor` runs it."""

import argparse

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.far_side.reach import parse_targets, try_targets


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet reach`."""
    parser.add_argument(
        "target", metavar="ADDRESS:PORT", nargs="+", help="addresses and ports to connect to"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Try every port."""
    found = try_targets(parse_targets(options.target))
    text = "\n".join(f"{one.address}:{one.port} {one.reach}" for one in found.reached)
    screen.show_data(text=text, document=found.to_json())
    return ExitCode.DONE
