"""Which processes listen on this machine and can be reached from others, from /proc."""

import re
import struct
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from slipstream.hardware import read_text

IPAddress = IPv4Address | IPv6Address

_LISTENING = "0A"
_ENGINE = re.compile(r"^VLLM::|(?:^|[/\0])vllm(?:\.entrypoints\.|\0|$)")


@dataclass(frozen=True, slots=True)
class Listener:
    """A port that other machines can reach, and the process behind it."""

    pid: int
    address: str
    port: int


def list_open_listeners(pids: Iterable[int], proc: Path) -> tuple[Listener, ...]:
    """Return the ports of these processes that not only this machine reaches."""
    sockets = {
        inode: (address, port)
        for inode, address, port in _read_sockets(proc)
        if not _is_loopback(address)
    }
    return tuple(
        Listener(pid, str(sockets[inode][0]), sockets[inode][1])
        for pid in sorted(pids)
        for inode in sorted(_list_sockets(pid, proc))
        if inode in sockets
    )


def find_listening(addresses: Collection[IPAddress], port: int, proc: Path) -> frozenset[int]:
    """Return the sockets that could take a connection to a port at one of these addresses."""
    return frozenset(
        inode
        for inode, listening, at in _read_sockets(proc)
        if at == port and any(_takes(listening, address) for address in addresses)
    )


def list_held_sockets(pids: Iterable[int], proc: Path) -> frozenset[int]:
    return frozenset(inode for pid in pids for inode in _list_sockets(pid, proc))


def list_engines(user: int, proc: Path) -> Iterator[int]:
    """Return this user's processes that call themselves vLLM, whoever started them."""
    for cmdline in proc.glob("[0-9]*/cmdline"):
        if _ENGINE.search(read_text(cmdline) or "") and _owner_of(cmdline.parent) == user:
            yield int(cmdline.parent.name)


def parse_sockets(text: str) -> Iterator[tuple[int, IPAddress, int]]:
    """Return inode, address and port of the listening sockets in /proc/net/tcp or tcp6."""
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == _LISTENING:
            address, _, port = fields[1].partition(":")
            yield int(fields[9]), _parse_address(address), int(port, 16)


def _read_sockets(proc: Path) -> Iterator[tuple[int, IPAddress, int]]:
    for table in ("tcp", "tcp6"):
        yield from parse_sockets(read_text(proc / "net" / table) or "")


def _takes(listening: IPAddress, address: IPAddress) -> bool:
    """Return whether a listener at one address is reached by the other; :: may take IPv4, too."""
    mapped = listening.ipv4_mapped if isinstance(listening, IPv6Address) else None
    if listening.is_unspecified:
        return listening.version in (6, address.version)
    return address in (listening, mapped)


def _parse_address(text: str) -> IPAddress:
    """Return an address that the kernel wrote in its own byte order."""
    words = [int(text[at : at + 8], 16) for at in range(0, len(text), 8)]
    raw = struct.pack(f"={len(words)}I", *words)
    return IPv4Address(raw) if len(raw) == 4 else IPv6Address(raw)


def _is_loopback(address: IPAddress) -> bool:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_loopback


def _list_sockets(pid: int, proc: Path) -> set[int]:
    """Return the sockets that a process holds; it may end meanwhile, or be another user's."""
    try:
        names = [_link_of(entry) for entry in (proc / str(pid) / "fd").iterdir()]
    except OSError:
        return set()
    return {int(name[8:-1]) for name in names if name.startswith("socket:[")}


def _link_of(entry: Path) -> str:
    """Return where a link of /proc leads; "" if its file was closed meanwhile."""
    try:
        return str(entry.readlink())
    except OSError:
        return ""


def _owner_of(process: Path) -> int | None:
    try:
        return process.stat().st_uid
    except OSError:
        return None
