"""`slipstream fleet init`: a fleet.toml to begin with."""

import argparse
import json

from slipstream.cli.fleet.options import add_fleet
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.record import read_fleet
from slipstream.fleet.skeleton import render_skeleton


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `fleet init` takes."""
    parser.add_argument("machine", metavar="MACHINE", nargs="+", help="as `ssh` knows it")
    add_fleet(parser)
    parser.add_argument("--model", required=True, help="a folder, or a hub model")
    parser.add_argument("--drafter", help="a folder or hub model, if no recipe is to choose")
    parser.add_argument("--name", default="fleet", help="of the fleet (default fleet)")
    parser.add_argument(
        "--together", action="store_true", help="one engine over all machines, not one on each"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write the file, unless there is one."""
    if options.fleet.exists():
        raise UsageError(f"there is a {options.fleet} already", hint="--fleet OTHER.toml")
    text = render_skeleton(
        options.name,
        options.machine,
        target=options.model,
        drafter=options.drafter,
        together=options.together,
    )
    options.fleet.write_text(text)
    try:
        read_fleet(options.fleet)
    except BaseException:
        options.fleet.unlink()
        raise
    screen.show_data(
        text=f"wrote {options.fleet}\n\nnext: slipstream fleet plan --fleet {options.fleet}",
        document=json.dumps({"fleet": str(options.fleet)}),
    )
    return ExitCode.DONE
