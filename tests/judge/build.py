"""Builds the fake driver libraries, with the figures of our own machines.

`FAKE_GPU=h100:8 LD_LIBRARY_PATH=FOLDER COMMAND` then runs a command as on that machine; what else
the environment can say is at the beginning of fake_nvml.c.
"""

import subprocess
from pathlib import Path

from slipstream.hardware import list_machines, load_host

SOURCES = Path(__file__).parent
LIBRARIES = {"fake_nvml.c": "libnvidia-ml.so.1", "fake_cuda.c": "libcuda.so.1"}
TABLE = "gpus.txt"
_COMPILE = ("cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra")


def build_fakes(folder: Path) -> Path:
    """Compile the libraries into a folder, with the table that they read beside them."""
    folder.mkdir(parents=True, exist_ok=True)
    for source, library in LIBRARIES.items():
        if (SOURCES / source).exists():
            out = ("-o", str(folder / library), str(SOURCES / source), "-ldl")
            subprocess.run((*_COMPILE, *out), check=True)
    lines = (_describe(name) for name in list_machines())
    (folder / TABLE).write_text("".join(line for line in lines if line))
    return folder


def _describe(name: str) -> str | None:
    """Return the line of a machine's GPU; NVML knows neither AMD's GPUs nor unified memory."""
    host = load_host(name)
    if not host.accelerators or host.on_rocm:
        return None
    one = host.accelerators[0]
    unified = one.memory_kind == "unified"
    linked = not unified and load_host(f"{name}x2").accelerators[0].link == "nvlink"
    bus_bits, clock_mhz = (0, 0) if unified else _split(one.memory_bandwidth_bytes_per_s or 0)
    fields = (
        name,
        one.name,
        one.compute_capability,
        0 if unified else one.memory_total_bytes,
        0 if unified else one.memory_available_bytes,
        bus_bits,
        clock_mhz,
        one.clock_mhz or 0,
        one.clock_limit_mhz or 0,
        round((one.power_watts or 0) * 1000),
        round((one.power_limit_watts or 0) * 1000),
        int(linked),
    )
    return "\t".join(map(str, fields)) + "\n"


def _split(bytes_per_s: int) -> tuple[int, int]:
    """Return a bus width and a clock that give the bandwidth, at two transfers per clock."""
    megabytes = bytes_per_s // 1_000_000
    widths = (640, 768, 1000, 64, 48, 32, 24, 1)
    bus_bytes = next(size for size in widths if megabytes % (2 * size) == 0)
    return bus_bytes * 8, megabytes // 2 // bus_bytes
