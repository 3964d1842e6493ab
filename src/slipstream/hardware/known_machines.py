"""Machines by name, so that a plan can be made for one from anywhere.

A name may say how many: `h100x8` is one machine with eight accelerators, `2x-gb10` two linked
machines, `2x-h100x8` two linked machines with eight each.
"""

import re
from pathlib import Path

from slipstream.errors import InvalidInputError
from slipstream.hardware.host import Accelerator, FabricPort, Host
from slipstream.records import read_record

MACHINES = Path(__file__).parent / "machines"
GRAMMAR = "NAME, NAMExN for N accelerators, Nx-NAME for N linked machines"
_COUNTED = re.compile(r"(?:(?P<machines>[1-9]\d?)x-)?(?P<name>.+?)(?:x(?P<accelerators>[1-9]\d?))?")
# Linked by SXM boards or NVLink-C2C modules; the others by PCIe.
_NVLINK = re.compile(r"H100 80GB HBM3|B200|B300")
_LINKED_ALIKE = "gb10-linked-1"


def list_machines() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in MACHINES.glob("*.json")))


def load_host(name_or_file: str) -> Host:
    """Return a machine by its name, or from a file that `slipstream probe --json` wrote."""
    if (known := _find_machine(name_or_file)) is not None:
        return known
    path = Path(name_or_file).expanduser()
    if not path.exists():
        raise InvalidInputError(
            f"there is no file {name_or_file}, and no known machine of that name",
            details=(f"known: {', '.join(list_machines())}", f"as {GRAMMAR}"),
            hint="slipstream probe --json > FILE, on that machine",
        )
    return read_record(path, Host, hint="slipstream probe --json > FILE")


def _find_machine(text: str) -> Host | None:
    """Return the machine of a name with its counts, None if there is none of that name."""
    if text in list_machines():
        return _read_machine(text)
    counted = _COUNTED.fullmatch(text)
    if counted is None or counted["name"] not in list_machines():
        return None
    host = _read_machine(counted["name"])
    if counted["accelerators"]:
        host = _multiply_accelerators(host, counted["name"], int(counted["accelerators"]))
    return _link_machines(host, int(counted["machines"] or 1))


def _read_machine(name: str) -> Host:
    return read_record(MACHINES / f"{name}.json", Host, hint="install slipstream again")


def _multiply_accelerators(host: Host, name: str, count: int) -> Host:
    """Return the machine with that many of its accelerator, which has a memory of its own."""
    if not host.accelerators or (count > 1 and host.accelerators[0].memory_kind == "unified"):
        has = "no accelerator" if not host.accelerators else "one, which uses the system's memory"
        raise InvalidInputError(
            f"{name}x{count} asks for {count} accelerators, and {name} has {has}",
            hint=f"--host {name}, or --host {count}x-{name} for {count} linked machines",
        )
    if count == 1:
        return host
    one = host.accelerators[0].model_copy(update={"link": _name_link(host.accelerators[0])})
    every = tuple(one.model_copy(update={"index": index}) for index in range(count))
    return host.model_copy(update={"accelerators": every})


def _name_link(accelerator: Accelerator) -> str:
    return "nvlink" if _NVLINK.search(accelerator.name) else "pcie"


def _link_machines(host: Host, count: int) -> Host:
    """Return that many equal machines; the rate of a link is known of DGX Spark only."""
    if count == 1:
        return host
    fabric = (FabricPort(device="unknown", port=1, active=True, rate_gbit_per_s=None),)
    if host.accelerators and "GB10" in host.accelerators[0].name:
        fabric = _read_machine(_LINKED_ALIKE).fabric
    return host.model_copy(update={"machines": count, "fabric": fabric})
