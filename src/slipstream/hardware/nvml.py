"""NVIDIA accelerators through NVML, the driver's own library.

The one surprise: on unified memory (GB10, Jetson Thor) NVML answers 'not supported' to the
memory query, and some drivers answer with a number that means nothing, so there the
figures come from the system's memory. https://github.com/XuehaiPan/nvitop/pull/208

`CUDA_VISIBLE_DEVICES` is read as CUDA reads it: entries are indices, UUIDs or beginnings of one;
CUDA stops at the first entry that it cannot find, and shows nothing if one is repeated.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slipstream.hardware.host import Accelerator, Memory, MemoryKind

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_HIDDEN = "-1"
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
        visible = _select_visible(environment.get(VARIABLE), uuids)
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
                *_remark_on_order(environment, names),
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


@dataclass(frozen=True, slots=True)
class _Visible:
    """The visible devices by NVML's index, in CUDA's order, with remarks.

    `is_slice`: a MIG instance is selected, and its parent GPU is unknown.
    """

    indices: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    is_slice: bool = False


def _select_visible(value: str | None, uuids: Sequence[str | None]) -> _Visible:
    """Choose among the devices, in NVML's order with their UUIDs; None for the value shows all."""
    every = tuple(range(len(uuids)))
    if value is None or not every:
        return _Visible(every)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith("MIG-"):
        remark = f"{VARIABLE} names the MIG device {entries[0]}: its memory could not be read"
        return _Visible(every[:1], (remark,), is_slice=True)
    found: list[int] = []
    remarks: list[str] = []
    for entry in entries:
        index = _find_device(entry, uuids)
        if index is None:
            if entry not in ("", _HIDDEN):
                remarks.append(f"{VARIABLE} names {entry}, which is not here: CUDA stops there")
            break
        if index in found:
            remarks.append(f"{VARIABLE} names {entry} twice: CUDA shows nothing then")
            found = []
            break
        found.append(index)
    remarks.append(_describe_visible(found, len(every)))
    return _Visible(tuple(found), tuple(remarks))


def _remark_on_order(environment: Mapping[str, str], names: Collection[str | None]) -> list[str]:
    """Warn that CUDA may number unequal devices differently than NVML does."""
    if len(set(names)) < 2 or environment.get(ORDER_VARIABLE) == "PCI_BUS_ID":
        return []
    return [
        "the accelerators differ, and CUDA counts the fastest first: "
        f"{ORDER_VARIABLE}=PCI_BUS_ID makes it count as here"
    ]


def _find_device(entry: str, uuids: Sequence[str | None]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    if not entry.startswith("GPU-"):
        return None
    matches = [at for at, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _describe_visible(found: list[int], count: int) -> str:
    if not found:
        return f"{VARIABLE} hides every accelerator ({count} here)"
    shown = ", ".join(map(str, found))
    return f"{VARIABLE} shows {len(found)} of {count} accelerators: {shown}"
