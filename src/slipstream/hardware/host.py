"""`Host`: the description of one machine that every later stage plans from.

None always means 'could not tell', never zero and never 'no'. What stood in for an answer
that could not be had is said in `remarks`.
"""

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from slipstream.errors import UnsupportedHostError
from slipstream.records import Record
from slipstream.units import version_tuple

Platform = Literal["linux", "darwin", "windows", "other"]
Container = Literal["none", "docker", "podman", "kubernetes", "other"]
MemoryKind = Literal["unified", "discrete"]
Link = Literal["nvlink", "pcie"]
# Without one of these, oneDNN converts every bfloat16 operand to float32 first.
INT8_FEATURES = frozenset({"avx512_vnni", "avx_vnni"})
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"})
# Kinds of machine, as recipes and plans name them, by a pattern in the accelerator's name.
KINDS = {
    r"GB10\b": "gb10",
    r"Thor\b": "jetson-thor",
    r"RTX 5090\b": "rtx-5090",
    r"RTX 4090\b": "rtx-4090",
    r"RTX 4080 SUPER": "rtx-4080-super",
    r"RTX 3090\b": "rtx-3090",
    r"RTX PRO 6000\b": "rtx-pro-6000",
    r"\bL40S\b": "l40s",
    r"\bL4\b": "l4",
    r"\bA100.*40GB": "a100-40",
    r"\bA100.*80GB": "a100-80",
    r"\bGH200\b": "gh200",
    r"\bH200\b": "h200",
    r"\bH100\b": "h100",
    r"B200\b": "b200",
    r"B300\b": "b300",
    r"\bMI300X\b": "mi300x",
    r"\bRadeon 8060S\b": "strix-halo",
}
# A laptop's GPU has less memory than the card of that name, and a MIG slice is a part of one.
_UNLIKE = re.compile(r"\b(Laptop|MIG)\b")
# The least of the kernel libraries that vLLM 0.32 picks from (platforms/cpu.py).
_CPU_ARCHITECTURES = {"x86_64": "avx2", "aarch64": "asimd"}


class MemoryUser(Record):
    """A process that uses an accelerator's memory; one of another container has no name here."""

    pid: int
    name: str | None
    size_bytes: int | None


class Accelerator(Record):
    """One GPU, as its driver describes it.

    `link` is how it reaches the other GPUs of the machine, None for a single one or if unknown.
    """

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
    link: Link | None = None
    users: tuple[MemoryUser, ...] = ()
    vendor: Literal["nvidia", "amd"] = "nvidia"

    @property
    def is_slice(self) -> bool:
        """Return whether this is a MIG slice, which its name says."""
        return re.search(r"\bMIG\b", self.name) is not None


class Processor(Record):
    """The CPU: its name, the usable part of it and its features.

    `quota_cpus` is the CPU time that a container may use, in CPUs; None is no limit.
    """

    model: str | None
    architecture: str
    cores: int | None
    usable_threads: int | None
    numa_nodes: int | None
    features: tuple[str, ...]
    usable_cpus: tuple[int, ...] | None = None
    quota_cpus: float | None = None

    @property
    def cpus(self) -> tuple[int, ...] | None:
        """Return the CPUs to compute on, no more than the quota; from 0 on if only counted."""
        cpus = self.usable_cpus
        if not cpus and self.usable_threads is not None:
            cpus = tuple(range(self.usable_threads))
        if not cpus or self.quota_cpus is None:
            return cpus
        return cpus[: max(1, int(self.quota_cpus))]

    @property
    def has_bfloat16(self) -> bool | None:
        """Return whether instructions multiply matrices of bfloat16; None if none are known."""
        return not BFLOAT16_FEATURES.isdisjoint(self.features) if self.features else None

    @property
    def favours_int8(self) -> bool:
        """Return whether instructions multiply matrices of bytes, and none those of bfloat16."""
        return self.has_bfloat16 is False and not INT8_FEATURES.isdisjoint(self.features)


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
    packages: tuple[str, ...] = ()


class Host(Record):
    """One machine at one moment, or `machines` equal ones that are linked.

    `unread_gpu`: there is a GPU that the probe cannot read, one of AMD's.
    """

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
    machines: int = 1
    unread_gpu: bool = False

    @property
    def on_rocm(self) -> bool:
        return any(one.vendor == "amd" for one in self.accelerators)


def name_kind(host: Host) -> str | None:
    """Return the kind of a machine; one without an accelerator is a `cpu`."""
    if not host.accelerators:
        return "cpu"
    name = host.accelerators[0].name
    if _UNLIKE.search(name):
        return None
    return next((kind for part, kind in KINDS.items() if re.search(part, name)), None)


def find_capability(accelerators: Sequence[Accelerator]) -> str | None:
    """Return the lowest compute capability, such as 12.1."""
    known = [one.compute_capability for one in accelerators if one.compute_capability]
    return min(known, key=version_tuple, default=None)


def find_obstacle(host: Host) -> UnsupportedHostError | None:
    """Return why this machine cannot serve DFlash, whatever the model; None if it can."""
    called = host.processor.model or host.processor.architecture
    if host.platform != "linux":
        return UnsupportedHostError(
            f"{called} runs {host.platform}, and vLLM runs DFlash on Linux only",
            hint="run it on the Linux machine that will serve",
        )
    needed = _CPU_ARCHITECTURES.get(host.processor.architecture)
    if host.accelerators or (needed is not None and needed in host.processor.features):
        return None
    lack = f"vLLM has no CPU build for {called}"
    if needed is not None:
        lack = f"{called} lacks {needed}, which vLLM's CPU build needs"
    return UnsupportedHostError(
        f"no accelerator was found, and {lack}",
        hint="on a machine with an accelerator: slipstream probe --verbose",
    )
