"""Machines by name, so that a plan can be made for one from anywhere.

A name may say how many: `h100x8` is one machine with eight accelerators, `2x-gb10` two linked
machines, `2x-h100x8` two linked machines with eight each.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from slipstream.errors import InvalidInputError
from slipstream.hardware.host import Accelerator, Docker, Host, Memory, Processor, Software
from slipstream.records import Record, read_record
from slipstream.user_folders import find_local

TABLE = Path(__file__).parent / "machines.toml"
GRAMMAR = "NAME, NAMExN for N accelerators, Nx-NAME for N linked machines"
_OTHER_NAMES = {"spark": "gb10", "dgxspark": "gb10"}
_SIGNS = re.compile("[ _-]+")
_ADDRESS = re.compile(r"localhost|\d+(?:\.\d+){3}|[\da-f]*:[\da-f:]*")
_COUNTED = re.compile(r"(?:(?P<machines>[1-9]\d?)x-)?(?P<name>.+?)(?:x(?P<accelerators>[1-9]\d?))?")
_TAKEN_AT = "2026-11-15T00:00:00Z"
_NVIDIA_SOFTWARE = {
    "python": "3.12.3",
    "torch": "2.13.0+cu130",
    "engine": {"distribution": "vllm", "version": "0.32.0"},
    "docker": {"client_version": "28.3.3", "server_version": "28.3.3", "nvidia_runtime": True},
}
_LINKED_PORT = {"device": "unknown", "port": 1, "active": True, "rate_gbit_per_s": None}


def list_machines() -> tuple[str, ...]:
    return tuple(sorted(_read_table()["machines"]))


def load_host(name_or_file: str) -> Host:
    """Return a machine by its name, or from a file that `slipstream probe --json` wrote."""
    if (known := _find_machine(name_or_file)) is not None:
        return known
    if _ADDRESS.fullmatch(name_or_file):
        raise InvalidInputError(
            f"--host names a machine to plan for, but {name_or_file} is an address to listen on",
            hint=f"slipstream serve TARGET --bind {name_or_file}",
        )
    path = find_local(name_or_file)
    if not path.exists():
        if (meant := _find_nearest(name_or_file)) is not None:
            raise InvalidInputError(
                f"no known machine is called {name_or_file}; did you mean {meant}?",
                hint=f"slipstream plan TARGET --host {meant}",
            )
        raise InvalidInputError(
            f"there is no file {name_or_file}, and no known machine of that name",
            details=(f"known: {', '.join(list_machines())}", f"as {GRAMMAR}"),
            hint="slipstream probe --json > FILE, on that machine",
        )
    return read_record(path, Host, hint="slipstream probe --json > FILE")


def _find_nearest(text: str) -> str | None:
    """Return the machine whose name differs in signs and case, or is another name of it."""
    plain = _SIGNS.sub("", text.lower())
    names = {_SIGNS.sub("", name): name for name in list_machines()} | _OTHER_NAMES
    ends = (name for short, name in names.items() if len(plain) > 3 and short.endswith(plain))
    return names.get(plain) or next(ends, None)


def _find_machine(text: str) -> Host | None:
    """Return the machine of a name with its counts, None if there is none of that name."""
    if text in list_machines():
        return _build_host(text, 1, 1)
    counted = _COUNTED.fullmatch(text)
    if counted is None or counted["name"] not in list_machines():
        return None
    machines, accelerators = counted["machines"] or 1, counted["accelerators"] or 1
    return _build_host(counted["name"], int(machines), int(accelerators))


@cache
def _read_table() -> dict[str, Any]:
    return tomllib.loads(TABLE.read_text())


def _build_host(name: str, machines: int, accelerators: int) -> Host:
    entry = _read_table()["machines"][name]
    node = _read_node(entry.get("linked_node", entry["node"]) if machines > 1 else entry["node"])
    fabric = node.pop("fabric", [_LINKED_PORT] if machines > 1 else [])
    memory = _complete(node.pop("memory"), Memory)
    one = _read_accelerator(name, memory)
    _require_count(name, one, accelerators)
    link = one.get("link") if one and accelerators > 1 else None
    every = [one | {"index": index, "link": link} for index in range(accelerators)] if one else []
    return Host.model_validate(
        {
            "origin": entry["origin"],
            "taken_at": _TAKEN_AT,
            "platform": "linux",
            "product": None,
            "container": None,
            "accelerators": every,
            "processor": _complete(node.pop("processor"), Processor),
            "memory": memory,
            "fabric": fabric,
            "software": _read_software(node.pop("software")),
            "remarks": (),
            "machines": machines,
        }
        | node
    )


def _read_node(name: str) -> dict[str, Any]:
    """Return a copy of a node's fields, with those of the one that it is like."""
    node = dict(_read_table()["nodes"][name])
    like = node.pop("like", None)
    return node if like is None else _read_node(like) | node


def _read_software(listed: dict[str, Any]) -> dict[str, Any]:
    software = _complete(listed if "python" in listed else _NVIDIA_SOFTWARE | listed, Software)
    docker = software["docker"]
    return software | {"docker": docker and _complete(docker, Docker)}


def _read_accelerator(name: str, memory: dict[str, Any]) -> dict[str, Any] | None:
    entry = _read_table()["machines"][name]
    listed = _read_table()["machines"][entry.get("accelerator_of", name)].get("accelerator")
    if listed is None:
        return None
    shared = {
        "memory_kind": "unified",
        "memory_total_bytes": memory["total_bytes"],
        "memory_available_bytes": memory["available_bytes"],
    }
    unified = listed.get("memory_kind") == "unified"
    return _complete((shared if unified else {"memory_kind": "discrete"}) | listed, Accelerator)


def _complete(listed: dict[str, Any], kind: type[Record]) -> dict[str, Any]:
    """Add the fields that a record needs and the table leaves out as unknown."""
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    return dict.fromkeys(needed) | listed


def _require_count(name: str, accelerator: dict[str, Any] | None, count: int) -> None:
    """Refuse several accelerators where there is none, or where they would share one memory."""
    if count == 1 or (accelerator and accelerator["memory_kind"] != "unified"):
        return
    has = "one, which uses the system's memory" if accelerator else "none"
    raise InvalidInputError(
        f"{name}x{count} names {count} accelerators, and {name} has {has}",
        hint=f"--host {name}, or --host {count}x-{name} for {count} linked machines",
    )
