"""`slipstream fleet init`: a fleet.toml to begin with, then certificates and keys."""

import argparse
import json
from datetime import UTC, datetime

from slipstream.cli.fleet.deliveries import show_deliveries
from slipstream.cli.fleet.options import add_fleet, add_force, load_fleet
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.lease import holding
from slipstream.fleet.record import read_fleet
from slipstream.fleet.skeleton import render_skeleton
from slipstream.fleet.transport import open_ssh
from slipstream.fleet.trust.authority import make_authority, read_authority
from slipstream.fleet.trust.distribution import deliver


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `fleet init` takes."""
    parser.add_argument(
        "machine", metavar="MACHINE", nargs="*", help="as `ssh` knows it; for a new fleet.toml"
    )
    add_fleet(parser)
    parser.add_argument("--model", help="a folder, or a hub model; for a new fleet.toml")
    parser.add_argument("--drafter", help="a folder or hub model, if no recipe is to choose")
    parser.add_argument("--name", default="fleet", help="of the fleet (default fleet)")
    parser.add_argument(
        "--together", action="store_true", help="one engine over all machines, not one on each"
    )
    parser.add_argument(
        "--front-name",
        metavar="HOST",
        action="append",
        default=[],
        help="another name that clients call the front by, for its certificate",
    )
    add_force(parser)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write the file if there is none, or else see that its machines know each other."""
    if not options.fleet.exists():
        _write(options, screen)
        return ExitCode.DONE
    if options.machine or options.model:
        raise UsageError(f"there is a {options.fleet} already", hint="--fleet OTHER.toml")
    fleet, now = load_fleet(options), datetime.now(UTC)
    folder = options.fleet.absolute().parent / f"{fleet.name}-authority"
    with (
        open_ssh(fleet) as transport,
        holding(fleet, transport, "init", force=options.force),
    ):
        authority = read_authority(folder)
        if authority is None:
            authority = make_authority(folder, fleet.name, now)
            screen.show_progress(f"made an authority; its key stays in {folder}")
        names = options.front_name
        answers = deliver(fleet, transport, authority, now=now, names=names)
    show_deliveries(answers, screen)
    return ExitCode.DONE


def _write(options: argparse.Namespace, screen: Screen) -> None:
    if not options.machine or options.model is None:
        raise UsageError(
            f"there is no {options.fleet}", hint="slipstream fleet init MACHINE ... --model MODEL"
        )
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
