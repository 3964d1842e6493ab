"""`slipstream fleet far`: what the other verbs have a machine do, over SSH; not for people."""

import argparse
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode
from slipstream.fleet.far_side.table import NAMES, Here, answer
from slipstream.records import Record

MOST_BYTES = 1 << 20


def add_arguments(add: OptionAdder) -> None:
    """Add the arguments of `fleet far`; the request is on the standard input."""
    add("NAME", "kind of the request", choices=NAMES)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Carry out the request, and print what comes of it as JSON."""

    def reply(record: Record) -> None:
        # On one line: a reader may not wait for the end.
        document = record.model_dump_json()
        screen.show_data(text=document, document=document, as_is=True)

    here = Here(Path.home(), os.environ, datetime.now(UTC), reply)
    found = answer(options.name, sys.stdin.buffer.read(MOST_BYTES), here)
    if found is not None:
        reply(found)
    return ExitCode.DONE
