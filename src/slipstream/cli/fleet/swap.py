"""`slipstream fleet swap`: another drafter for all groups, or on a canary first."""

import argparse
import json

from slipstream.cli.fleet.options import (
    add_fleet,
    add_force,
    add_trial,
    load_fleet,
    read_limits,
    require_canary,
)
from slipstream.cli.measuring_options import require_writable, write_report
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.canary.far_groups import FarGroups, keep_canary
from slipstream.fleet.lease import holding
from slipstream.fleet.openssh import open_ssh
from slipstream.fleet.swap import FleetSwap, list_swapping_groups, place_drafter
from slipstream.reporting.pages.canary import render_canary_html
from slipstream.reporting.text.canary import render_canary_text

EXAMPLES = """\
# replace the drafter of all groups, one after the other
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16
# try it on one group first, and decide by measurement
slipstream fleet swap z-lab/Qwen3-8B-DFlash-b16 --canary 1
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet swap`."""
    parser.add_argument(
        "drafter",
        metavar="DRAFTER",
        nargs="?",
        help="local folder, which is sent to the machines, or hub name of the drafter",
    )
    add_fleet(parser)
    add_force(parser)
    parser.add_argument(
        "--back", action="store_true", help="return all groups to the previous drafter"
    )
    add_trial(parser)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Swap group after group, or decide on a canary; what is not promoted leaves with 4."""
    if options.back == (options.drafter is not None) or (options.back and options.canary):
        raise UsageError(
            "either a drafter or --back", hint="slipstream fleet swap DRAFTER --canary 1"
        )
    require_writable(options.html)
    fleet = load_fleet(options)
    groups = list_swapping_groups(fleet)
    require_canary(groups, options.canary)
    # The first group of the file goes on as before.
    canary = groups[len(groups) - options.canary :]
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
        swap.name = place_drafter(fleet, transport, groups, options.drafter, screen.show_progress)
        if not canary:
            swap.swap_groups(groups)
            return _show(swap.done, screen)
        others = [group for group in groups if group not in canary]
        record = swap.try_on(canary, others, read_limits(options))
        keep_canary(fleet, transport, record)
    screen.show_data(text=render_canary_text(record), document=record.to_json())
    if options.html:
        write_report(options.html, render_canary_html(record), screen)
    promoted = record.verdict.outcome == "promote"
    return ExitCode.DONE if promoted else ExitCode.GATE_MISSED


def _show(done: list[str], screen: Screen) -> ExitCode:
    screen.show_data(text="\n".join(done), document=json.dumps({"done": done}, indent=2))
    return ExitCode.DONE
