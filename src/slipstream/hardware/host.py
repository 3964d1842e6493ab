"""`Host`: the description of one machine that every later stage plans from.

None always means 'could not tell', never zero and never 'no'. What stood in for an answer
that could not be had is said in `remarks`. Some machines ship with the package (`machines/`, as
`slipstream probe --json` writes them), so that a plan can be made for one from anywhere.
"""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Literal

from slipstream.errors import InvalidInputError, UnsupportedHostError
from slipstream.records import Record, read_record
from slipstream.units import version_tuple

Platform = Literal["linux", "darwin", "windows", "other"]
Container = Literal["none", "docker", "podman", "kubernetes", "other"]
MemoryKind = Literal["unified", "discrete"]
# Without one of these, oneDNN converts every bfloat16 operand to float32 first.
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"})
MACHINES = Path(__file__).parent / "machines"
# Kinds of machine, as recipes and plans name them, by a part of the accelerator's name.
_KINDS = {
    "GB10": "gb10",
    "Thor": "jetson-thor",
    "RTX 5090": "rtx-5090",
    "RTX 4090": "rtx-4090",
    "RTX 3090": "rtx-3090",
    "RTX PRO 6000": "rtx-pro-6000",
    "H100": "h100",
    "B200": "b200",
    "B300": "b300",
}
# The least of the kernel libraries that vLLM 0.32 picks from (platforms/cpu.py).
_CPU_ARCHITECTURES = {"x86_64": "avx2", "aarch64": "asimd"}


class Accelerator(Record):
    """One GPU, as its driver describes it."""

    index: int
    name: str
    compute_capability: str | None
    memory_kind: MemoryKind | None
    memory_total_bytes: int | None
    memory_available_bytes: int | None
    memory_bandwidth_bytes_per_s: int | None
    power_watts: float | None
    power_limit_watts: float | None
    clock_mhz: int | None
    clock_limit_mhz: int | None


class Processor(Record):
    """The CPU: its name, the usable part of it and its features."""

    model: str | None
    architecture: str
    cores: int | None
    usable_threads: int | None
    numa_nodes: int | None
    features: tuple[str, ...]
    usable_cpus: tuple[int, ...] | None = None

    @property
    def cpus(self) -> tuple[int, ...] | None:
        """Return the CPUs to compute on; where only their number is known, from 0 on."""
        if self.usable_cpus or self.usable_threads is None:
            return self.usable_cpus
        return tuple(range(self.usable_threads))

    @property
    def has_bfloat16(self) -> bool | None:
        """Return whether instructions multiply matrices of bfloat16; None if none are known."""
        return not BFLOAT16_FEATURES.isdisjoint(self.features) if self.features else None


class Memory(Record):
    """System memory, or a container's limit if that is smaller."""

    total_bytes: int | None
    available_bytes: int | None = None
    swap_bytes: int | None = None
    limit_bytes: int | None = None


class Disk(Record):
    """The file system that holds the models."""

    path: str
    total_bytes: int | None
    free_bytes: int | None


class FabricPort(Record):
    """One RDMA port; two linked DGX Sparks see each other through these."""

    device: str
    port: int
    active: bool | None
    rate_gbit_per_s: int | None


class Docker(Record):
    """Docker as this user can use it; a client without a server knows no runtime."""

    client_version: str | None
    server_version: str | None
    nvidia_runtime: bool | None


class Engine(Record):
    """An installed inference engine, by the name of its distribution."""

    distribution: str
    version: str


class Software(Record):
    """Installed software that serving depends on."""

    system: str | None
    kernel: str | None
    python: str
    torch: str | None
    engine: Engine | None
    nvidia_driver: str | None
    cuda_driver: str | None
    docker: Docker | None
    openmp_library: str | None = None


class Host(Record):
    """One machine at one moment."""

    schema_version: Literal[1] = 1
    origin: str
    taken_at: datetime
    platform: Platform
    product: str | None
    container: Container | None
    accelerators: tuple[Accelerator, ...]
    processor: Processor
    memory: Memory
    model_disk: Disk
    fabric: tuple[FabricPort, ...]
    software: Software
    remarks: tuple[str, ...]


def name_kind(host: Host) -> str | None:
    """Return the kind of a machine; one without an accelerator is a `cpu`."""
    if not host.accelerators:
        return "cpu"
    name = host.accelerators[0].name
    return next((kind for part, kind in _KINDS.items() if part in name), None)


def find_capability(accelerators: Sequence[Accelerator]) -> str | None:
    """Return the lowest compute capability, such as 12.1."""
    known = [one.compute_capability for one in accelerators if one.compute_capability]
    return min(known, key=version_tuple, default=None)


def list_machines() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in MACHINES.glob("*.json")))


def load_host(name_or_file: str) -> Host:
    """Return a machine by its name, or from a file that `slipstream probe --json` wrote."""
    if name_or_file in list_machines():
        return read_record(MACHINES / f"{name_or_file}.json", Host, hint="install slipstream again")
    path = Path(name_or_file).expanduser()
    if not path.exists():
        raise InvalidInputError(
            f"there is no file {name_or_file}, and no known machine of that name",
            details=(f"known: {', '.join(list_machines())}",),
            hint="slipstream probe --json > FILE, on that machine",
        )
    return read_record(path, Host, hint="slipstream probe --json > FILE")


def find_obstacle(host: Host) -> UnsupportedHostError | None:
    """Return why this machine cannot serve DFlash, whatever the model; None if it can."""
    called = host.processor.model or host.processor.architecture
    if host.platform != "linux":
        return UnsupportedHostError(
            f"{called} runs {host.platform}, and vLLM runs DFlash on Linux only",
            hint="run slipstream on the Linux machine that will serve",
        )
    needed = _CPU_ARCHITECTURES.get(host.processor.architecture)
    if host.accelerators or (needed is not None and needed in host.processor.features):
        return None
    lack = f"vLLM has no CPU build for {called}"
    if needed is not None:
        lack = f"{called} lacks {needed}, which vLLM's CPU build needs"
    return UnsupportedHostError(
        f"no accelerator was found, and {lack}",
        hint="slipstream probe --verbose, on a machine with an accelerator",
    )
