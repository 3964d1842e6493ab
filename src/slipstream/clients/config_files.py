"""A client's configuration file: our entries in it, everything else unchanged, a backup beside it.

TOML and YAML are changed by the line, so comments and order stay. The result is parsed: if it is
anything but what was there with our entries in it, the file is left alone.
"""

import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import JsonValue

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.records import Record

BACKUP_SUFFIX = ".before-slipstream"
MOST_BYTES = 1 << 20

Form = Literal["json", "toml", "yaml"]
Entries = Mapping[str, JsonValue]


class ConfigFile(Record):
    """A configuration file of a client, and the entries to add to it.

    `list_key` is for a list of entries: the one that has this key's value is replaced. `text` has
    the entries in a file of their own.
    """

    path: Path
    form: Form
    entries: dict[str, JsonValue]
    list_key: str | None
    text: str


class Written(Record):
    """A changed file: its new keys and the backup; no keys if nothing had to change."""

    path: str
    changed: tuple[str, ...]
    backup: str | None


class MergeError(ValueError):
    """The text cannot take our entries without loss; the message says why."""


def make_file(
    path: Path, form: Form, entries: dict[str, Any], list_key: str | None = None
) -> ConfigFile:
    file = ConfigFile(path=path, form=form, entries=entries, list_key=list_key, text="")
    return file.model_copy(update={"text": merge("", file)[0]})


def plan_change(wanted: ConfigFile) -> tuple[str | None, str, tuple[str, ...]]:
    """Return a file's text, None without a file, the text that it is to have, and what changes."""
    path = wanted.path
    try:
        _require_plain(path)
        content = path.read_bytes() if path.exists() else None
        if content is not None and len(content) > MOST_BYTES:
            raise ValueError(f"it has {len(content):,} bytes, and the limit is {MOST_BYTES:,}")
        text = None if content is None else content.decode()
        return text, *merge(text or "", wanted)
    except (OSError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(
            f"{path} is left as it is: {why}",
            hint=f"ls -ld {path}; fix it, or add manually what `connect` prints",
        ) from fault


def write_change(wanted: ConfigFile) -> Written:
    """Write the entries into the file, with a backup of the old one beside it."""
    path = wanted.path
    before, after, changed = plan_change(wanted)
    if not changed:
        return Written(path=str(path), changed=(), backup=None)
    backup = path.with_name(path.name + BACKUP_SUFFIX)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        mode = 0o600 if before is None else stat.S_IMODE(path.stat().st_mode)
        if before is not None:
            _require_plain(backup)
            write_atomically(backup, before.encode(), mode=mode)
        write_atomically(path, after.encode(), mode=mode)
    except (OSError, ValueError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(
            f"cannot write {path}: {why}", hint=f"ls -ld {path.parent} {path}*"
        ) from fault
    return Written(path=str(path), changed=changed, backup=None if before is None else str(backup))


def _require_plain(path: Path) -> None:
    """Raise unless nothing or a regular file of this user is there; links are not followed."""
    with suppress(FileNotFoundError):
        status = path.lstat()
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise ValueError(f"{path} is not a regular file of this user; links are not followed")


def merge(text: str, wanted: ConfigFile) -> tuple[str, tuple[str, ...]]:
    """Return the text with the entries in it, and the paths of the keys that this changes."""
    parse, write = _FORMS[wanted.form]
    before = _parse(parse, text) if text.strip() else None
    after: Any
    if wanted.list_key is not None:
        written, after, changed = _merge_into_list(text, before, wanted.list_key, wanted.entries)
    elif not isinstance(before, dict | None):
        raise MergeError("it is not an object with keys")
    else:
        after, changed = _combine(before or {}, wanted.entries)
        written = "\n".join([*write(text, after, wanted.entries), ""]) if changed else text
    if changed and _parse(parse, written) != after:
        raise MergeError("it is written in a way that cannot be changed line by line")
    return written, tuple(changed)


def _parse(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as fault:
        raise MergeError(f"it cannot be read: {' '.join(str(fault).split())}") from fault


def _combine(old: Mapping[str, Any], new: Entries) -> tuple[dict[str, Any], list[str]]:
    """Merge objects key by key, and list the paths that change; what is no object is replaced."""
    merged, changed = dict(old), list[str]()
    for key, value in new.items():
        held = merged.get(key)
        if isinstance(value, dict) and (value or isinstance(held, dict)):
            merged[key], inner = _combine(held if isinstance(held, dict) else {}, value)
            changed += [f"{key}.{path}" for path in inner]
        elif key not in merged or held != value:
            merged[key] = value
            changed.append(key)
    return merged, changed


def _write_json(text: str, after: Mapping[str, Any], _: Entries) -> list[str]:
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    return [json.dumps(after, indent=indent[1] if indent else "  ", ensure_ascii=False)]


def _set_tables(lines: list[str], table: Entries, path: str = "") -> list[str]:
    """Set the values of a TOML table below its header, and then those of the tables in it."""
    values = {key: value for key, value in table.items() if not isinstance(value, dict)}
    header, start = f"[{path}]", 0
    if path and values:
        lines = lines if header in lines else [*lines, *([""] if lines else []), header]
        start = lines.index(header) + 1
    lines = _set_lines(lines, start, values, " = ")
    for key, value in table.items():
        if isinstance(value, dict):
            lines = _set_tables(lines, value, f"{path}.{key}" if path else key)
    return lines


def _set_lines(lines: list[str], start: int, entries: Entries, equals: str) -> list[str]:
    """Set values from a line on, up to the next table; new ones come after the last there."""
    tables = (at for at in range(start, len(lines)) if lines[at].lstrip().startswith("["))
    end = next(tables, len(lines))
    part = lines[start:end]
    for key, value in entries.items():
        line = f"{key}{equals}{json.dumps(value, ensure_ascii=False)}"
        spelt = re.compile(rf"{re.escape(key)}\s*{equals.strip()}")
        held = next((at for at, old in enumerate(part) if spelt.match(old)), None)
        if held is None:
            last = max((at for at, old in enumerate(part) if old.strip()), default=-1)
            part.insert(last + 1, line)
        else:
            comment = re.search(r"\s+#[^\"']*$", part[held])
            part[held] = line + (comment[0] if comment else "")
    return [*lines[:start], *part, *lines[end:]]


def _merge_into_list(
    text: str, before: Any, key: str, entry: dict[str, JsonValue]
) -> tuple[str, list[Any], list[str]]:
    """Replace the entry of the same key's value in a YAML list, or append it."""
    if not isinstance(before, list | None):
        raise MergeError("it is not a list of entries")

    def is_ours(one: Any) -> bool:
        return isinstance(one, dict) and one.get(key) == entry[key]

    others = [one for one in before or () if not is_ours(one)]
    if before and [one for one in before if is_ours(one)] == [entry]:
        return text, before, []
    kept = [
        piece
        for piece in re.split(r"^(?=- )", text, flags=re.MULTILINE)
        if not piece.startswith("- ") or not any(map(is_ours, _parse(yaml.safe_load, piece)))
    ]
    written = "".join(kept).rstrip("\n")
    added = yaml.safe_dump([entry], sort_keys=False, allow_unicode=True)
    written = f"{written}\n{added}" if written else added
    return written, [*others, entry], [f"{key} {entry[key]}"]


# How each is parsed, and its lines with the entries in it.
_Write = Callable[[str, Mapping[str, Any], Entries], list[str]]
_FORMS: dict[str, tuple[Callable[[str], Any], _Write]] = {
    "json": (json.loads, _write_json),
    "toml": (tomllib.loads, lambda text, _, new: _set_tables(text.splitlines(), new)),
    "yaml": (yaml.safe_load, lambda text, _, new: _set_lines(text.splitlines(), 0, new, ": ")),
}
