"""A `Host` as text: one fact per line, unknown facts named as such."""

from slipstream.hardware.host import Accelerator, Docker, FabricPort, Host
from slipstream.reporting.tables import align
from slipstream.units import UNKNOWN, show_bandwidth, show_bytes, show_number


def render_host(host: Host) -> str:
    """Return the facts of a host in two columns."""
    rows = [
        ("machine", host.product or UNKNOWN),
        ("system", _describe_system(host)),
        *_describe_accelerators(host.accelerators),
        ("processor", _describe_processor(host)),
        ("", " ".join(host.processor.features) or "no vector features reported"),
        ("memory", _describe_memory(host)),
        ("model disk", f"{show_bytes(host.model_disk.free_bytes)} free at {host.model_disk.path}"),
        *_describe_fabric(host.fabric),
        ("container", host.container or UNKNOWN),
        ("engine", _describe_engine(host)),
        ("python", f"{host.software.python}, torch {host.software.torch or 'not installed'}"),
        ("docker", _describe_docker(host.software.docker)),
        ("taken", f"{host.taken_at:%Y-%m-%d %H:%M} UTC, {host.origin}"),
        *(("remark", remark) for remark in host.remarks),
    ]
    return "\n".join(align(rows))


def _describe_system(host: Host) -> str:
    name = host.software.system or host.platform
    return f"{name}, kernel {host.software.kernel or UNKNOWN}, {host.processor.architecture}"


def _describe_accelerators(accelerators: tuple[Accelerator, ...]) -> list[tuple[str, str]]:
    if not accelerators:
        return [("accelerator", "none found")]
    rows = []
    for accelerator in accelerators:
        capability = accelerator.compute_capability or UNKNOWN
        rows += [
            ("accelerator", f"{accelerator.index}: {accelerator.name}, capability {capability}"),
            (
                "",
                f"{show_bytes(accelerator.memory_total_bytes)} "
                f"{accelerator.memory_kind or UNKNOWN} memory, "
                f"{show_bytes(accelerator.memory_available_bytes)} available, "
                f"{show_bandwidth(accelerator.memory_bandwidth_bytes_per_s)}",
            ),
            (
                "",
                f"power {show_number(accelerator.power_watts, 'W')} of "
                f"{show_number(accelerator.power_limit_watts, 'W')}, "
                f"clock {show_number(accelerator.clock_mhz, 'MHz')} of "
                f"{show_number(accelerator.clock_limit_mhz, 'MHz')}",
            ),
        ]
    return rows


def _describe_processor(host: Host) -> str:
    processor = host.processor
    return (
        f"{processor.model or UNKNOWN}, cores {show_number(processor.cores)}, "
        f"usable threads {show_number(processor.usable_threads)}, "
        f"NUMA nodes {show_number(processor.numa_nodes)}"
    )


def _describe_memory(host: Host) -> str:
    memory = host.memory
    line = f"{show_bytes(memory.total_bytes)}, {show_bytes(memory.available_bytes)} available"
    if memory.limit_bytes is not None:
        line += f", limited to {show_bytes(memory.limit_bytes)}"
    return line


def _describe_fabric(ports: tuple[FabricPort, ...]) -> list[tuple[str, str]]:
    states = {True: "active", False: "down", None: UNKNOWN}
    return [
        (
            "fabric",
            f"{port.device} port {port.port}, {states[port.active]}, "
            f"{show_number(port.rate_gbit_per_s, 'Gbit/s')}",
        )
        for port in ports
    ]


def _describe_engine(host: Host) -> str:
    software = host.software
    engine = "not installed"
    if software.engine is not None:
        engine = f"{software.engine.distribution} {software.engine.version}"
    if not host.accelerators:
        return engine
    driver = f"NVIDIA driver {software.nvidia_driver or UNKNOWN}"
    return f"{engine}, {driver}, CUDA up to {software.cuda_driver or UNKNOWN}"


def _describe_docker(docker: Docker | None) -> str:
    if docker is None:
        return "not installed"
    if docker.server_version is None:
        return f"client {docker.client_version or UNKNOWN}, no server answers"
    runtimes = {True: "with", False: "without", None: "unknown about"}
    return f"{docker.server_version}, {runtimes[docker.nvidia_runtime]} the NVIDIA runtime"
