"""Which accelerators CUDA shows to a program: `CUDA_VISIBLE_DEVICES`, read as CUDA reads it.

Entries are indices, UUIDs or beginnings of one. CUDA stops at the first entry that it cannot
find, and shows nothing if one is repeated. The one surprise: a MIG slice cannot be read here, so
its memory stays unknown.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

VARIABLE = "CUDA_VISIBLE_DEVICES"
ORDER_VARIABLE = "CUDA_DEVICE_ORDER"
_HIDDEN = "-1"


@dataclass(frozen=True, slots=True)
class Visible:
    """The visible devices by NVML's index, in CUDA's order, with remarks.

    `is_slice`: a MIG instance is selected, and its parent GPU is unknown.
    """

    indices: tuple[int, ...]
    remarks: tuple[str, ...] = ()
    is_slice: bool = False


def select_visible(value: str | None, uuids: Sequence[str | None]) -> Visible:
    """Choose among the devices, in NVML's order with their UUIDs; None for the value shows all."""
    every = tuple(range(len(uuids)))
    if value is None or not every:
        return Visible(every)
    entries = [entry.strip() for entry in value.split(",")]
    if entries[0].startswith("MIG-"):
        remark = f"{VARIABLE} names the MIG device {entries[0]}: its memory could not be read"
        return Visible(every[:1], (remark,), is_slice=True)
    found: list[int] = []
    remarks: list[str] = []
    for entry in entries:
        index = _find(entry, uuids)
        if index is None:
            if entry not in ("", _HIDDEN):
                remarks.append(f"{VARIABLE} names {entry}, which is not here: CUDA stops there")
            break
        if index in found:
            remarks.append(f"{VARIABLE} names {entry} twice: CUDA shows nothing then")
            found = []
            break
        found.append(index)
    remarks.append(_describe(found, len(every)))
    return Visible(tuple(found), tuple(remarks))


def remark_on_order(environment: Mapping[str, str], names: Collection[str | None]) -> list[str]:
    """Warn that CUDA may number unequal devices differently than NVML does."""
    if len(set(names)) < 2 or environment.get(ORDER_VARIABLE) == "PCI_BUS_ID":
        return []
    return [
        "the accelerators differ, and CUDA counts the fastest first: "
        f"{ORDER_VARIABLE}=PCI_BUS_ID makes it count as here"
    ]


def _find(entry: str, uuids: Sequence[str | None]) -> int | None:
    if entry.isdecimal():
        return int(entry) if int(entry) < len(uuids) else None
    if not entry.startswith("GPU-"):
        return None
    matches = [at for at, uuid in enumerate(uuids) if uuid is not None and uuid.startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def _describe(found: list[int], count: int) -> str:
    if not found:
        return f"{VARIABLE} hides every accelerator ({count} here)"
    shown = ", ".join(map(str, found))
    return f"{VARIABLE} shows {len(found)} of {count} accelerators: {shown}"
