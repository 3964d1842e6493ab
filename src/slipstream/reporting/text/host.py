"""A `Host` as text: one fact per line, unknown facts named as such."""

from slipstream.hardware.host import Accelerator, Docker, FabricPort, Host, MemoryUser
from slipstream.reporting.report import align
from slipstream.units import UNKNOWN, show_bandwidth, show_bytes, show_number

_STATES = {True: "active", False: "down", None: UNKNOWN}
_LINKS = {"nvlink": "NVLink", "pcie": "PCIe"}
_RUNTIMES = {True: "with", False: "without", None: "unknown about"}


def render_host(host: Host) -> str:
    software, processor, memory = host.software, host.processor, host.memory
    system = f"{software.system or host.platform}, kernel {software.kernel or UNKNOWN}"
    limit = memory.limit_bytes
    limited = "" if limit is None else f", limited to {show_bytes(limit)}"
    quota = processor.quota_cpus
    quota_text = "" if quota is None else f" within a quota of {quota:g} CPUs"
    several = f"{host.machines} x " if host.machines > 1 else ""
    rows = [
        ("machine", f"{several}{host.product or UNKNOWN}"),
        ("system", f"{system}, {processor.architecture}"),
        *(row for one in host.accelerators for row in _describe_accelerator(one)),
        *(() if host.accelerators else (("accelerator", "none found"),)),
        (
            "processor",
            f"{processor.model or UNKNOWN}, cores {show_number(processor.cores)}, "
            f"usable threads {show_number(processor.usable_threads)}{quota_text}, "
            f"NUMA nodes {show_number(processor.numa_nodes)}",
        ),
        ("", " ".join(processor.features) or "no vector features reported"),
        (
            "memory",
            f"{show_bytes(memory.total_bytes)}, {show_bytes(memory.available_bytes)} available"
            f"{limited}",
        ),
        ("model disk", f"{show_bytes(host.model_disk.free_bytes)} free at {host.model_disk.path}"),
        *(("fabric", _describe_port(port)) for port in host.fabric),
        ("container", host.container or UNKNOWN),
        ("engine", _describe_engine(host)),
        ("python", f"{software.python}, torch {software.torch or 'not installed'}"),
        ("docker", _describe_docker(software.docker)),
        ("probed at", f"{host.taken_at:%Y-%m-%d %H:%M} UTC, {host.origin}"),
        *(("remark", remark) for remark in host.remarks),
    ]
    return "\n".join(align(rows))


def _describe_accelerator(one: Accelerator) -> list[tuple[str, str]]:
    sizes = [show_bytes(one.memory_total_bytes), show_bytes(one.memory_available_bytes)]
    power = [show_number(watts, "W") for watts in (one.power_watts, one.power_limit_watts)]
    link = f", linked by {_LINKS[one.link]}" if one.link else ""
    clock = [show_number(mhz, "MHz") for mhz in (one.clock_mhz, one.clock_limit_mhz)]
    return [
        (
            "accelerator",
            f"{one.index}: {one.name}, capability {one.compute_capability or UNKNOWN}",
        ),
        (
            "",
            f"{sizes[0]} {one.memory_kind or UNKNOWN} memory, {sizes[1]} available, "
            f"{show_bandwidth(one.memory_bandwidth_bytes_per_s)}",
        ),
        ("", f"power {power[0]} of {power[1]}, clock {clock[0]} of {clock[1]}{link}"),
        *(("", _describe_user(user)) for user in one.users),
    ]


def _describe_user(user: MemoryUser) -> str:
    return f"{show_bytes(user.size_bytes)} in use by {user.name or UNKNOWN}, pid {user.pid}"


def _describe_port(port: FabricPort) -> str:
    rate = show_number(port.rate_gbit_per_s, "Gbit/s")
    return f"{port.device} port {port.port}, {_STATES[port.active]}, {rate}"


def _describe_engine(host: Host) -> str:
    software, engine = host.software, host.software.engine
    name = f"{engine.distribution} {engine.version}" if engine else "not installed"
    if not host.accelerators:
        return name
    driver = f"NVIDIA driver {software.nvidia_driver or UNKNOWN}"
    return f"{name}, {driver}, CUDA up to {software.cuda_driver or UNKNOWN}"


def _describe_docker(docker: Docker | None) -> str:
    if docker is None:
        return "not installed"
    if docker.server_version is None:
        return f"client {docker.client_version or UNKNOWN}, no server answers"
    return f"{docker.server_version}, {_RUNTIMES[docker.nvidia_runtime]} the NVIDIA runtime"
