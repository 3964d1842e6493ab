"""What a machine says of itself: accelerators, interfaces, versions, and models that are here.

On a DGX Spark each ConnectX-7 port shows as two interfaces and two devices, and only those with a
cable are up: which they are differs from machine to machine, so each is asked.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from slipstream import __version__
from slipstream.errors import InvalidInputError
from slipstream.fleet.plan import MOST_INTERFACES, Interface, MachineView
from slipstream.hardware import ProbeSources, read_host, read_text
from slipstream.hardware.surroundings import parse_port_state
from slipstream.records import Record
from slipstream.serving.weights.lock import WeightsLock, read_lock
from slipstream.user_folders import model_cache, slipstream_cache

RunProgram = Callable[[tuple[str, ...]], str | None]
MOST_GIDS = 256
FarFolder = Annotated[str, Field(pattern=r"^/[^\x00-\x1f]*$")]


class DescribeMachine(Record):
    """Asks for a `MachineView`, with the hashes of these models if they are there."""

    models: tuple[str, ...] = ()


class ModelRequest(Record):
    """Asks a machine to have a model, fetched if need be, and every file of it hashed."""

    model: str
    revision: str | None = None
    with_code: bool = False


class HeldModel(Record):
    """What a machine has of a model; `tree` is the folder that makes it whole elsewhere."""

    schema_version: Literal[1] = 1
    name: str
    tree: FarFolder
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    size_bytes: int


class LocateModel(Record):
    """Asks where a model's files are on a machine, or will be."""

    model: str


class ModelPlace(Record):
    tree: FarFolder


def describe_here(surface: ProbeSources, models: Sequence[str]) -> MachineView:
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
                known = {lock.repository, lock.folder}
                named = [one for one in models if {one, str(Path(one).expanduser())} & known]
                found |= {name: digest_weights(lock) for name in named}
    return found


def digest_weights(lock: WeightsLock) -> str:
    """Return one hash of all weights; other files may differ by what has been fetched."""
    lines = sorted(
        f"{file.sha256} {file.name}\n" for file in lock.files if file.name.endswith(".safetensors")
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def hold_model(request: ModelRequest, environment: Mapping[str, str]) -> HeldModel:
    """Have a model here, fetched if need be, and every file of it hashed."""
    # The hub's client takes half a second to import.
    from slipstream.serving.weights.obtaining import obtain

    model = obtain(
        request.model,
        revision=request.revision,
        environment=environment,
        report=lambda _: None,
        with_code=request.with_code,
    )
    lock = read_lock(model.lock)
    if lock is None:
        raise InvalidInputError(f"there is no lock {model.lock}", hint="slipstream doctor")
    return HeldModel(
        name=request.model,
        tree=str(find_tree(request.model, environment) if model.commit else model.folder),
        sha256=digest_weights(lock),
        size_bytes=model.size_bytes,
    )


def find_tree(name: str, environment: Mapping[str, str]) -> Path:
    """Return where a model's files lie on this machine, or will."""
    folder = Path(name).expanduser()
    if folder.is_absolute():
        return folder
    return model_cache(environment).absolute() / f"models--{name.replace('/', '--')}"


def read_interfaces(root: Path, run: RunProgram) -> tuple[Interface, ...]:
    devices = _find_rdma_devices(root)
    found = []
    for entry in parse_addresses(run(("ip", "-json", "address"))):
        name = entry["ifname"]
        if "LOOPBACK" in entry.get("flags", ()):
            continue
        addresses, state = _list_addresses(entry), entry.get("operstate")
        device = devices.get(name)
        port = root / f"sys/class/infiniband/{device}/ports/1"
        speed = _read_number(root / "sys/class/net" / name / "speed")
        found.append(
            Interface(
                name=name,
                up=None if state in (None, "UNKNOWN") else state == "UP",
                mtu=entry.get("mtu"),
                # The kernel's unit is megabits per second; a virtual one says -1.
                speed_gbit_per_s=speed / 1000 if speed and speed > 0 else None,
                addresses=addresses,
                rdma_device=device,
                rdma_active=parse_port_state(read_text(port / "state")) if device else None,
                gid_index=_find_gid(port, addresses) if device else None,
            )
        )
    return tuple(found[:MOST_INTERFACES])


def read_ephemeral_ports(root: Path) -> tuple[int, int] | None:
    """Read the range of ports that the kernel gives to whoever asks for any."""
    words = (read_text(root / "proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def parse_addresses(text: str | None) -> list[dict[str, Any]]:
    try:
        entries = json.loads(text or "[]")
    except ValueError:
        return []
    # A veth without a peer here is called NAME@PEER by some versions.
    return [entry for entry in entries if isinstance(entry, dict) and "ifname" in entry]


def _list_addresses(entry: dict[str, Any]) -> tuple[str, ...]:
    """List addresses with the length of their network, IPv4 first; link-local ones are left out."""
    pairs = [(one.get("local"), one.get("prefixlen")) for one in entry.get("addr_info", ())]
    kept = [pair for pair in pairs if pair[0] and not ip_address(pair[0]).is_link_local]
    kept.sort(key=lambda pair: ip_address(pair[0]).version)
    return tuple(f"{address}/{length}" for address, length in kept)


def _find_rdma_devices(root: Path) -> dict[str, str]:
    return {
        interface.name: interface.parents[2].name
        for interface in sorted(root.glob("sys/class/infiniband/*/device/net/*"))
    }


def _find_gid(port: Path, addresses: tuple[str, ...]) -> int | None:
    own = {ip_address(address.partition("/")[0]) for address in addresses}
    for index in range(MOST_GIDS):
        if (gid := read_text(port / f"gids/{index}")) is None:
            return None
        kind = read_text(port / f"gid_attrs/types/{index}") or ""
        with suppress(ValueError):
            mapped = getattr(ip_address(gid.strip()), "ipv4_mapped", None)
            if kind.strip() == "RoCE v2" and mapped in own:
                return index
    return None


def _read_number(path: Path) -> int | None:
    text = (read_text(path) or "").strip()
    return int(text) if text.lstrip("-").isdigit() else None
