"""Machines that ship with the package, so that a plan can be made for one from anywhere.

Each is a description as `slipstream probe --json` writes it; `origin` says where its figures
come from.
"""

from pathlib import Path

from slipstream.errors import InvalidInputError
from slipstream.hardware.host import Host
from slipstream.records import read_record

FOLDER = Path(__file__).parent / "machines"


def list_machines() -> tuple[str, ...]:
    """Return the names of the machines that ship."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def load_host(name_or_file: str) -> Host:
    """Return a machine by its name, or from a file that `slipstream probe --json` wrote."""
    shipped = FOLDER / f"{name_or_file}.json"
    if name_or_file in list_machines():
        return read_record(shipped, Host, hint="install slipstream again")
    path = Path(name_or_file).expanduser()
    if not path.exists():
        raise InvalidInputError(
            f"there is no file {name_or_file}, and no machine of that name is known",
            details=(f"known: {', '.join(list_machines())}",),
            hint="slipstream probe --json > FILE, on that machine",
        )
    return read_record(path, Host, hint="slipstream probe --json > FILE")
