"""Accelerators are read through NVML, and what it will not say stays unknown."""

from typing import Any

import pytest

from slipstream.hardware.host import Memory
from slipstream.hardware.nvml import read_nvidia
from tests.unit.hardware.fake_nvml import GB10, H100, FakeError, FakeNvml

SYSTEM = Memory(
    total_bytes=127600748 * 1024,
    available_bytes=118566368 * 1024,
    swap_bytes=None,
    limit_bytes=None,
)


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


def test_nvml_is_closed_again() -> None:
    nvml = FakeNvml([GB10, H100])
    assert len(read_nvidia(nvml, SYSTEM, {}).accelerators) == 2
    assert nvml.open_sessions == 0
