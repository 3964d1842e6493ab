"""`slipstream fleet front`: the front on this machine; other verbs run it over SSH."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.front.control import FrontState, close_group, open_group, read_state
from slipstream.fleet.front.service import install, is_supervised, start, stop, take_key_file
from slipstream.fleet.record import find_folder

ACTIONS = ("install", "start", "reload", "stop", "state", "open", "close", "keys")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet front`."""
    parser.add_argument("name", metavar="FLEET", help="name of the fleet")
    parser.add_argument("action", choices=ACTIONS, help="what to do with the front")
    parser.add_argument("group", metavar="GROUP", nargs="?", help="group to open or close")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Do it, and show the state of the front where there is one."""
    if (options.group is not None) != (options.action in ("open", "close")):
        raise UsageError("a GROUP goes with open and close", hint="slipstream fleet front --help")
    home, path = Path.home(), os.environ.get("PATH", os.defpath)
    fleet = home / find_folder(options.name)
    folder = fleet / "front"
    if options.action == "install":
        install(home, path)
    elif options.action == "start":
        take_key_file(fleet, folder, datetime.now(UTC))
        start(folder, home, path)
    elif options.action == "reload":
        if is_supervised(folder):
            start(folder, home, path)
    elif options.action == "stop":
        stop(folder)
    elif options.action == "keys":
        take_key_file(fleet, folder, datetime.now(UTC))
    else:
        _show(_do(options.action, folder, options.group), screen)
    return ExitCode.DONE


def _do(action: str, folder: Path, group: str) -> FrontState:
    if action == "state":
        return read_state(folder)
    return open_group(folder, group) if action == "open" else close_group(folder, group)


def _show(state: FrontState, screen: Screen) -> None:
    lines = [f"{one.group}: {one.state}, {one.requests} requests" for one in state.groups]
    screen.show_data(text="\n".join(lines), document=state.to_json())
