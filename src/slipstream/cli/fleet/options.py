"""What the verbs of a fleet have in common: its file, and the way to its machines."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path

from slipstream.cli.arguments import natural_number, positive_number, whole_number
from slipstream.cli.plan import plan_for
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError, SlipstreamError, UsageError
from slipstream.fleet.canary.answers import ANSWERS
from slipstream.fleet.canary.canary_test import MOST_REQUESTS
from slipstream.fleet.canary.far_groups import TrialLimits
from slipstream.fleet.canary.trial import WITHIN_SECONDS
from slipstream.fleet.plan import FleetPlan, FleetProbe
from slipstream.fleet.planning import make_fleet_plan
from slipstream.fleet.probing import probe_fleet
from slipstream.fleet.record import FILE_NAME, FLEET_HINT, Fleet, read_fleet
from slipstream.fleet.transport import Transport
from slipstream.records import read_record

PROBE_HINT = "slipstream fleet probe --json > FILE"


def add_fleet(parser: argparse.ArgumentParser) -> None:
    """Add the option for the fleet's file."""
    parser.add_argument(
        "--fleet",
        metavar="FILE",
        type=Path,
        default=Path(FILE_NAME),
        help="file of the fleet (default fleet.toml)",
    )


def add_probing(parser: argparse.ArgumentParser) -> None:
    """Add the options for probing machines."""
    parser.add_argument(
        "--install",
        action="store_true",
        help="install this version on machines that lack it, from a wheel made here",
    )
    parser.add_argument(
        "--wheels",
        metavar="FOLDER",
        type=Path,
        help="folder of the wheels that slipstream depends on, for machines without internet",
    )


def add_saved_plan(parser: argparse.ArgumentParser) -> None:
    """Add the option that names a plan."""
    parser.add_argument(
        "--plan",
        metavar="FILE",
        type=Path,
        help="plan saved by `slipstream fleet plan --json` (default: plan now)",
    )


def add_force(parser: argparse.ArgumentParser) -> None:
    """Add the option that takes over the lease."""
    parser.add_argument(
        "--force",
        action="store_true",
        help="take the fleet's lease from another machine that holds it",
    )


def choose_groups(fleet: Fleet, named: Sequence[str]) -> list[str]:
    """Return the groups that were named, by default all."""
    if unknown := [name for name in named if name not in fleet.groups]:
        close = difflib.get_close_matches(unknown[0], fleet.groups, n=1)
        raise UsageError(
            f"there is no group {unknown[0]}",
            hint=f"one of {', '.join(fleet.groups)}" if not close else f"did you mean {close[0]}?",
        )
    return list(named) or list(fleet.groups)


def raise_first(faults: Mapping[str, SlipstreamError], screen: Screen) -> None:
    """Warn of all machines that failed but the first, which is the command's failure."""
    first, *others = faults.values() if faults else (None,)
    for fault in others:
        if fault is not None:
            screen.warn(fault)
    if first is not None:
        raise first


def load_fleet(options: argparse.Namespace) -> Fleet:
    """Read the fleet's file."""
    if not options.fleet.exists():
        raise InvalidInputError(f"there is no {options.fleet}", hint=FLEET_HINT)
    return read_fleet(options.fleet)


def look_at(
    options: argparse.Namespace, fleet: Fleet, transport: Transport, screen: Screen
) -> FleetProbe:
    """Look at every machine now."""
    if options.wheels is not None and not options.wheels.is_dir():
        raise InvalidInputError(
            f"{options.wheels} is no folder", hint="pip download -d FOLDER slipstream"
        )
    return probe_fleet(
        fleet,
        transport,
        screen.show_progress,
        installing=options.install,
        wheels=options.wheels,
    )


def read_probe(path: Path) -> FleetProbe:
    """Read what `fleet probe --json` saved."""
    return read_record(path, FleetProbe, hint=PROBE_HINT)


def plan_fleet(fleet: Fleet, probe: FleetProbe) -> FleetPlan:
    """Plan a fleet from what was seen of it."""
    return make_fleet_plan(fleet, probe, plan_for)


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Add the options of a canary."""
    parser.add_argument(
        "--canary",
        metavar="GROUPS",
        type=natural_number,
        default=0,
        help="groups that try the change first, until a test on their requests decides "
        "(default 0: none)",
    )
    parser.add_argument(
        "--requests",
        metavar="N",
        type=whole_number,
        default=MOST_REQUESTS,
        help=f"end the canary undecided after this many of its requests (default {MOST_REQUESTS})",
    )
    parser.add_argument(
        "--hours",
        metavar="N",
        type=positive_number,
        default=WITHIN_SECONDS / 3600,
        help=f"end the canary undecided after this many hours (default {WITHIN_SECONDS / 3600:g})",
    )
    parser.add_argument(
        "--answers",
        metavar="N",
        type=natural_number,
        default=ANSWERS,
        help=f"answers per arm to judge by prefill (default {ANSWERS}; 0: none)",
    )
    parser.add_argument(
        "--html", metavar="FILE", type=Path, help="write the canary's report as an HTML page"
    )


def read_limits(options: argparse.Namespace) -> TrialLimits:
    """Return when a canary's trial ends."""
    return TrialLimits(
        requests=options.requests, seconds=3600 * options.hours, answers=options.answers
    )


def require_canary(groups: Sequence[str], number: int) -> None:
    """Refuse a canary that leaves no group to compare with."""
    if number and number >= len(groups):
        raise InvalidInputError(
            f"{number} of {len(groups)} groups cannot be a canary: at least one goes on as before",
            hint="--canary 1" if len(groups) > 1 else "leave --canary out",
        )
