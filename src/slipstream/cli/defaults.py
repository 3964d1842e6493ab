"""Defaults of a user's own: `[VERB] option = value` in config.toml, or SLIPSTREAM_VERB_OPTION.

A flag beats a variable, a variable beats the file, the file beats the built-in default. A value is
read as if it had been typed after its flag. What no verb knows is refused, and so is a file that
others can write.
"""

import argparse
import shlex
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slipstream.errors import InvalidInputError, UsageError
from slipstream.user_folders import config_folder

CONFIG_HINT = "slipstream config VERB"
MOST_BYTES = 1 << 16
# What is of the moment and never a habit.
NOT_CONFIGURABLE = frozenset({"help", "json", "verbose", "dry_run", "from_env"})
_YES, _NO = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Configured:
    """A value in place of a built-in default, and where it was set."""

    value: Any
    source: Literal["variable", "file"]
    place: str


def find_config_file(environment: Mapping[str, str]) -> Path | None:
    """Return the file of this user's defaults, None where no home is known."""
    if not (environment.get("XDG_CONFIG_HOME") or environment.get("HOME")):
        return None
    return config_folder(environment) / "config.toml"


def read_config(environment: Mapping[str, str], verbs: Mapping[str, str]) -> dict[str, Any]:
    """Read the tables of the file by verb; without a file there are none."""
    file = find_config_file(environment)
    if file is None:
        return {}
    try:
        with file.open("rb") as opened:
            mode = stat.S_IMODE(file.stat().st_mode)
            if mode & 0o022:
                message = f"others can write to {file}, and change what your commands do"
                raise InvalidInputError(message, hint=f"chmod 600 {file}")
            content = opened.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ValueError(f"it is longer than {MOST_BYTES} bytes")
        tables = tomllib.loads(content.decode())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as fault:
        raise InvalidInputError(f"cannot read {file}: {fault}", hint=f"edit {file}") from fault
    faults = [
        f"{name}: {'not a table' if name in verbs else 'no such verb'}"
        for name, table in tables.items()
        if name not in verbs or not isinstance(table, dict)
    ]
    if faults:
        message = f"{file} has what no verb reads"
        raise InvalidInputError(message, details=tuple(faults), hint="slipstream --help")
    return tables


def find_configured(
    verb: str,
    parser: argparse.ArgumentParser,
    tables: Mapping[str, Any],
    environment: Mapping[str, str],
) -> dict[str, Configured]:
    """Return what the file and the variables set for a verb, by the name of the parsed value."""
    file, table = find_config_file(environment), dict(tables.get(verb, {}))
    found, faults = dict[str, Configured](), list[str]()
    for name, action in list_options(parser).items():
        variable = f"SLIPSTREAM_{verb}_{name}".upper().replace("-", "_")
        given: Any = table.pop(name, None)
        source: Literal["variable", "file"] = "file"
        place = f"{file}: [{verb}] {name}"
        if variable in environment:
            given, source, place = environment[variable], "variable", variable
        if given is None:
            continue
        try:
            value = _read_value(action, given, is_text=source == "variable")
        except (UsageError, ValueError) as fault:
            faults.append(f"{place}: {fault}")
        else:
            found[action.dest] = Configured(value, source, place)
    faults += [f"{file}: [{verb}] has no option {name}" for name in table]
    if faults:
        raise InvalidInputError(
            f"the configured defaults of {verb} cannot be used",
            details=tuple(faults),
            hint=f"slipstream {verb} --help",
        )
    return found


def list_options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    """List what can be configured, by the long name of its flag."""
    return {
        action.option_strings[-1].removeprefix("--"): action
        for action in parser._actions
        if action.option_strings and action.dest not in NOT_CONFIGURABLE
    }


def apply(parser: argparse.ArgumentParser, configured: Mapping[str, Configured]) -> None:
    """Put configured values in the place of built-in defaults."""
    parser.set_defaults(**{dest: one.value for dest, one in configured.items()})
    for action in parser._actions:
        if action.dest in configured:
            action.required = False


def _read_value(action: argparse.Action, given: Any, *, is_text: bool) -> Any:
    """Read a value as if it had been typed."""
    if action.nargs == 0:
        return _read_switch(given, is_text=is_text)
    many = isinstance(action.nargs, int) or action.nargs in ("+", "*")
    if is_text:
        words = shlex.split(given) if many else [given]
    else:
        words = [_write_word(one) for one in (given if isinstance(given, list) else [given])]
    if len(words) > 1 and not many:
        raise ValueError("takes one value")
    if any(word.startswith("-") for word in words):
        raise ValueError("a value does not begin with a dash")
    # A parser of nothing but this option: its type and choices speak as they do to a flag.
    probe = _Probe(add_help=False)
    probe._add_action(action)
    return getattr(probe.parse_args([action.option_strings[-1], *words]), action.dest)


def _read_switch(given: Any, *, is_text: bool) -> bool:
    if is_text and given.lower() in _YES + _NO:
        return given.lower() in _YES
    if isinstance(given, bool):
        return given
    raise ValueError("is a switch: true or false")


def _write_word(given: Any) -> str:
    if isinstance(given, bool) or not isinstance(given, int | float | str):
        raise ValueError(f"takes a text or a number, not {type(given).__name__}")
    return str(given)


class _Probe(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message, hint=CONFIG_HINT)
