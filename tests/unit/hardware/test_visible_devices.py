"""CUDA_VISIBLE_DEVICES decides which accelerators are in a description, and in which order."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.hardware import Host, read_host
from tests.unit.hardware.fake_nvml import H100, FakeNvml
from tests.unit.hardware.test_probe import make_spark

UUIDS = ("GPU-aaaa1111", "GPU-aabb2222", "GPU-cccc3333")


def make_device(number: int) -> dict[str, Any]:
    size = (number + 1) << 30
    return H100 | {"UUID": UUIDS[number], "MemoryInfo": SimpleNamespace(total=size, free=size)}


def probe(folder: Path, *devices: dict[str, Any], **environment: str) -> Host:
    surface = make_spark(folder)
    nvml = FakeNvml(list(devices) or [make_device(number) for number in range(3)])
    return read_host(
        replace(surface, nvml=nvml, environment={**surface.environment, **environment})
    )


def see(folder: Path, value: str) -> tuple[list[int], tuple[str, ...]]:
    """Return the indices in a description, and its remarks."""
    host = probe(folder, CUDA_VISIBLE_DEVICES=value)
    return [accelerator.index for accelerator in host.accelerators], host.remarks


def test_without_the_variable_all_are_seen(tmp_path: Path) -> None:
    host = probe(tmp_path)
    assert [accelerator.index for accelerator in host.accelerators] == [0, 1, 2]
    assert host.remarks == ()


@pytest.mark.parametrize(
    ("value", "indices"),
    [
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 1 ", [2, 1]),
        ("GPU-cccc3333", [2]),
        ("GPU-cc,GPU-aaaa", [2, 0]),
    ],
)
def test_indices_and_uuids_are_seen_in_their_order(
    value: str, indices: list[int], tmp_path: Path
) -> None:
    found, remarks = see(tmp_path, value)
    assert found == indices
    shown = ", ".join(map(str, indices))
    assert remarks == (f"CUDA_VISIBLE_DEVICES shows {len(indices)} of 3 accelerators: {shown}",)


@pytest.mark.parametrize("value", ["", "-1", "none"])
def test_no_accelerator_is_seen_where_all_are_hidden(value: str, tmp_path: Path) -> None:
    found, remarks = see(tmp_path, value)
    assert found == []
    assert remarks[-1] == "CUDA_VISIBLE_DEVICES hides every accelerator (3 here)"


@pytest.mark.parametrize(
    ("value", "indices", "remark"),
    [
        ("1,7,0", [1], "names 7, which is not here"),
        ("1,-1,0", [1], "shows 1 of 3"),
        ("0,GPU-dd", [0], "names GPU-dd, which is not here"),
        ("GPU-aa", [], "names GPU-aa, which is not here"),
        ("1,1", [], "names 1 twice"),
    ],
)
def test_a_wrong_entry_ends_the_list_as_in_cuda(
    value: str, indices: list[int], remark: str, tmp_path: Path
) -> None:
    found, remarks = see(tmp_path, value)
    assert found == indices
    assert remark in remarks[0]


def test_the_memory_of_a_mig_slice_is_unknown(tmp_path: Path) -> None:
    host = probe(tmp_path, CUDA_VISIBLE_DEVICES="MIG-83df3f50")
    (accelerator,) = host.accelerators
    assert accelerator.memory_total_bytes is None
    assert accelerator.memory_available_bytes is None
    assert "MIG-83df3f50: its memory could not be read" in host.remarks[0]


def test_unlike_accelerators_may_be_numbered_otherwise_by_cuda(tmp_path: Path) -> None:
    devices = (make_device(0), make_device(1) | {"Name": "NVIDIA L4"})
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in probe(tmp_path, *devices).remarks[0]
    assert probe(tmp_path, *devices, CUDA_DEVICE_ORDER="PCI_BUS_ID").remarks == ()
