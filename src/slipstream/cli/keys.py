"""`slipstream keys`: who may ask a server."""

import argparse
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream.cli.arguments import whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.reporting.text.keys import describe_end, render_keys
from slipstream.serving.access.keys import KeyList, find_key_file, make_key, read_keys, revoke_key

MOST_DAYS = 36_500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what `keys` takes."""
    parser.add_argument("action", choices=("new", "list", "revoke"))
    parser.add_argument("id", metavar="ID", nargs="?", help="of the key to revoke")
    parser.add_argument("--name", default="", help="of the new key's user")
    parser.add_argument("--days", type=_days, help="until the new key expires; default never")


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Make, list or revoke keys; a running server follows within a second."""
    file, now = find_key_file(os.environ), datetime.now(UTC).replace(microsecond=0)
    if (options.id is not None) != (options.action == "revoke"):
        raise UsageError("an ID goes with revoke, and only with it", hint="slipstream keys list")
    if options.action == "new":
        _make(file, options, now, screen)
    elif options.action == "list":
        listed = KeyList(file=str(file), keys=read_keys(file))
        screen.show_data(text=render_keys(listed, now), document=listed.to_json())
    else:
        key = revoke_key(file, options.id)
        screen.show_data(text=f"revoked {key.id}", document=key.to_json())
    return ExitCode.DONE


def _days(text: str) -> int:
    if (days := whole_number(text)) > MOST_DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is more than {MOST_DAYS} days")
    return days


def _make(file: Path, options: argparse.Namespace, now: datetime, screen: Screen) -> None:
    """Print the key alone on stdout, so that a script can take it."""
    expires = None if options.days is None else now + timedelta(days=options.days)
    made = make_key(file, options.name, now=now, expires=expires)
    screen.show_progress(
        f"key {made.key.id}, expires {describe_end(made.key, now)}; hash in {file}"
    )
    screen.show_progress("it is shown this once:")
    screen.show_data(text=made.secret, document=made.to_json())
