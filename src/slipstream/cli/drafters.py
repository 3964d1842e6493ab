"""`slipstream drafters`: the drafters for a target, and which of them fit."""

import argparse
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.hub_search import search_drafters
from slipstream.cli.plan import TARGET_HELP, find_host, load_library
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError
from slipstream.hardware import name_kind
from slipstream.planning.resolution import find_drafters
from slipstream.reporting.text.drafters import render_drafters

EXAMPLES = """\
# every known drafter for a model, the one that `plan` chooses first
slipstream drafters Qwen/Qwen3-8B
# ranked for a DGX Spark
slipstream drafters Qwen/Qwen3.5-27B --host gb10
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `drafters`."""
    parser.add_argument("target", metavar="TARGET", help=TARGET_HELP)
    parser.add_argument(
        "--host",
        metavar="NAME|FILE",
        help="machine whose measurements rank the drafters, a known name such as gb10 or a file "
        "written by `slipstream probe --json` (default: this machine)",
    )
    parser.usage = "slipstream drafters TARGET [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print the candidates, best first; the exit code is 1 without any."""
    folder = Path(options.target)
    listed = find_drafters(
        str(folder.resolve()) if folder.is_dir() else options.target,
        machine=name_kind(find_host(options.host)),
        read=read_checkpoint,
        library=load_library(),
        search=search_drafters,
    )
    if not listed.candidates:
        raise InvalidInputError(
            f"no known drafter for {options.target} (hub {listed.hub})",
            hint=f"slipstream train {options.target}, or slipstream plan {options.target} "
            "--drafter NAME",
        )
    screen.show_data(text=render_drafters(listed), document=listed.to_json())
    return ExitCode.DONE
