"""Defaults of a user's own: `[VERB] option = value` in config.toml; a flag beats it.

A value is read as if it had been typed after its flag. What no verb knows is refused, and so is a
file that others can write.
"""

import argparse
import difflib
import os
import tomllib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from slipstream.cli.arguments import Parser
from slipstream.errors import InvalidInputError, UsageError
from slipstream.user_folders import config_folder

# What is of the moment and never a habit.
NOT_CONFIGURABLE = frozenset({"help", "json", "verbose", "dry_run", "from_env"})


def find_config_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file of this user's defaults, None where no home is known."""
    if not (environment.get("XDG_CONFIG_HOME") or environment.get("HOME")):
        return None
    return config_folder(environment) / "config.toml"


def read_config(
    environment: Mapping[str, str], verbs: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Read the tables of the file by verb; without a file there are none."""
    file = find_config_file(environment)
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            if os.fstat(opened.fileno()).st_mode & 0o022:
                message = f"other users can write to {file}, and so change what your commands do"
                raise InvalidInputError(message, hint=f"chmod 600 {file}")
            tables = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as fault:
        raise InvalidInputError(f"cannot read {file}: {fault}", hint=f"edit {file}") from fault
    faults = [_name_unknown("verb", name, verbs) for name in tables if name not in verbs]
    faults += [
        f"{name} is not a table" for name in verbs if not isinstance(tables.get(name, {}), dict)
    ]
    if faults:
        message = f"{file} has unknown entries"
        raise InvalidInputError(message, details=tuple(faults), hint="slipstream --help")
    return tables


def list_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """List what can be configured, by the long name of its flag."""
    return {
        action.option_strings[-1].removeprefix("--"): action
        for action in parser._actions
        if action.option_strings and action.dest not in NOT_CONFIGURABLE
    }


def apply_defaults(
    verb: str,
    parser: argparse.ArgumentParser,
    table: Mapping[str, Any],
    without: Collection[str] = (),
) -> set[str]:
    """Put a verb's table in the place of built-in defaults, and return the names that it sets."""
    options, values, faults = list_options(parser), dict[str, Any](), list[str]()
    for name, given in table.items():
        try:
            action = options[name]
            off = parser.get_default(action.dest)
            values[action.dest] = _read_value(action, given, off)
        except KeyError:
            faults.append(_name_unknown("option", name, options))
        except (UsageError, ValueError) as fault:
            faults.append(f"{name}: {fault}")
    if faults:
        raise InvalidInputError(
            f"[{verb}] in config.toml is invalid",
            details=tuple(faults),
            hint=f"slipstream {verb} --help",
        )
    parser.set_defaults(**{name: one for name, one in values.items() if name not in without})
    for action in parser._actions:
        action.required &= action.dest in without or action.dest not in values
    return {*values}


def _read_value(action: argparse.Action, given: Any, off: Any) -> Any:
    """Read a value as if it had been typed: argparse's own types and choices check it."""
    if action.nargs == 0:
        if not isinstance(given, bool):
            raise ValueError("is a switch: true or false")
        return action.const if given else off
    words = [_write_word(one) for one in (given if isinstance(given, list) else [given])]
    if len(words) > 1 and not (isinstance(action.nargs, int) or action.nargs in ("+", "*")):
        raise ValueError("takes one value")
    probe = Parser(add_help=False)
    probe._add_action(action)
    return getattr(probe.parse_args([action.option_strings[-1], *words]), action.dest)


def _write_word(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError(f"takes a text or a number, not {type(given).__name__}")
    if str(given).startswith("-"):
        raise ValueError("a value does not begin with a dash")
    return str(given)


def _name_unknown(what: str, name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"no {what} {name}" + (f"; the nearest is {close[0]}" if close else "")
