"""What a machine says of itself when a fleet looks at it (`slipstream fleet here`)."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

from slipstream import __version__
from slipstream.errors import InvalidInputError
from slipstream.fleet.far_side.interfaces import read_ephemeral_ports, read_interfaces
from slipstream.fleet.plan import MachineView
from slipstream.hardware import Surface, read_host
from slipstream.serving.weights.lock import WeightsLock, read_lock
from slipstream.user_folders import slipstream_cache


def describe_here(surface: Surface, models: Sequence[str]) -> MachineView:
    """Return this machine as the fleet sees it, with the hashes of models that are here."""
    # Docker is no part of a plan, and asking it takes a while.
    host = read_host(replace(surface, run=lambda _: None))
    engine = host.software.engine
    locks = slipstream_cache(surface.environment).absolute() / "locks"
    return MachineView(
        host=host,
        slipstream=__version__,
        engine=f"{engine.distribution} {engine.version}" if engine else None,
        address=_read_address(surface.environment),
        interfaces=read_interfaces(surface.root, surface.run),
        ephemeral_ports=read_ephemeral_ports(surface.root),
        weights=find_weights(locks, models),
    )


def _read_address(environment: Mapping[str, str]) -> str | None:
    """Return the address at which SSH reached this machine, unless it came from here."""
    words = environment.get("SSH_CONNECTION", "").split()
    with suppress(ValueError, IndexError):
        address = ip_address(words[2].partition("%")[0])
        return None if address.is_loopback else str(address)
    return None


def find_weights(locks: Path, models: Sequence[str]) -> dict[str, str]:
    """Return one hash per model that was checked on this machine; others are left out."""
    found: dict[str, str] = {}
    for file in sorted(locks.glob("*.json")):
        with suppress(InvalidInputError):
            if (lock := read_lock(file)) is not None:
                found |= {name: digest_weights(lock) for name in models if _is_of(lock, name)}
    return found


def digest_weights(lock: WeightsLock) -> str:
    """Return one hash of all weights; other files may differ by what has been fetched."""
    lines = sorted(
        f"{file.sha256} {file.name}\n" for file in lock.files if file.name.endswith(".safetensors")
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _is_of(lock: WeightsLock, model: str) -> bool:
    return model in (lock.repository, lock.folder) or str(Path(model).expanduser()) == lock.folder
