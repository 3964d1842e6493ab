"""Which GPUs CUDA shows: `CUDA_VISIBLE_DEVICES` and MIG, neither of which NVML takes notice of.

Entries are indices, UUIDs or beginnings of one; CUDA stops at the first entry that it cannot find,
and shows nothing if one is repeated. Of GPUs in MIG mode it shows one slice, and no other GPU
beside it (NVIDIA's MIG user guide, "CUDA Device Enumeration").
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_HIDDEN = "-1"
_SLICE = "MIG-"


@dataclass(frozen=True, slots=True)
class Slice:
    """A MIG slice: its NVML handle and its UUID."""

    handle: Any
    uuid: str | None


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as NVML lists it; `slices` is None unless MIG mode is on."""

    index: int
    handle: Any
    uuid: str | None
    name: str | None
    slices: tuple[Slice, ...] | None = None


@dataclass(frozen=True, slots=True)
class Visible:
    """The visible GPUs in CUDA's order, or one slice of one; with remarks.

    `is_slice` without a `slice`: a MIG slice is selected, and neither it nor its GPU is known.
    """

    devices: tuple[Device, ...]
    remarks: tuple[str, ...] = ()
    is_slice: bool = False
    slice: Slice | None = None


def select_visible(environment: Mapping[str, str], devices: Sequence[Device]) -> Visible:
    value = environment.get(VARIABLE)
    if value is not None and devices and value.strip().startswith(_SLICE):
        return _select_slice(value.split(",")[0].strip(), devices)
    chosen: list[Device] = list(devices)
    remarks: list[str] = []
    if value is not None and devices:
        chosen, remarks = _select_devices(value, devices)
    return _look_into(chosen, [*remarks, *_remark_on_order(environment, devices)])


def _select_slice(uuid: str, devices: Sequence[Device]) -> Visible:
    listed = [
        (device, part)
        for device in devices
        for part in device.slices or ()
        if part.uuid is not None and part.uuid.startswith(uuid)
    ]
    if len(listed) == 1:
        ((device, part),) = listed
        return Visible((device,), (f"{VARIABLE} shows {part.uuid}",), True, part)
    return Visible((devices[0],), (f"{VARIABLE} names {uuid}, which NVML does not report",), True)


def _select_devices(value: str, devices: Sequence[Device]) -> tuple[list[Device], list[str]]:
    found: list[Device] = []
    remarks: list[str] = []
    for entry in (entry.strip() for entry in value.split(",")):
        device = _find_device(entry, devices)
        if device is None:
            if entry not in ("", _HIDDEN):
                remarks.append(
                    f"{VARIABLE} names {entry}, which does not exist: CUDA ignores what follows"
                )
            break
        if device in found:
            remarks.append(f"{VARIABLE} names {entry} twice: CUDA then shows no device")
            found = []
            break
        found.append(device)
    return found, [*remarks, _describe(found, len(devices))]


def _find_device(entry: str, devices: Sequence[Device]) -> Device | None:
    if entry.isdecimal():
        return devices[int(entry)] if int(entry) < len(devices) else None
    if not entry.startswith("GPU-"):
        return None
    matches = [one for one in devices if one.uuid is not None and one.uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _describe(found: Collection[Device], count: int) -> str:
    if not found:
        return f"{VARIABLE} hides every accelerator ({count} here)"
    shown = ", ".join(str(device.index) for device in found)
    return f"{VARIABLE} shows {len(found)} of {count} accelerators: {shown}"


def _look_into(chosen: Sequence[Device], remarks: Sequence[str]) -> Visible:
    """Replace GPUs in MIG mode by the one slice that CUDA shows of them."""
    sliced = [device for device in chosen if device.slices is not None]
    if not sliced:
        return Visible(tuple(chosen), tuple(remarks))
    slices = [(device, part) for device in sliced for part in device.slices or ()]
    if not slices:
        names = ", ".join(str(device.index) for device in sliced)
        empty = f"accelerator {names} is in MIG mode without a slice: nvidia-smi mig -cgi makes one"
        return Visible(tuple(one for one in chosen if one.slices is None), (*remarks, empty))
    device, part = slices[0]
    others = ", ".join(other.uuid or "unknown" for _, other in slices[1:]) or "none"
    note = f"MIG mode is on: CUDA shows the slice {part.uuid or 0} of accelerator {device.index}; "
    return Visible(
        (device,), (*remarks, f"{note}{VARIABLE} can select another: {others}"), True, part
    )


def _remark_on_order(environment: Mapping[str, str], devices: Sequence[Device]) -> list[str]:
    """Warn that CUDA may number unequal devices differently than NVML does."""
    alike = len({device.name for device in devices}) < 2
    if alike or environment.get(ORDER_VARIABLE) == "PCI_BUS_ID":
        return []
    return [
        "the accelerators differ, and CUDA counts the fastest first: "
        f"{ORDER_VARIABLE}=PCI_BUS_ID makes it count as listed here"
    ]
