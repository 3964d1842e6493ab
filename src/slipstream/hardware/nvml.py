"""NVIDIA accelerators through NVML, the driver's own library.

The one surprise: on unified memory (GB10, Jetson Thor) NVML answers 'not supported' to the
memory query, and some drivers answer with a number that means nothing, so there the
figures come from the system's memory. https://github.com/XuehaiPan/nvitop/pull/208
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.hardware.host import Accelerator, Memory, MemoryKind
from slipstream.hardware.visible_devices import VARIABLE, remark_on_order, select_visible

UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S = {
    # NVML is silent on these: NVIDIA's data sheets of DGX Spark and Jetson T5000.
    "NVIDIA GB10": 273_000_000_000,
    "NVIDIA Thor": 273_000_000_000,
}


@dataclass(frozen=True, slots=True)
class NvidiaPart:
    """Everything that NVML reports about a machine."""

    accelerators: tuple[Accelerator, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    remarks: tuple[str, ...] = ()


def read_nvidia(nvml: Any, memory: Memory, environment: Mapping[str, str]) -> NvidiaPart:
    """Ask NVML (the pynvml module, or what answers like it) about every visible accelerator.

    NVML itself takes no notice of CUDA's variables in the environment.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as fault:
        return NvidiaPart(remarks=(f"no NVIDIA accelerator seen: NVML says '{fault}'",))
    try:
        count = _ask(nvml, "DeviceGetCount") or 0
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(count)]
        uuids = [_ask(nvml, "DeviceGetUUID", device) for device in devices]
        names = [_ask(nvml, "DeviceGetName", device) for device in devices]
        visible = select_visible(environment.get(VARIABLE), uuids)
        readings = [_read_accelerator(nvml, index, memory) for index in visible.indices]
        if visible.is_slice:
            readings = [(_forget_size(accelerator), []) for accelerator, _ in readings]
        cuda = _ask(nvml, "SystemGetCudaDriverVersion_v2")
        return NvidiaPart(
            accelerators=tuple(accelerator for accelerator, _ in readings),
            driver=_ask(nvml, "SystemGetDriverVersion"),
            cuda_driver=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            remarks=(
                *visible.remarks,
                *remark_on_order(environment, names),
                *(remark for _, remarks in readings for remark in remarks),
            ),
        )
    finally:
        nvml.nvmlShutdown()


def _forget_size(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without figures of the whole device, for a MIG slice."""
    kinds = ("total_bytes", "available_bytes", "bandwidth_bytes_per_s")
    return accelerator.model_copy(update=dict.fromkeys(f"memory_{kind}" for kind in kinds))


def _read_accelerator(nvml: Any, index: int, memory: Memory) -> tuple[Accelerator, list[str]]:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _ask(nvml, "DeviceGetName", device) or "unnamed NVIDIA accelerator"
    kind, total, available, remarks = _read_memory(nvml, device, index, name, memory)
    capability = _ask(nvml, "DeviceGetCudaComputeCapability", device)
    power = _ask(nvml, "DeviceGetPowerUsage", device)
    power_limit = _ask(nvml, "DeviceGetEnforcedPowerLimit", device)
    accelerator = Accelerator(
        index=index,
        name=name,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_kind=kind,
        memory_total_bytes=total,
        memory_available_bytes=available,
        memory_bandwidth_bytes_per_s=_read_bandwidth(nvml, device, name),
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if power_limit is None else power_limit / 1000,
        clock_mhz=_ask(nvml, "DeviceGetClockInfo", device, nvml.NVML_CLOCK_SM),
        clock_limit_mhz=_ask(nvml, "DeviceGetMaxClockInfo", device, nvml.NVML_CLOCK_SM),
    )
    return accelerator, remarks


def _read_memory(
    nvml: Any, device: Any, index: int, name: str, memory: Memory
) -> tuple[MemoryKind | None, int | None, int | None, list[str]]:
    """Return kind, total and available bytes, and what stood in for NVML's answer."""
    unified: tuple[MemoryKind, int | None, int | None]
    unified = ("unified", memory.total_bytes, memory.available_bytes)
    if name in UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S:
        return *unified, [f"accelerator {index}: {name} shares the system's memory"]
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(device)
    except nvml.NVMLError_NotSupported:
        remark = f"accelerator {index}: NVML does not support the memory query, treated as unified"
        return *unified, [remark]
    except nvml.NVMLError as fault:
        return None, None, None, [f"accelerator {index}: memory unknown, NVML says '{fault}'"]
    return "discrete", info.total, info.free, []


def _read_bandwidth(nvml: Any, device: Any, name: str) -> int | None:
    """Return the bandwidth: bus width times the highest memory clock, two transfers per clock."""
    if (published := UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S.get(name)) is not None:
        return published
    bus_bits = _ask(nvml, "DeviceGetMemoryBusWidth", device)
    clock_mhz = _ask(nvml, "DeviceGetMaxClockInfo", device, nvml.NVML_CLOCK_MEM)
    if not bus_bits or not clock_mhz:
        return None
    return int(bus_bits) // 8 * int(clock_mhz) * 1_000_000 * 2


def _ask(nvml: Any, question: str, *about: Any) -> Any:
    """Return an answer of NVML, None if it refuses."""
    try:
        return getattr(nvml, f"nvml{question}")(*about)
    except nvml.NVMLError:
        return None
