"""The network interfaces of this machine, and the RDMA devices behind them.

On a DGX Spark each ConnectX-7 port shows as two interfaces and two devices, and only those with a
cable are up: which they are differs from machine to machine, so each is asked.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from slipstream.fleet.plan import MOST_INTERFACES, Interface
from slipstream.hardware import read_text
from slipstream.hardware.surroundings import parse_port_state

RunProgram = Callable[[tuple[str, ...]], str | None]
MOST_GIDS = 256


def read_interfaces(root: Path, run: RunProgram) -> tuple[Interface, ...]:
    """List the interfaces that other machines can be reached by."""
    devices = _find_rdma_devices(root)
    found = []
    for entry in parse_addresses(run(("ip", "-json", "address"))):
        name = entry["ifname"]
        if "LOOPBACK" in entry.get("flags", ()):
            continue
        addresses = _list_addresses(entry)
        device = devices.get(name)
        speed = _read_number(root / "sys/class/net" / name / "speed")
        found.append(
            Interface(
                name=name,
                up=_is_up(entry),
                mtu=entry.get("mtu"),
                # The kernel's unit is megabits per second; a virtual one says -1.
                speed_gbit_per_s=speed / 1000 if speed and speed > 0 else None,
                addresses=addresses,
                rdma_device=device,
                rdma_active=_is_active(root, device) if device else None,
                gid_index=_find_gid(root, device, addresses) if device else None,
            )
        )
    return tuple(found[:MOST_INTERFACES])


def read_ephemeral_ports(root: Path) -> tuple[int, int] | None:
    """Read the range of ports that the kernel gives to whoever asks for any."""
    words = (read_text(root / "proc/sys/net/ipv4/ip_local_port_range") or "").split()
    return (int(words[0]), int(words[1])) if len(words) == 2 else None


def parse_addresses(text: str | None) -> list[dict[str, Any]]:
    """Read what `ip -json address` prints."""
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


def _is_up(entry: dict[str, Any]) -> bool | None:
    state = entry.get("operstate")
    return None if state in (None, "UNKNOWN") else state == "UP"


def _find_rdma_devices(root: Path) -> dict[str, str]:
    """Return the RDMA device of each interface that has one."""
    return {
        interface.name: interface.parents[2].name
        for interface in sorted(root.glob("sys/class/infiniband/*/device/net/*"))
    }


def _is_active(root: Path, device: str) -> bool | None:
    return parse_port_state(read_text(root / f"sys/class/infiniband/{device}/ports/1/state"))


def _find_gid(root: Path, device: str, addresses: tuple[str, ...]) -> int | None:
    """Find the RoCE v2 entry of one of the interface's IPv4 addresses."""
    port = root / f"sys/class/infiniband/{device}/ports/1"
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
