"""`slipstream fleet endpoints`: the groups that take requests, in a file that llm-d follows."""

import argparse
import json
import time
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.cli.fleet.options import add_fleet, load_fleet
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, SlipstreamError, UsageError
from slipstream.fleet.front.deploying import read_front, require_router
from slipstream.fleet.front.endpoints import render_endpoints
from slipstream.fleet.openssh import open_ssh
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.served_plan import read_served_plan
from slipstream.fleet.transport import Transport

FOLLOW_SECONDS = 2.0


EXAMPLES = """\
# print the groups that take requests
slipstream fleet endpoints
# keep a file for llm-d's router current
slipstream fleet endpoints --out endpoints.yaml --follow
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet endpoints`."""
    add_fleet(parser)
    parser.add_argument("--out", metavar="FILE", type=Path, help="file to write (default: stdout)")
    parser.add_argument(
        "--follow",
        action="store_true",
        help="write the file again whenever a group starts or stops",
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write the endpoints once, or until interrupted."""
    if options.follow and options.out is None:
        raise UsageError("--follow writes a file", hint="--follow --out endpoints.yaml")
    fleet = load_fleet(options)
    require_router(fleet)
    with open_ssh(fleet) as transport:
        plan = read_served_plan(fleet, transport)
        text = _render(plan, transport)
        _write(options.out, text, screen)
        while options.follow:
            time.sleep(FOLLOW_SECONDS)
            try:
                newer = _render(plan, transport)
            except SlipstreamError as fault:
                screen.warn(fault)  # What is in the file stays: it was true a moment ago.
                continue
            if newer != text:
                text = newer
                _write(options.out, text, screen)
    return ExitCode.DONE


def _render(plan: FleetPlan, transport: Transport) -> str:
    assert plan.router is not None
    return render_endpoints(plan, plan.router, read_front(plan.fleet, transport))


def _write(file: Path | None, text: str, screen: Screen) -> None:
    if file is None:
        screen.show_data(text=text.rstrip(), document=json.dumps({"endpoints.yaml": text}))
        return
    write_atomically(file, text.encode())
    screen.show_progress(f"{file}: {text.count('- name:')} groups")
