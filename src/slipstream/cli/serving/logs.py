"""`slipstream logs`: the engine log, the events or the requests of a run."""

import argparse
import codecs
import os
import time
from collections.abc import Callable

from slipstream.cli.options import OptionAdder, add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, UsageError
from slipstream.reporting.serving.run import render_access, render_event
from slipstream.serving.following import follow_accesses, follow_events, follow_file
from slipstream.serving.run import RunFolder, find_live, find_runs_root
from slipstream.serving.selection import choose_run, is_over

EXAMPLES = """\
# follow the engine log of the newest run
slipstream logs --follow
# what happened to a run, as JSON lines
slipstream logs Qwen3-8B --events --json
"""


def add_arguments(add: OptionAdder) -> None:
    add_run(add, default="the newest")
    add("-f --follow", "keep printing new lines until the run ends")
    add = add.exclusive()
    add(
        "--events",
        "print the events of the run instead of the engine log: starts, failures, actions",
    )
    add(
        "--access",
        "print the requests instead of the engine log, one per line and without their text",
    )
    add.parser.usage = "slipstream logs [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print what was logged; under `--json` one event or request per line."""
    if screen.json and not (options.events or options.access):
        hint = "slipstream logs --events --json"
        raise UsageError("--json needs --events or --access", hint=hint)
    root = find_runs_root(os.environ)
    folder, run = choose_run(root, options.run)
    live = [other.id for _, other in find_live(root)] if options.run is None else []
    if live and run.id not in live:
        screen.show_progress(f"{run.id} is the newest, but not live; live: {', '.join(live)}")
    show = _show_events if options.events else _show_accesses if options.access else _show_log
    over = (lambda: is_over(folder.read())) if options.follow else (lambda: True)
    show(folder, screen, over)
    return ExitCode.DONE


def _show_events(folder: RunFolder, screen: Screen, is_over: Callable[[], bool]) -> None:
    for event in follow_events(folder, is_over, time.sleep):
        screen.show_data(text=render_event(event), document=event.model_dump_json())


def _show_accesses(folder: RunFolder, screen: Screen, is_over: Callable[[], bool]) -> None:
    line = None
    for line in follow_accesses(folder, is_over, time.sleep):
        screen.show_data(text=render_access(line), document=line.model_dump_json(), as_is=True)
    if line is None:
        screen.show_progress(f"no requests in {folder.path.name}")


def _show_log(folder: RunFolder, screen: Screen, is_over: Callable[[], bool]) -> None:
    """Print the log by the byte, since progress bars are redrawn many times before a line ends."""
    if is_over() and not folder.engine_log.exists():
        raise InvalidInputError(
            f"the engine of {folder.path.name} has not logged anything",
            hint=f"slipstream logs --events {folder.path.name}",
        )
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for added in follow_file(folder.engine_log, is_over, time.sleep):
        screen.output.write(decoder.decode(added))
        screen.output.flush()
