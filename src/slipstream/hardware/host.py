"""`Host`: the description of one machine that every later stage plans from.

None always means 'could not tell', never zero and never 'no'. What stood in for an answer
that could not be had is said in `remarks`.
"""

from datetime import datetime
from typing import Literal

from slipstream.records import Record

Platform = Literal["linux", "darwin", "windows", "other"]
Container = Literal["none", "docker", "podman", "kubernetes", "other"]
MemoryKind = Literal["unified", "discrete"]
# Without one of these, oneDNN converts every bfloat16 operand to float32 first.
BFLOAT16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16", "svebf16"})


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
    available_bytes: int | None
    swap_bytes: int | None
    limit_bytes: int | None


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
