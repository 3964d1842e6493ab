"""`slipstream doctor`: problems of this machine or of a run, with what to type next."""

import argparse
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.hardware import read_host, this_machine
from slipstream.reporting.text.doctor import render_diagnosis, render_examination
from slipstream.serving.advisories import Lookup
from slipstream.serving.examination import diagnose_log, diagnose_run, examine
from slipstream.serving.run import find_runs_root, list_runs
from slipstream.serving.selection import choose_run
from slipstream.serving.site import Site

EXAMPLES = """\
# check this machine and the newest run
slipstream doctor
# why did a server fail that was started without slipstream?
slipstream doctor vllm.log
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `doctor`."""
    parser.add_argument(
        "subject",
        metavar="RUN|LOGFILE",
        nargs="?",
        help="run or log file of vLLM to diagnose (default: check this machine and its newest run)",
    )
    parser.add_argument(
        "--advisories",
        action="store_true",
        help="look up security advisories for every installed package on osv.dev",
    )
    parser.usage = "slipstream doctor [RUN|LOGFILE] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Check this machine or diagnose a run; the exit code is 1 if there is a fault."""
    root = find_runs_root(os.environ)
    if options.subject is not None:
        log = Path(options.subject)
        folder = None if log.is_file() else choose_run(root, options.subject)[0]
        diagnosis = diagnose_log(log) if folder is None else diagnose_run(folder)
        screen.show_data(text=render_diagnosis(diagnosis), document=diagnosis.to_json())
        return ExitCode.EXPECTED_FAILURE if diagnosis.is_fault else ExitCode.DONE
    # Docker takes a second to answer, and nothing here asks about it.
    surface = replace(this_machine(os.environ, datetime.now(UTC)), run=lambda _: None)
    examination = examine(
        Site(
            host=read_host(surface),
            environment=os.environ,
            user=os.getuid(),
            runs=tuple(list_runs(root)),
            runs_root=root,
            now=datetime.now(UTC),
            lookup=_look_up() if options.advisories else None,
        )
    )
    screen.show_data(text=render_examination(examination), document=examination.to_json())
    return ExitCode.EXPECTED_FAILURE if examination.count("fault") else ExitCode.DONE


def _look_up() -> Lookup:
    """Look up advisories; the HTTP client is imported only here."""
    from slipstream.serving.advisories_online import list_installed, look_up

    return look_up(list_installed())
