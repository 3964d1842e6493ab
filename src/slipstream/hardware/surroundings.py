"""The machine's surroundings: chassis, container, model disk, links to other machines."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path

from slipstream.hardware.host import Container, Disk, FabricPort


def read_text(path: Path) -> str | None:
    """Return the text of a file of the kernel, None where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def read_product(root: Path) -> str | None:
    """Return the maker's name of the machine: a device tree on Jetson, DMI elsewhere."""
    tree = read_text(root / "proc/device-tree/model")
    name = tree or read_text(root / "sys/class/dmi/id/product_name")
    return (name or "").strip("\0 \n") or None


def read_container(root: Path, environment: Mapping[str, str]) -> Container | None:
    """Return whether this process is in a container, by the marks that each kind leaves."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    cgroup = read_text(root / "proc/1/cgroup")
    if cgroup is None:
        return None
    if "kubepods" in cgroup:
        return "kubernetes"
    if "docker" in cgroup:
        return "docker"
    return "other" if "lxc" in cgroup or "container" in environment else "none"


def list_unread_accelerators(root: Path) -> tuple[str, ...]:
    """Return accelerators that the probe cannot read, so that none found does not mean none."""
    if (root / "dev/kfd").exists():
        return ("/dev/kfd is there: an AMD accelerator, which slipstream does not read yet",)
    return ()


def read_disk(path: Path, *, home: Path) -> Disk:
    """Measure the file system of a folder that may not exist yet; portraits name no user."""
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    usage = shutil.disk_usage(existing)
    shown = Path("~") / path.relative_to(home) if path.is_relative_to(home) else path
    return Disk(path=str(shown), total_bytes=usage.total, free_bytes=usage.free)


def read_fabric(root: Path) -> tuple[FabricPort, ...]:
    """List the RDMA ports that the kernel knows, with their state and rate."""
    ports = []
    for port in sorted(root.glob("sys/class/infiniband/*/ports/*")):
        rate = re.match(r"(\d+)(\.\d+)? Gb/sec", read_text(port / "rate") or "")
        ports.append(
            FabricPort(
                device=port.parent.parent.name,
                port=int(port.name),
                active=parse_port_state(read_text(port / "state")),
                rate_gbit_per_s=int(rate[1]) if rate else None,
            )
        )
    return tuple(ports)


def parse_port_state(text: str | None) -> bool | None:
    """Read a line such as `4: ACTIVE`."""
    return None if text is None else text.strip().endswith("ACTIVE")
