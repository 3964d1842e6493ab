"""The probe of this machine: every part is read once, each by its own parser.

The root of the file tree, the environment, the clock, NVML and the runner of programs are
arguments, so a test can hand in a whole other machine.
"""

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from slipstream import __version__
from slipstream.hardware.cgroup import read_cgroup
from slipstream.hardware.host import Container, Host, Memory, Platform, Processor, Software
from slipstream.hardware.nvml import read_nvidia
from slipstream.hardware.processor import parse_cpu_list, parse_cpuinfo, parse_meminfo
from slipstream.hardware.surroundings import (
    OPTIONAL_PACKAGES,
    RunProgram,
    find_openmp,
    has_unread_gpu,
    parse_os_release,
    read_container,
    read_disk,
    read_docker,
    read_engine,
    read_fabric,
    read_product,
    read_text,
    read_version,
)
from slipstream.user_folders import model_cache

_UNREAD_GPU = (
    "/dev/kfd exists: an AMD GPU, which `probe` cannot read; plan for one with `plan --host mi300x`"
)
_PLATFORMS: dict[str, Platform] = {"linux": "linux", "darwin": "darwin", "windows": "windows"}


def run_program(command: tuple[str, ...]) -> str | None:
    """Run a program and return its output, None if it is missing, fails or takes over 5 s."""
    try:
        outcome = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return outcome.stdout


@dataclass(frozen=True, slots=True)
class ProbeSources:
    """The interfaces through which a machine is probed."""

    environment: Mapping[str, str]
    now: datetime
    root: Path
    prefix: Path
    system: str
    architecture: str
    kernel: str
    usable_threads: int | None
    nvml: Any
    run: RunProgram
    usable_cpus: tuple[int, ...] | None = None


def this_machine(environment: Mapping[str, str], now: datetime) -> ProbeSources:
    import pynvml

    # Only Linux reports the hardware threads that this process may run on.
    affinity = getattr(os, "sched_getaffinity", None)
    cpus = tuple(sorted(affinity(0))) if affinity else None
    return ProbeSources(
        environment=environment,
        now=now,
        root=Path("/"),
        prefix=Path(sys.prefix),
        system=platform.system().lower(),
        architecture=platform.machine(),
        kernel=platform.release(),
        usable_threads=os.cpu_count() if cpus is None else len(cpus),
        nvml=pynvml,
        run=run_program,
        usable_cpus=cpus,
    )


def read_host(surface: ProbeSources) -> Host:
    processor, memory = _read_kernel(surface)
    container = read_container(surface.root, surface.environment)
    unread = has_unread_gpu(surface.root)
    nvidia = read_nvidia(
        surface.nvml, memory, surface.environment, partial(_name_process, surface, container)
    )
    return Host(
        origin=f"probed by slipstream {__version__}",
        taken_at=surface.now,
        platform=_PLATFORMS.get(surface.system, "other"),
        product=read_product(surface.root),
        container=container,
        accelerators=nvidia.accelerators,
        processor=processor,
        memory=memory,
        model_disk=read_disk(model_cache(surface.environment), home=Path.home()),
        fabric=read_fabric(surface.root),
        software=Software(
            system=parse_os_release(read_text(surface.root / "etc/os-release")),
            kernel=surface.kernel,
            python=platform.python_version(),
            torch=read_version("torch"),
            engine=read_engine(),
            nvidia_driver=nvidia.driver,
            cuda_driver=nvidia.cuda_driver,
            docker=read_docker(surface.run),
            openmp_library=find_openmp(surface.prefix),
            packages=tuple(name for name in OPTIONAL_PACKAGES if read_version(name)),
        ),
        remarks=(*nvidia.remarks, *((_UNREAD_GPU,) if unread else ())),
        unread_gpu=unread,
    )


def _read_kernel(surface: ProbeSources) -> tuple[Processor, Memory]:
    limits = read_cgroup(surface.root)
    nodes = parse_cpu_list(read_text(surface.root / "sys/devices/system/node/online") or "")
    processor = parse_cpuinfo(
        read_text(surface.root / "proc/cpuinfo") or "",
        architecture=surface.architecture,
        usable_threads=surface.usable_threads,
        numa_nodes=None if nodes is None else len(nodes),
        usable_cpus=surface.usable_cpus,
        quota_cpus=limits.cpus,
    )
    meminfo = read_text(surface.root / "proc/meminfo") or ""
    return processor, parse_meminfo(
        meminfo, limit_bytes=limits.memory_bytes, left_bytes=limits.memory_left_bytes
    )


def _name_process(surface: ProbeSources, container: Container | None, pid: int) -> str | None:
    """Return a process's name, which anybody may choose, without what a terminal would obey.

    In a container NVML's ids may be those of another namespace.
    """
    if container != "none":
        return None
    name = (read_text(surface.root / f"proc/{pid}/comm") or "").strip()
    return "".join(sign if sign.isprintable() else "?" for sign in name) or None
