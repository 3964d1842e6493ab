"""`slipstream fleet lease`: who may change a fleet; other verbs run it on its first machine."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.lease import make_lease, release_lease, take_lease
from slipstream.fleet.record import find_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `fleet lease` takes."""
    parser.add_argument("action", choices=("take", "release"))
    parser.add_argument("--name", required=True, type=find_folder, help="of the fleet")
    parser.add_argument("--owner", required=True, help="a random number of the desk's process")
    parser.add_argument("--who", default="unknown", help="user and machine of the desk")
    parser.add_argument("--purpose", default="unknown", help="the verb that needs it")
    parser.add_argument("--force", action="store_true", help="take it from whoever holds it")


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
