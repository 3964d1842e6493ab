"""`slipstream doctor`: problems of this machine or of a run, with what to type next."""

import argparse
import os
import sysconfig
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.record import FILE_NAME
from slipstream.hardware import read_host, this_machine
from slipstream.measuring.machine_watch import make_watch
from slipstream.reporting.serving.doctor import render_diagnosis, render_examination
from slipstream.serving.run import find_runs_root, list_runs
from slipstream.serving.selection import choose_run
from slipstream.serving.support.advisories import list_installed, look_up
from slipstream.serving.support.checks import Site
from slipstream.serving.support.examination import diagnose_log, diagnose_run, examine

WATCH_SECONDS = 1.0

EXAMPLES = """\
# check this machine and the newest run
slipstream doctor
# why did a server fail that was started without slipstream?
slipstream doctor vllm.log
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "[RUN|LOGFILE]",
        "run or log file of vLLM to diagnose (default: check this machine and its newest run)",
        dest="subject",
    )
    add("--advisories", "look up security advisories for every installed package on osv.dev")
    add("--bundle FILE", "write a ZIP archive for a bug report, without keys, prompts or names")
    add("--dry-run", "with --bundle: print what the archive would hold, and write nothing")
    add.parser.usage = "slipstream doctor [RUN|LOGFILE] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Check this machine or diagnose a run; the exit code is 1 for a fault, known or not."""
    root = find_runs_root(os.environ)
    if options.dry_run and options.bundle is None:
        raise UsageError("--dry-run needs --bundle", hint="slipstream doctor --bundle FILE")
    if options.bundle is not None:
        return _run_bundle(options, _read_site(root, options), screen)
    if options.subject is not None:
        log = Path(options.subject)
        folder = None if log.is_file() else choose_run(root, options.subject)[0]
        diagnosis = diagnose_log(log) if folder is None else diagnose_run(folder)
        screen.show_data(text=render_diagnosis(diagnosis), document=diagnosis.to_json())
        ended = diagnosis.is_fault or diagnosis.is_unknown
        return ExitCode.EXPECTED_FAILURE if ended else ExitCode.DONE
    with screen.busy("checking this machine"):
        examination = examine(_read_site(root, options))
    screen.show_data(text=render_examination(examination), document=examination.to_json())
    return ExitCode.EXPECTED_FAILURE if examination.count("fault") else ExitCode.DONE


def _run_bundle(options: argparse.Namespace, site: Site, screen: Screen) -> ExitCode:
    """List what an archive for a bug report holds, then write it."""
    from slipstream.engines.vllm import find_versions
    from slipstream.reporting.serving.doctor import render_bundle
    from slipstream.serving.support.bundle import MOST_RUNS, make_bundle

    runs = site.runs[:MOST_RUNS]
    if options.subject is not None:
        runs = (choose_run(site.runs_root, options.subject),)
    bundle = make_bundle(site.host, examine(site), runs, find_versions(), os.environ)
    listed = bundle.list_files(None if options.dry_run else options.bundle)
    text = render_bundle(listed)
    if options.dry_run:
        text += "".join(f"\n\n== {name}\n{held}" for name, held in bundle.contents.items())
    screen.show_data(text=text, document=listed.to_json())
    if not options.dry_run:
        bundle.write(options.bundle)
        screen.show_progress(f"written: {options.bundle}; review it before you send it")
    return ExitCode.DONE


def _read_site(root: Path, options: argparse.Namespace) -> Site:
    """Look at this machine and its runs."""
    # Docker takes a second to answer, and nothing here asks about it.
    surface = replace(this_machine(os.environ, datetime.now(UTC)), run=lambda _: None)
    host, runs = read_host(surface), tuple(list_runs(root))
    watch = make_watch(host)
    before = watch.begin()
    time.sleep(WATCH_SECONDS)
    engines = [run.engine.pid for _, run in runs if run.engine is not None]
    folder, paths = Path.cwd(), sysconfig.get_paths()
    return Site(
        host=host,
        environment=os.environ,
        user=os.getuid(),
        runs=runs,
        runs_root=root,
        now=datetime.now(UTC),
        lookup=look_up(list_installed()) if options.advisories else None,
        load=watch.end(before, engines),
        trusted=(Path(paths["purelib"]), Path(paths["platlib"]), *folder.glob(FILE_NAME)),
        private=tuple(one for name in ("", "/*.key") for one in folder.glob(f"*-authority{name}")),
    )
