"""NVIDIA accelerators through NVML, the driver's own library.

The one surprise: on unified memory (GB10, Jetson Thor) NVML answers 'not supported' to the
memory query, and some drivers answer with a number that means nothing, so there the
figures come from the system's memory. https://github.com/XuehaiPan/nvitop/pull/208
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from slipstream.hardware.host import Accelerator, Memory, MemoryKind
from slipstream.hardware.visible_devices import VARIABLE, remark_on_order, select_visible

UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S = {
    # NVML is silent on these: NVIDIA's data sheets of DGX Spark and Jetson T5000.
    "NVIDIA GB10": 273_000_000_000,
    "NVIDIA Thor": 273_000_000_000,
}

Answer = TypeVar("Answer")


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
        devices = [nvml.nvmlDeviceGetHandleByIndex(index) for index in _indices(nvml)]
        uuids = [_ask(nvml, partial(nvml.nvmlDeviceGetUUID, device)) for device in devices]
        names = [_ask(nvml, partial(nvml.nvmlDeviceGetName, device)) for device in devices]
        visible = select_visible(environment.get(VARIABLE), uuids)
        readings = [_read_accelerator(nvml, index, memory) for index in visible.indices]
        if visible.is_slice:
            readings = [(_forget_size(accelerator), []) for accelerator, _ in readings]
        cuda = _ask(nvml, nvml.nvmlSystemGetCudaDriverVersion_v2)
        return NvidiaPart(
            accelerators=tuple(accelerator for accelerator, _ in readings),
            driver=_ask(nvml, nvml.nvmlSystemGetDriverVersion),
            cuda_driver=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            remarks=(
                *visible.remarks,
                *remark_on_order(environment, names),
                *(remark for _, remarks in readings for remark in remarks),
            ),
        )
    finally:
        nvml.nvmlShutdown()


def _indices(nvml: Any) -> range:
    return range(_ask(nvml, nvml.nvmlDeviceGetCount) or 0)


def _forget_size(accelerator: Accelerator) -> Accelerator:
    """Return the accelerator without figures of the whole device, for a MIG slice."""
    return accelerator.model_copy(
        update={
            "memory_total_bytes": None,
            "memory_available_bytes": None,
            "memory_bandwidth_bytes_per_s": None,
        }
    )


def _read_accelerator(nvml: Any, index: int, memory: Memory) -> tuple[Accelerator, list[str]]:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    name = _ask(nvml, lambda: nvml.nvmlDeviceGetName(device)) or "unnamed NVIDIA accelerator"
    kind, total, available, remarks = _read_memory(nvml, device, index, name, memory)
    capability = _ask(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(device))
    power = _ask(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(device))
    power_limit = _ask(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(device))
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
        clock_mhz=_ask(nvml, lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)),
        clock_limit_mhz=_ask(
            nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)
        ),
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
        remark = f"accelerator {index}: NVML does not support the memory query, taken as unified"
        return *unified, [remark]
    except nvml.NVMLError as fault:
        return None, None, None, [f"accelerator {index}: memory unknown, NVML says '{fault}'"]
    return "discrete", info.total, info.free, []


def _read_bandwidth(nvml: Any, device: Any, name: str) -> int | None:
    """Return the bandwidth: bus width times the highest memory clock, two transfers per clock."""
    if (published := UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S.get(name)) is not None:
        return published
    bus_bits = _ask(nvml, lambda: nvml.nvmlDeviceGetMemoryBusWidth(device))
    clock_mhz = _ask(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_MEM))
    if not bus_bits or not clock_mhz:
        return None
    return int(bus_bits) // 8 * int(clock_mhz) * 1_000_000 * 2


def _ask(nvml: Any, question: Callable[[], Answer]) -> Answer | None:
    """Return an answer of NVML, None if it refuses."""
    try:
        return question()
    except nvml.NVMLError:
        return None
