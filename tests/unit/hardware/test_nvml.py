"""Accelerators are read through NVML, and what it will not say stays unknown."""

from slipstream.hardware import load_host
from slipstream.hardware.host import Memory
from slipstream.hardware.nvml import read_nvidia
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


def test_a_driver_that_gives_a_gb10_a_number_is_not_believed() -> None:
    boasting = GB10 | {"MemoryInfo": H100["MemoryInfo"]}
    (accelerator,) = read_nvidia(FakeNvml([boasting]), SYSTEM, {}).accelerators
    assert accelerator.memory_kind == "unified"
    assert accelerator.memory_total_bytes == SYSTEM.total_bytes


def test_an_unknown_chip_without_a_memory_query_is_taken_as_unified_and_says_so() -> None:
    seen = read_nvidia(FakeNvml([{"Name": "NVIDIA N1X"}]), SYSTEM, {})
    assert seen.accelerators[0].memory_kind == "unified"
    assert seen.accelerators[0].memory_available_bytes == SYSTEM.available_bytes
    assert "does not support the memory query" in seen.remarks[0]


def test_a_failing_memory_query_leaves_memory_unknown() -> None:
    broken = H100 | {"MemoryInfo": FakeError("GPU is lost")}
    seen = read_nvidia(FakeNvml([broken]), SYSTEM, {})
    accelerator = seen.accelerators[0]
    assert accelerator.memory_kind is None
    assert accelerator.memory_total_bytes is None
    assert "GPU is lost" in seen.remarks[0]


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
