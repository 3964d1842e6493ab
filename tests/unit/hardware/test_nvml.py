"""Accelerators are read through NVML, and what it will not say stays unknown."""

from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.hardware import load_host
from slipstream.hardware.host import Memory
from slipstream.hardware.nvml import NvidiaPart, read_nvidia
from tests.unit.hardware.fake_nvml import GB10, H100, FakeError, FakeNvml

SYSTEM = Memory(
    total_bytes=127600748 * 1024,
    available_bytes=118566368 * 1024,
    swap_bytes=None,
    limit_bytes=None,
)


def test_a_gb10_is_read_as_the_captured_one() -> None:
    seen = read_nvidia(FakeNvml([GB10]), SYSTEM, {})
    captured = load_host("gb10")
    assert seen.accelerators == captured.accelerators
    assert seen.driver == captured.software.nvidia_driver
    assert seen.cuda_driver == captured.software.cuda_driver
    assert seen.remarks == captured.remarks


def test_an_h100_is_read_as_the_reconstructed_one() -> None:
    seen = read_nvidia(FakeNvml([H100]), SYSTEM, {})
    assert seen.accelerators == load_host("h100").accelerators
    assert seen.remarks == ()


@pytest.mark.parametrize(
    ("device", "kind", "total", "remark"),
    [
        # A driver that gives a GB10 a number is not believed.
        (GB10 | {"MemoryInfo": H100["MemoryInfo"]}, "unified", SYSTEM.total_bytes, "shares the"),
        ({"Name": "NVIDIA N1X"}, "unified", SYSTEM.total_bytes, "does not support the memory"),
        (H100 | {"MemoryInfo": FakeError("GPU is lost")}, None, None, "GPU is lost"),
    ],
)
def test_a_memory_that_nvml_does_not_tell_is_the_systems_or_unknown_and_says_so(
    device: dict[str, Any], kind: str | None, total: int | None, remark: str
) -> None:
    seen = read_nvidia(FakeNvml([device]), SYSTEM, {})
    (accelerator,) = seen.accelerators
    assert (accelerator.memory_kind, accelerator.memory_total_bytes) == (kind, total)
    assert remark in seen.remarks[0]


def test_what_nvml_does_not_answer_is_null() -> None:
    (accelerator,) = read_nvidia(FakeNvml([{"Name": "NVIDIA X"}]), SYSTEM, {}).accelerators
    assert accelerator.compute_capability is None
    assert accelerator.memory_bandwidth_bytes_per_s is None
    assert accelerator.power_watts is None
    assert accelerator.clock_limit_mhz is None


def test_no_driver_is_a_remark_and_not_a_failure() -> None:
    seen = read_nvidia(FakeNvml([], failure="Driver Not Loaded"), SYSTEM, {})
    assert seen.accelerators == ()
    assert seen.driver is None
    assert "Driver Not Loaded" in seen.remarks[0]


def test_nvml_is_closed_again() -> None:
    nvml = FakeNvml([GB10, H100])
    assert len(read_nvidia(nvml, SYSTEM, {}).accelerators) == 2
    assert nvml.open_sessions == 0


UUIDS = ("GPU-aaaa1111", "GPU-aabb2222", "GPU-cccc3333")


def make_device(number: int) -> dict[str, Any]:
    size = (number + 1) << 30
    return H100 | {"UUID": UUIDS[number], "MemoryInfo": SimpleNamespace(total=size, free=size)}


def see(value: str | None, *devices: dict[str, Any], **environment: str) -> NvidiaPart:
    nvml = FakeNvml(list(devices) or [make_device(number) for number in range(3)])
    named = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    return read_nvidia(nvml, SYSTEM, named | environment)


@pytest.mark.parametrize(
    ("value", "indices", "remark"),
    [
        (None, [0, 1, 2], None),
        # Indices and UUIDs, in their order.
        ("1", [1], "shows 1 of 3 accelerators: 1"),
        ("2,0", [2, 0], "shows 2 of 3 accelerators: 2, 0"),
        (" 2 , 1 ", [2, 1], "shows 2 of 3 accelerators: 2, 1"),
        ("GPU-cccc3333", [2], "shows 1 of 3 accelerators: 2"),
        ("GPU-cc,GPU-aaaa", [2, 0], "shows 2 of 3 accelerators: 2, 0"),
        ("", [], "hides every accelerator (3 here)"),
        ("-1", [], "hides every accelerator (3 here)"),
        ("none", [], "names none, which is not here"),
        # A wrong entry ends the list.
        ("1,7,0", [1], "names 7, which is not here"),
        ("1,-1,0", [1], "shows 1 of 3"),
        ("0,GPU-dd", [0], "names GPU-dd, which is not here"),
        ("GPU-aa", [], "names GPU-aa, which is not here"),
        ("1,1", [], "names 1 twice"),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(
    value: str | None, indices: list[int], remark: str | None
) -> None:
    seen = see(value)
    assert [accelerator.index for accelerator in seen.accelerators] == indices
    assert bool(seen.remarks) is (remark is not None)
    assert remark is None or seen.remarks[0].startswith(f"CUDA_VISIBLE_DEVICES {remark}")
    assert indices or seen.remarks[-1].endswith("hides every accelerator (3 here)")


def test_the_memory_of_a_mig_slice_is_unknown() -> None:
    seen = see("MIG-83df3f50")
    (accelerator,) = seen.accelerators
    assert accelerator.memory_total_bytes is None
    assert accelerator.memory_available_bytes is None
    assert "MIG-83df3f50: its memory could not be read" in seen.remarks[0]


def test_unlike_accelerators_may_be_numbered_otherwise_by_cuda() -> None:
    devices = (make_device(0), make_device(1) | {"Name": "NVIDIA L4"})
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in see(None, *devices).remarks[0]
    assert see(None, *devices, CUDA_DEVICE_ORDER="PCI_BUS_ID").remarks == ()
