"""`slipstream fleet lease`: who may change a fleet; other verbs run it on its first machine."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.lease import make_lease, release_lease, take_lease
from slipstream.fleet.record import find_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet lease`."""
    parser.add_argument("action", choices=("take", "release"))
    parser.add_argument("--name", required=True, type=find_folder, help="name of the fleet")
    parser.add_argument(
        "--owner", required=True, help="random number that names the process that asks"
    )
    parser.add_argument(
        "--who", default="unknown", help="user and machine that ask (default unknown)"
    )
    parser.add_argument(
        "--purpose", default="unknown", help="verb that needs the lease (default unknown)"
    )
    parser.add_argument("--force", action="store_true", help="take the lease from its holder")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Take, renew or release the lease, and show the one that counts."""
    folder, now = Path.home() / options.name, datetime.now(UTC)
    lease = make_lease(options.owner, options.who, options.purpose, now)
    if options.action == "release":
        release_lease(folder, options.owner)
    else:
        lease = take_lease(folder, lease, now=now, force=options.force)
    screen.show_data(text=f"{lease.who}, {lease.purpose}", document=lease.to_json())
    return ExitCode.DONE
