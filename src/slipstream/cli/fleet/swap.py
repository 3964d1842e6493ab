"""`slipstream fleet swap`: another drafter for all groups, or on a canary first."""

import argparse
import json
from pathlib import Path

from slipstream.cli.arguments import natural_number, positive_number, whole_number
from slipstream.cli.fleet.options import add_fleet, add_force, load_fleet
from slipstream.cli.measuring_options import require_writable, write_report
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.canary.answers import ANSWERS
from slipstream.fleet.canary.canary_test import MOST_REQUESTS
from slipstream.fleet.canary.far_groups import FarGroups, TrialLimits
from slipstream.fleet.canary.trial import WITHIN_SECONDS
from slipstream.fleet.lease import holding
from slipstream.fleet.swap import (
    FleetSwap,
    choose_canary,
    keep_canary,
    list_drafting_groups,
    place_drafter,
)
from slipstream.fleet.transport import open_ssh
from slipstream.reporting.pages.canary import render_canary_html
from slipstream.reporting.text.canary import render_canary_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `fleet swap` takes."""
    parser.add_argument(
        "drafter",
        metavar="DRAFTER",
        nargs="?",
        help="a folder of this machine, which is sent, or a name on the hub",
    )
    add_fleet(parser)
    add_force(parser)
    parser.add_argument("--back", action="store_true", help="return all groups to the one before")
    parser.add_argument(
        "--canary",
        metavar="GROUPS",
        type=natural_number,
        default=0,
        help="number of groups that try it first; requests then decide (default 0: none)",
    )
    parser.add_argument(
        "--requests",
        type=whole_number,
        default=MOST_REQUESTS,
        help=f"requests of the canary after which it ends undecided (default {MOST_REQUESTS})",
    )
    parser.add_argument(
        "--hours",
        type=positive_number,
        default=WITHIN_SECONDS / 3600,
        help=f"hours after which it ends undecided (default {WITHIN_SECONDS / 3600:g})",
    )
    parser.add_argument(
        "--answers",
        type=natural_number,
        default=ANSWERS,
        help=f"answers of both arms that are judged by prefill (default {ANSWERS}; 0 for none)",
    )
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a page with pictures")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Swap group after group, or decide on a canary; what is not promoted leaves with 4."""
    if options.back == (options.drafter is not None) or (options.back and options.canary):
        raise UsageError(
            "either a drafter or --back", hint="slipstream fleet swap DRAFTER --canary 1"
        )
    require_writable(options.html)
    fleet = load_fleet(options)
    groups = list_drafting_groups(fleet)
    canary = choose_canary(groups, options.canary) if options.canary else ()
    with (
        open_ssh(fleet) as transport,
        holding(fleet, transport, "swap", force=options.force) as lease,
    ):
        far = FarGroups(fleet, transport, screen.show_progress)
        swap = FleetSwap(far, options.drafter or "", lease.require)
        if options.back:
            swap.swapped = list(groups)
            swap.go_back()
            return _show(swap.done, screen)
        limits = _read_limits(options) if canary else None
        swap.name = place_drafter(fleet, transport, groups, options.drafter, screen.show_progress)
        if limits is None:
            swap.swap_groups(groups)
            return _show(swap.done, screen)
        others = [group for group in groups if group not in canary]
        record = swap.try_on(canary, others, limits)
        keep_canary(fleet, transport, record)
    screen.show_data(text=render_canary_text(record), document=record.to_json())
    if options.html:
        write_report(options.html, render_canary_html(record), screen)
    promoted = record.verdict.outcome == "promote"
    return ExitCode.DONE if promoted else ExitCode.GATE_MISSED


def _read_limits(options: argparse.Namespace) -> TrialLimits:
    return TrialLimits(
        requests=options.requests,
        seconds=3600 * options.hours,
        answers=options.answers,
    )


def _show(done: list[str], screen: Screen) -> ExitCode:
    screen.show_data(text="\n".join(done), document=json.dumps({"done": done}, indent=2))
    return ExitCode.DONE
