"""What each known version of vLLM has: arguments, parsers, classes; the installed one decides.

The tables beside this file are of the first version, and `vllm_changes.json` has what later ones
changed. `scripts/engine` makes all of them from vLLM itself.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from slipstream.units import version_tuple

VERSIONS = ("0.32.0", "0.33.0")
# What our extras install, and what a plan is for where no vLLM is.
VERSION = VERSIONS[0]
Table = Literal["arguments", "targets", "tool parsers", "reasoning parsers", "multimodal"]


def find_known(version: str) -> str:
    """Return the known version whose rules hold: of the same minor one, or the nearest."""
    minor = version_tuple(version)[:2]
    below = [one for one in VERSIONS if version_tuple(one)[:2] <= minor]
    return below[-1] if below else VERSIONS[0]


def is_since(version: str, first: str) -> bool:
    """Return whether a version is of this minor version or a later one."""
    return version_tuple(version)[:2] >= version_tuple(first)[:2]


@cache
def read_arguments(version: str | None = None) -> dict[str, dict[str, Any]]:
    """Return the row of every argument under its first name; without a version, of any."""
    rows: dict[str, dict[str, Any]] = read_table("arguments", version)
    return rows


@cache
def read_auxiliary_targets(version: str | None = None) -> frozenset[str]:
    """Return the target classes that hand out hidden states."""
    return frozenset(read_table("targets", version))


@cache
def read_multimodal(version: str) -> frozenset[str]:
    """Return vLLM's classes that take media."""
    return frozenset(read_table("multimodal", version))


def read_table(table: Table, version: str | None) -> dict[str, Any]:
    """Return the rows of a version's table by name; what only some have counts for any."""
    rows = _name_rows(_read_first(table))
    changes = _load("vllm_changes.json")
    for later in VERSIONS[1:]:
        if version is not None and version_tuple(later) > version_tuple(version):
            break
        change = changes[later][table]
        new = _name_rows(change["rows"])
        if version is None:
            new = {name: _unite(rows.get(name), row) for name, row in new.items()}
        else:
            rows = {name: row for name, row in rows.items() if name not in change["gone"]}
        rows |= new
    return rows


def _read_first(table: str) -> list[Any]:
    if table == "arguments":
        return list(_load("vllm_arguments.json")["arguments"])
    if table == "targets":
        return list(_load("auxiliary_targets.json")["architectures"])
    return list(_load("vllm_parsers.json")[table.removesuffix(" parsers")])


def _name_rows(rows: list[Any]) -> dict[str, Any]:
    return {
        row if isinstance(row, str) else row["flags"][0] if "flags" in row else row["name"]: row
        for row in rows
    }


def _unite(before: Any, after: Any) -> Any:
    """Return a row that takes what either version takes."""
    if not isinstance(before, dict):
        return after
    lists = {
        key: list(dict.fromkeys((*before[key], *after.get(key, ()))))
        for key in ("choices", "keys")
        if key in before
    }
    return after | lists


@cache
def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(
        files("slipstream.engines").joinpath(name).read_text(encoding="utf-8")
    )
    return loaded
