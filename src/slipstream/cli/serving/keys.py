"""`slipstream keys`: API keys, with what each may use and how much."""

import argparse
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

from slipstream.cli.options import OptionAdder, positive_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.reporting.serving.run import describe_end, render_keys
from slipstream.serving.access.keys import (
    KeyList,
    KeyTerms,
    NewKey,
    Scope,
    find_key_file,
    make_key,
    read_keys,
    revoke_key,
    rotate_key,
)

MOST_DAYS = 36_500
OVERLAP = timedelta(hours=24)
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


EXAMPLES = """\
# create a key for a user; its secret is printed once
slipstream keys new --name alice --days 90
# a key that may use chat only, with 4 concurrent requests
slipstream keys new --name bot --routes chat models --concurrent-requests 4
"""


def add_arguments(add: OptionAdder) -> None:
    add(
        "ACTION",
        "new, list, rotate or revoke",
        choices=("new", "list", "rotate", "revoke"),
        aliases={"create": "new", "add": "new", "ls": "list", "delete": "revoke", "rm": "revoke"},
    )
    add("[ID]", "id of the key to rotate or revoke")
    add("--name NAME", "name of the new key's user, shown in logs")
    add("--days DAYS", "days until the new key expires (default: it does not)", _days)
    add(
        "--overlap TIME",
        "how long the old secret of a rotated key stays valid, such as 30m, 24h or 7d "
        "(default 24h)",
        _span,
    )
    _add_terms(add)
    add.parser.usage = "slipstream keys ACTION [ID] [options]"


def _add_terms(add: OptionAdder) -> None:
    add = add.group("limits of a new key", "A limit that is not set here comes from gate.toml.")
    add(
        "--routes ROUTE ...",
        f"routes that the key allows: {', '.join(get_args(Scope))} (default: all but metrics)",
        choices=get_args(Scope),
    )
    add("--models NAME ...", "served model names that the key allows (default: all)")
    add("--concurrent-requests N", "concurrent requests (default 64)")
    add("--requests-per-minute N", "requests per minute (default: no limit)")
    add("--tokens-per-minute N", "tokens of prompts and answers per minute (default: no limit)")
    add("--max-tokens N", "maximum tokens per answer (default: no limit)")
    add(
        "--weight W",
        "share of the batch relative to other keys when the server is full (default 1)",
        positive_number,
    )
    add(
        "--priority P",
        "priority in the engine, lower numbers first; needs `serve ... -- "
        "--scheduling-policy priority` (default 0)",
        int,
    )
    add(
        "--drafts",
        "use drafts for its requests (default on)",
        choices=("on", "off"),
    )
    add(
        "--learning",
        "allow its text to be kept for training, where the server learns (default on)",
        choices=("on", "off"),
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Create, list, rotate or revoke keys; a running server follows within a second."""
    file, now = find_key_file(os.environ), datetime.now(UTC).replace(microsecond=0)
    _require_fitting(options)
    if options.action == "new":
        expires = None if options.days is None else now + timedelta(days=options.days)
        terms = KeyTerms(**{name: getattr(options, name) for name in KeyTerms.model_fields})
        is_first = not file.exists()
        new_key = make_key(file, options.name or "", now=now, expires=expires, terms=terms)
        _show_secret(new_key, file, now, screen)
        if is_first:
            screen.show_progress("running servers require a key from now on, as new ones do")
    elif options.action == "rotate":
        overlap = OVERLAP if options.overlap is None else options.overlap
        new_key = rotate_key(file, options.id, now=now, overlap=overlap)
        screen.show_progress(f"the old secret stays valid until {now + overlap:%Y-%m-%d %H:%M} UTC")
        _show_secret(new_key, file, now, screen)
    elif options.action == "list":
        listed = KeyList(file=str(file), keys=read_keys(file))
        screen.show_data(text=render_keys(listed, now), document=listed.to_json())
    else:
        key = revoke_key(file, options.id)
        screen.show_data(text=f"revoked {key.id}", document=key.to_json())
    return ExitCode.DONE


def _require_fitting(options: argparse.Namespace) -> None:
    """Raise if an option does not go with the action."""
    if (options.id is not None) != (options.action in ("rotate", "revoke")):
        raise UsageError(
            "`keys rotate` and `keys revoke` need an ID, and only they take one",
            hint="slipstream keys list",
        )
    new = ("name", "days", *KeyTerms.model_fields)
    given = [name for name in new if getattr(options, name) is not None]
    if given and options.action != "new":
        flag = "--" + given[0].replace("_", "-")
        raise UsageError(f"{flag} is for `keys new`", hint="slipstream keys new --help")
    if options.overlap is not None and options.action != "rotate":
        raise UsageError(
            "--overlap is for `keys rotate`", hint="slipstream keys rotate ID --overlap 24h"
        )


def _days(text: str) -> int:
    if (days := whole_number(text)) > MOST_DAYS:
        raise argparse.ArgumentTypeError(f"'{text}' is more than {MOST_DAYS} days")
    return days


def _span(text: str) -> timedelta:
    if not (found := re.fullmatch(r"(\d{1,5})([mhd])", text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a time such as 30m, 24h or 7d")
    return int(found[1]) * _UNITS[found[2]]


def _show_secret(new_key: NewKey, file: Path, now: datetime, screen: Screen) -> None:
    """Print the secret alone on stdout, so that a script can read it."""
    screen.show_progress(
        f"key {new_key.key.id}, expires {describe_end(new_key.key, now)}; hash in {file}"
    )
    screen.show_progress("the key is shown only once:")
    screen.show_data(text=new_key.secret, document=new_key.to_json(), as_is=True)
