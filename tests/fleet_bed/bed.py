"""Machines on one machine: namespaces with an sshd each, joined by two switches.

A machine has its own network, process, mount, hostname and shared-memory namespaces, its own home
folder and its own host key; the disk is shared. Every machine can `ssh NAME` to every other one.
Its first process is the sshd: when that ends, the kernel ends every process of the machine.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from tests.fleet_bed.machine_files import NETWORKS, find_sshd, run, write_home, write_shared_files

CONTROL = "control"
READY_WITHIN_SECONDS = 20.0
_PROGRAMS = ("ip", "nsenter", "setpriv", "ssh", "ssh-keygen", "unshare")


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine of the bed; `pid` is its first process, as the outside numbers it."""

    name: str
    number: int
    pid: int
    home: Path
    variables: Mapping[str, str]

    @property
    def address(self) -> str:
        return f"{NETWORKS['eth0']}.{self.number}"

    @property
    def link_address(self) -> str:
        return f"{NETWORKS['link0']}.{self.number}"

    def enter(self, argv: Sequence[str]) -> list[str]:
        namespaces = ("--net", "--mount", "--pid", "--uts", "--ipc")
        place = (f"--target={self.pid}", f"--wdns={self.home}")
        return ["nsenter", *place, *namespaces, "--", *argv]

    def run(self, argv: Sequence[str], *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.enter(argv),
            env={**self.variables, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def list_processes(self) -> dict[int, str]:
        """Return the command lines on the machine by pid, as the outside numbers them.

        The sshd of the machine and those of its sessions are left out.
        """
        own, found = Path(f"/proc/{self.pid}/ns/pid").readlink(), {}
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (entry / "ns" / "pid").readlink() == own:
                    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
                    if words and not words.startswith("sshd:"):
                        found[int(entry.name)] = words
        found.pop(self.pid, None)
        return found


@dataclass(frozen=True, slots=True)
class Bed:
    """The machines by name, among them the control machine, and the cables between them."""

    folder: Path
    switch: int
    machines: Mapping[str, Machine]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    @property
    def control(self) -> Machine:
        return self.machines[CONTROL]

    def cut(self, name: str, network: str = "link0") -> None:
        """Pull a machine's cable: both ends lose the carrier."""
        self._change_port("ip", "link", "set", self._name_port(name, network), "down")

    def join(self, name: str, network: str = "link0") -> None:
        self._change_port("ip", "link", "set", self._name_port(name, network), "up")

    def limit(self, name: str, megabits: int, network: str = "link0") -> None:
        """Bound what a machine can receive over a cable."""
        device = ("dev", self._name_port(name, network), "root")
        shape = ("tbf", "rate", f"{megabits}mbit", "burst", "256kb", "latency", "50ms")
        self._change_port("tc", "qdisc", "replace", *device, *shape)

    def _name_port(self, name: str, network: str) -> str:
        return f"{network}-{self.machines[name].number}"

    def _change_port(self, *argv: str) -> None:
        run(["nsenter", f"--target={self.switch}", "--net", *argv])


def explain_absence() -> str | None:
    """Say why this machine cannot have a bed, None if it can."""
    if os.geteuid() != 0:
        return "namespaces with an sshd take root"
    if find_sshd() is None:
        return "no sshd: scripts/fleet-bed --fetch"
    if missing := [name for name in _PROGRAMS if shutil.which(name) is None]:
        return f"no {', '.join(missing)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False)
    return "namespaces are not permitted here" if tried.returncode else None


@contextmanager
def run_bed(names: Sequence[str], variables: Mapping[str, str] | None = None) -> Iterator[Bed]:
    """Run a control machine and the named machines until the block ends.

    Logins there get the variables. Whatever ends this process ends the machines.
    """
    if (reason := explain_absence()) is not None:
        raise RuntimeError(reason)
    path = os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    kept = {"PATH": path, "LANG": "C.UTF-8", **(variables or {})}
    numbers = {name: number for number, name in enumerate((CONTROL, *names), start=1)}
    with ExitStack() as stack:
        folder = Path(mkdtemp(prefix="fleet-bed-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        write_shared_files(folder, numbers)
        switch = stack.enter_context(_run_switch())
        machines = {
            name: stack.enter_context(_run_machine(folder / name, number, switch, kept))
            for name, number in numbers.items()
        }
        for machine in machines.values():
            _await_sshd(machine)
        yield Bed(folder, switch, machines)


@contextmanager
def _run_switch() -> Iterator[int]:
    with _run_namespaces(["--net"], ["sleep", "infinity"]) as pid:
        link = ["nsenter", f"--target={pid}", "--net", "ip", "link"]
        for network in NETWORKS:
            run([*link, "add", f"br-{network}", "type", "bridge"])
            run([*link, "set", f"br-{network}", "up"])
        yield pid


@contextmanager
def _run_machine(
    home: Path, number: int, switch: int, variables: Mapping[str, str]
) -> Iterator[Machine]:
    start = write_home(home.parent, home, variables)
    unshared = ["--net", "--mount", "--pid", "--mount-proc", "--uts", "--ipc"]
    with _run_namespaces(unshared, ["sh", "-eu", str(start), home.name]) as pid:
        _plug_in(pid, number, switch)
        yield Machine(home.name, number, pid, home, variables)


@contextmanager
def _run_namespaces(flags: Sequence[str], argv: Sequence[str]) -> Iterator[int]:
    """Run a command as the first process of new namespaces, and give its pid."""
    command = ["setpriv", "--pdeathsig", "KILL", "unshare", *flags, "--fork", "--kill-child"]
    process = subprocess.Popen([*command, "--", *argv], stdin=subprocess.DEVNULL)
    try:
        yield _find_child(process)
    finally:
        process.kill()
        process.wait()


def _find_child(process: subprocess.Popen[bytes]) -> int:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    own = Path("/proc/self/ns/net").readlink()
    until = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < until:
        with suppress(OSError, IndexError):
            child = int(children.read_text().split()[0])
            if Path(f"/proc/{child}/ns/net").readlink() != own:
                return child
        time.sleep(0.02)
    raise RuntimeError(f"{process.args!r} did not start")


def _plug_in(pid: int, number: int, switch: int) -> None:
    port_of = ["nsenter", f"--target={switch}", "--net", "ip", "link"]
    inside = ["nsenter", f"--target={pid}", "--net", "ip"]
    for network, prefix in NETWORKS.items():
        port = f"{network}-{number}"
        peer = ("peer", "name", network, "netns", str(pid))
        run([*port_of, "add", port, "type", "veth", *peer])
        run([*port_of, "set", port, "master", f"br-{network}", "up"])
        run([*inside, "address", "add", f"{prefix}.{number}/24", "dev", network])
        run([*inside, "link", "set", network, "up"])
    run([*inside, "link", "set", "lo", "up"])


def _await_sshd(machine: Machine) -> None:
    log = machine.home / ".bed" / "sshd.log"
    until = time.monotonic() + READY_WITHIN_SECONDS
    while time.monotonic() < until:
        if log.exists() and "Server listening" in log.read_text():
            return
        time.sleep(0.05)
    raise RuntimeError(f"the sshd of {machine.name} did not start")
