"""`slipstream stop`: end a run and wait until none of its processes is left."""

import argparse
import os
import time

from slipstream.cli.options import OptionAdder, add_run
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.reporting.serving.run import render_event
from slipstream.serving.run import Event, find_runs_root
from slipstream.serving.run_status import read_status
from slipstream.serving.selection import choose_running
from slipstream.serving.service.detaching import stop_run
from slipstream.serving.supervision.engine_session import ProcessTools

EXAMPLES = """\
# let open requests finish, then stop the only live run
slipstream stop
# stop one run immediately
slipstream stop Qwen3-8B --now
"""


def add_arguments(add: OptionAdder) -> None:
    add_run(add, default="the only live run")
    add("--now", "end open requests instead of waiting for them")
    add.parser.usage = "slipstream stop [RUN] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Stop a run and print its events until it has ended."""

    def on_event(event: Event) -> None:
        screen.show_progress(render_event(event))

    folder, _ = choose_running(find_runs_root(os.environ), options.run)
    with screen.busy(f"stopping {folder.path.name}"):
        stop_run(folder, immediately=options.now, on_event=on_event, tools=ProcessTools())
    status = read_status(folder, folder.read(), time.monotonic())
    text = f"{status.id} has ended: {status.state}"
    screen.show_data(text=text, document=status.to_json())
    return ExitCode.DONE
