"""Which groups can swap their drafter, and a drafter's folder on all of their machines.

Every group is swapped by `slipstream swap` on its own machine, which proves the drafter, watches it
and keeps the one before (`steps.py`).
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.errors import InvalidInputError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.record import Fleet


def list_swapping_groups(fleet: Fleet) -> tuple[str, ...]:
    """List the groups that draft, in the order of the file; raise if one of them cannot swap."""
    drafting = {name: group for name, group in fleet.groups.items() if group.speculation}
    if spread := [name for name, group in drafting.items() if len(group.machines) > 1]:
        raise InvalidInputError(
            f"{', '.join(spread)}: an engine over several machines cannot swap its drafter",
            hint=f"name the drafter in fleet.toml, then: slipstream fleet roll {' '.join(spread)}",
        )
    return tuple(drafting)


def place_drafter(
    far: Machines, groups: Sequence[str], name: str, say: Callable[[str], None]
) -> str:
    """Return what the machines know a drafter by; a folder of this machine is sent to them all."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name
    files = sorted(
        file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt")
    )
    if not any(file.suffix == ".safetensors" for file in files):
        raise InvalidInputError(f"{folder} has no safetensors", hint=f"slipstream inspect {folder}")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(
                f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode()
            )
    plain = re.sub(r"[^A-Za-z0-9]", "-", folder.resolve().name)[:40]
    place = f"{far.fleet.folder}/drafters/{plain}-{digest.hexdigest()[:12]}"
    for machine in [name for group in groups for name in far.fleet.groups[group].machines]:
        say(f"{machine}: {len(files)} files of the drafter are sent")
        for file in files:
            far.transport.send(machine, file, f"{place}/{file.name}")
    return f"~/{place}"
