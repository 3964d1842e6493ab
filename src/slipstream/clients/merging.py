"""Entries set in the text of a configuration file, with everything else left unchanged.

TOML and YAML are changed by the line, so comments and order stay. The result is parsed: if it is
anything but what was there with our entries in it, the file is left alone.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from pydantic import JsonValue

from slipstream.clients.client import ConfigFile


class MergeError(ValueError):
    """The text cannot take our entries without loss; the message says why."""


def merge(text: str, wanted: ConfigFile) -> tuple[str, tuple[str, ...]]:
    """Return the text with the entries in it, and the paths of the keys that this changes."""
    parse, write = _FORMS[wanted.form]
    before = _parse(parse, text) if text.strip() else None
    if wanted.list_key is not None:
        return _merge_into_list(text, before, wanted)
    if not isinstance(before, dict | None):
        raise MergeError("it is no object with keys")
    after = _combine(before or {}, wanted.entries)
    changed = tuple(_find_changes(before or {}, wanted.entries))
    if not changed:
        return text, ()
    written = write(text, before or {}, wanted.entries)
    if _parse(parse, written) != after:
        raise MergeError("it is written in a way that cannot be changed line by line")
    return written, changed


def _parse(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, yaml.YAMLError, RecursionError) as fault:
        raise MergeError(f"it cannot be read: {' '.join(str(fault).split())}") from fault


def _combine(old: Mapping[str, Any], new: Mapping[str, JsonValue]) -> dict[str, Any]:
    """Merge objects key by key; a value that is no object replaces the old one."""
    merged = dict(old)
    for key, value in new.items():
        held = merged.get(key)
        if isinstance(held, dict) and isinstance(value, dict):
            merged[key] = _combine(held, value)
        else:
            merged[key] = value
    return merged


def _find_changes(old: Any, new: Mapping[str, JsonValue], path: str = "") -> list[str]:
    changed: list[str] = []
    for key, value in new.items():
        held = old.get(key) if isinstance(old, dict) else None
        if isinstance(value, dict) and value:
            changed += _find_changes(held, value, f"{path}{key}.")
        elif held != value:
            changed.append(f"{path}{key}")
    return changed


def _write_json(text: str, old: Mapping[str, Any], new: Mapping[str, JsonValue]) -> str:
    indent = re.search(r"^([ \t]+)\S", text, re.MULTILINE)
    depth = indent[1] if indent else "  "
    return json.dumps(_combine(old, new), indent=depth, ensure_ascii=False) + "\n"


def _write_toml(text: str, _: Mapping[str, Any], new: Mapping[str, JsonValue]) -> str:
    """Set keys in the lines before the first table, and in the tables by their header."""
    lines = text.splitlines()
    plain = {key: value for key, value in new.items() if not isinstance(value, dict)}
    lines = _set_lines(lines, 0, plain, " = ")
    for header, table in _list_tables(new):
        start = next((at for at, line in enumerate(lines) if line.strip() == header), None)
        if start is None:
            lines += [*([""] if lines else []), header]
            start = len(lines) - 1
        lines = _set_lines(lines, start + 1, table, " = ")
    return "\n".join(lines) + "\n"


def _list_tables(new: Mapping[str, Any], path: str = "") -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    for key, value in new.items():
        if isinstance(value, dict):
            inner = {name: one for name, one in value.items() if not isinstance(one, dict)}
            found += [(f"[{path}{key}]", inner)] if inner else []
            found += _list_tables(value, f"{path}{key}.")
    return found


def _write_yaml(text: str, _: Mapping[str, Any], new: Mapping[str, JsonValue]) -> str:
    return "\n".join(_set_lines(text.splitlines(), 0, new, ": ")) + "\n"


def _set_lines(
    lines: list[str], start: int, entries: Mapping[str, JsonValue], equals: str
) -> list[str]:
    """Set scalars from a line on, up to the next table; new ones come after the last there."""
    lines, end = list(lines), len(lines)
    for at in range(start, len(lines)):
        if lines[at].lstrip().startswith("["):
            end = at
            break
    for key, value in entries.items():
        line = f"{key}{equals}{json.dumps(value, ensure_ascii=False)}"
        spelt = re.compile(rf"{re.escape(key)}\s*{equals.strip()}")
        held = next((at for at in range(start, end) if spelt.match(lines[at])), None)
        if held is not None:
            comment = re.search(r"\s+#[^\"']*$", lines[held])
            lines[held] = line + (comment[0] if comment else "")
            continue
        last = max((at for at in range(start, end) if lines[at].strip()), default=start - 1)
        lines.insert(last + 1, line)
        end += 1
    return lines


def _merge_into_list(text: str, before: Any, wanted: ConfigFile) -> tuple[str, tuple[str, ...]]:
    """Replace the entry of the same key's value in a YAML list, or append it."""
    key, entry = wanted.list_key, dict(wanted.entries)
    assert key is not None
    if not isinstance(before, list | None):
        raise MergeError("it is no list of entries")
    held = [one for one in before or () if isinstance(one, dict) and one.get(key) == entry[key]]
    if held == [entry]:
        return text, ()
    others = [one for one in before or () if one not in held]
    pieces = re.split(r"^(?=- )", text, flags=re.MULTILINE)
    kept = [piece for piece in pieces if not _is_entry(piece, key, entry[key])]
    lines = [f"  {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in entry.items()]
    written = "".join(kept).rstrip("\n")
    written += ("\n" if written else "") + "\n".join(["- " + lines[0][2:], *lines[1:]]) + "\n"
    if _parse(yaml.safe_load, written) != [*others, entry]:
        raise MergeError("it is written in a way that cannot be changed line by line")
    return written, (f"{key} {entry[key]}",)


def _is_entry(piece: str, key: str, value: JsonValue) -> bool:
    if not piece.startswith("- "):
        return False
    read = _parse(yaml.safe_load, piece)
    return isinstance(read, list) and any(
        isinstance(one, dict) and one.get(key) == value for one in read
    )


_FORMS: dict[str, tuple[Callable[[str], Any], Callable[..., str]]] = {
    "json": (json.loads, _write_json),
    "toml": (tomllib.loads, _write_toml),
    "yaml": (yaml.safe_load, _write_yaml),
}
