"""NVIDIA accelerators through NVML, the driver's own library.

The one surprise: on unified memory (GB10, Jetson Thor) NVML answers 'not supported' to the
memory query, and some drivers answer with a number that means nothing, so there the
figures come from the system's memory. https://github.com/XuehaiPan/nvitop/pull/208
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.hardware.host import Accelerator, Link, Memory, MemoryKind, MemoryUser
from slipstream.hardware.visible_devices import Device, Slice, Visible, select_visible

UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S = {
    # NVML is silent on these: NVIDIA's data sheets of DGX Spark and Jetson T5000.
    "NVIDIA GB10": 273_000_000_000,
    "NVIDIA Thor": 273_000_000_000,
}
_UNNAMED = "unnamed NVIDIA accelerator"


@dataclass(frozen=True, slots=True)
class NvidiaPart:
    """Everything that NVML reports about a machine."""

    accelerators: tuple[Accelerator, ...] = ()
    driver: str | None = None
    cuda_driver: str | None = None
    remarks: tuple[str, ...] = ()


def read_nvidia(
    nvml: Any,
    memory: Memory,
    environment: Mapping[str, str],
    name_process: Callable[[int], str | None] = lambda _: None,
) -> NvidiaPart:
    """Ask NVML (the pynvml module, or what answers like it) about every visible accelerator."""
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as fault:
        return NvidiaPart(remarks=(f"no NVIDIA accelerator found: NVML reports '{fault}'",))
    try:
        devices = [_read_device(nvml, at) for at in range(_ask(nvml, "DeviceGetCount") or 0)]
        visible = select_visible(environment, devices)
        readings = [_read_accelerator(nvml, one, visible, memory) for one in visible.devices]
        users = [_read_users(nvml, _handle(one, visible), name_process) for one in visible.devices]
        links = _read_links(nvml, visible)
        cuda = _ask(nvml, "SystemGetCudaDriverVersion_v2")
        return NvidiaPart(
            accelerators=tuple(
                one.model_copy(update={"users": used, "link": link})
                for (one, _), used, link in zip(readings, users, links, strict=True)
            ),
            driver=_ask(nvml, "SystemGetDriverVersion"),
            cuda_driver=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
            remarks=(*visible.remarks, *(remark for _, notes in readings for remark in notes)),
        )
    finally:
        nvml.nvmlShutdown()


def _read_device(nvml: Any, index: int) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    mode = _ask(nvml, "DeviceGetMigMode", handle)
    return Device(
        index=index,
        handle=handle,
        uuid=_ask(nvml, "DeviceGetUUID", handle),
        name=_ask(nvml, "DeviceGetName", handle),
        slices=_read_slices(nvml, handle) if mode and mode[0] else None,
    )


def _read_slices(nvml: Any, handle: Any) -> tuple[Slice, ...]:
    most = _ask(nvml, "DeviceGetMaxMigDeviceCount", handle) or 0
    parts = [_ask(nvml, "DeviceGetMigDeviceHandleByIndex", handle, at) for at in range(most)]
    return tuple(
        Slice(part, _ask(nvml, "DeviceGetUUID", part)) for part in parts if part is not None
    )


def _handle(device: Device, visible: Visible) -> Any:
    return visible.slice.handle if visible.slice else device.handle


def _read_accelerator(
    nvml: Any, device: Device, visible: Visible, memory: Memory
) -> tuple[Accelerator, list[str]]:
    """Read a GPU; of a MIG slice only what is its own, not what is of the whole GPU."""
    handle, name = device.handle, device.name or _UNNAMED
    capability = _ask(nvml, "DeviceGetCudaComputeCapability", handle)
    if visible.is_slice:
        kind, total, free, remarks = _read_slice_memory(nvml, visible.slice)
        name = (visible.slice and _ask(nvml, "DeviceGetName", visible.slice.handle)) or name
        name = name if "MIG" in name else f"{name} MIG"
    else:
        kind, total, free, remarks = _read_memory(nvml, device, name, memory)
    power = None if visible.is_slice else _ask(nvml, "DeviceGetPowerUsage", handle)
    limit = None if visible.is_slice else _ask(nvml, "DeviceGetEnforcedPowerLimit", handle)
    accelerator = Accelerator(
        index=device.index,
        name=name,
        compute_capability=None if capability is None else f"{capability[0]}.{capability[1]}",
        memory_kind=kind,
        memory_total_bytes=total,
        memory_available_bytes=free,
        memory_bandwidth_bytes_per_s=None
        if visible.is_slice
        else _read_bandwidth(nvml, handle, name),
        power_watts=None if power is None else power / 1000,
        power_limit_watts=None if limit is None else limit / 1000,
        clock_mhz=_ask(nvml, "DeviceGetClockInfo", handle, nvml.NVML_CLOCK_SM),
        clock_limit_mhz=_ask(nvml, "DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_SM),
    )
    return accelerator, remarks


def _read_slice_memory(
    nvml: Any, part: Slice | None
) -> tuple[MemoryKind | None, int | None, int | None, list[str]]:
    info = part and _ask(nvml, "DeviceGetMemoryInfo", part.handle)
    if not info:
        return None, None, None, ["the memory of the MIG slice is unknown"]
    return "discrete", info.total, info.free, []


def _read_memory(
    nvml: Any, device: Device, name: str, memory: Memory
) -> tuple[MemoryKind | None, int | None, int | None, list[str]]:
    """Return kind, total and available bytes, and what stood in for NVML's answer."""
    index = device.index
    unified: tuple[MemoryKind, int | None, int | None]
    unified = ("unified", memory.total_bytes, memory.available_bytes)
    if name in UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S:
        return *unified, [f"accelerator {index}: {name} shares the system's memory"]
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(device.handle)
    except nvml.NVMLError_NotSupported:
        remark = f"accelerator {index}: NVML does not support the memory query, treated as unified"
        return *unified, [remark]
    except nvml.NVMLError as fault:
        return None, None, None, [f"accelerator {index}: memory unknown, NVML reports '{fault}'"]
    return "discrete", info.total, info.free, []


def _read_bandwidth(nvml: Any, handle: Any, name: str) -> int | None:
    """Return the bandwidth: bus width times the highest memory clock, two transfers per clock."""
    if (published := UNIFIED_MEMORY_BANDWIDTH_BYTES_PER_S.get(name)) is not None:
        return published
    bus_bits = _ask(nvml, "DeviceGetMemoryBusWidth", handle)
    clock_mhz = _ask(nvml, "DeviceGetMaxClockInfo", handle, nvml.NVML_CLOCK_MEM)
    if not bus_bits or not clock_mhz:
        return None
    return int(bus_bits) // 8 * int(clock_mhz) * 1_000_000 * 2


def _read_users(
    nvml: Any, handle: Any, name_process: Callable[[int], str | None]
) -> tuple[MemoryUser, ...]:
    """List the processes that use an accelerator's memory, the largest first."""
    kinds = ("DeviceGetComputeRunningProcesses", "DeviceGetGraphicsRunningProcesses")
    found = {one.pid: one.usedGpuMemory for kind in kinds for one in _ask(nvml, kind, handle) or ()}
    users = [
        MemoryUser(pid=pid, name=name_process(pid), size_bytes=size) for pid, size in found.items()
    ]
    return tuple(sorted(users, key=lambda one: -(one.size_bytes or 0)))


def _read_links(nvml: Any, visible: Visible) -> list[Link | None]:
    """Return how each GPU reaches all others, by what vLLM asks for (platforms/cuda.py)."""
    handles = [_handle(device, visible) for device in visible.devices]
    return [_read_link(nvml, at, handles) for at in range(len(handles))]


def _read_link(nvml: Any, at: int, handles: Sequence[Any]) -> Link | None:
    kind = nvml.NVML_P2P_CAPS_INDEX_NVLINK
    others = [handle for index, handle in enumerate(handles) if index != at]
    answers = [_ask(nvml, "DeviceGetP2PStatus", handles[at], other, kind) for other in others]
    if not answers or None in answers:
        return None
    return "nvlink" if set(answers) == {nvml.NVML_P2P_STATUS_OK} else "pcie"


def _ask(nvml: Any, question: str, *about: Any) -> Any:
    """Return an answer of NVML, None if it refuses."""
    try:
        return getattr(nvml, f"nvml{question}")(*about)
    except nvml.NVMLError:
        return None
