"""`slipstream fleet logs`: what the runs of all machines said, with their names before it."""

import argparse
import json
from contextlib import closing
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, load_fleet
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.running.starting import follow_logs
from slipstream.fleet.running.status import read_fleet_status

EXAMPLES = """\
# follow the engine logs of all machines
slipstream fleet logs --follow
# the events of one group
slipstream fleet logs a --events
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "[MACHINE|GROUP ...]",
        "machines or groups to show (default: all machines with a run)",
        dest="name",
    )
    add_fleet(add)
    add("-f --follow", "keep printing until the runs end")
    add = add.exclusive()
    add("--events", "print the runs' events instead of their logs")
    add("--access", "print the access logs instead")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print the lines of all machines as they come; under `--json` an object a line."""
    fleet = load_fleet(options)
    chosen = [
        machine
        for name in options.name or fleet.machines
        for machine in (fleet.groups[name].machines if name in fleet.groups else (name,))
    ]
    if unknown := [name for name in chosen if name not in fleet.machines]:
        raise UsageError(
            f"there is no machine or group {unknown[0]}",
            hint=f"one of {', '.join((*fleet.machines, *fleet.groups))}",
        )
    flags = ("follow", "events", "access")
    words = [f"--{flag}" for flag in flags if getattr(options, flag)]
    with open_ssh(fleet) as far:
        status = read_fleet_status(far, datetime.now(UTC))
        found = {name: status.find_machine(name).run for name in dict.fromkeys(chosen)}
        runs = {name: one.id for name, one in found.items() if one is not None}
        if not runs:
            raise InvalidInputError(
                f"no run of fleet {fleet.name} is on {', '.join(found)}",
                hint="slipstream fleet status",
            )
        width = max(map(len, runs))
        with closing(follow_logs(far, runs, words)) as lines:
            for machine, line in lines:
                document = json.dumps({"machine": machine, "line": line})
                screen.show_data(text=f"{machine:<{width}} | {line}", document=document)
    return ExitCode.DONE
