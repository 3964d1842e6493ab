"""NVML without a driver: a machine is a list of devices, and a device is what it answers."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any


class FakeError(Exception):
    """Stands for pynvml.NVMLError."""


class FakeNotSupported(FakeError):
    """Stands for pynvml.NVMLError_NotSupported."""


@dataclass
class FakeNvml:
    """Answers like the pynvml module; what a device does not list is not supported."""

    devices: list[dict[str, Any]]
    driver: str = "580.173.02"
    cuda: int = 13000
    failure: str | None = None
    open_sessions: int = 0
    NVMLError: type[Exception] = field(default=FakeError)
    NVMLError_NotSupported: type[Exception] = field(default=FakeNotSupported)
    NVML_CLOCK_SM: str = "sm"
    NVML_CLOCK_MEM: str = "memory"
    NVML_P2P_CAPS_INDEX_NVLINK: int = 4
    NVML_P2P_STATUS_OK: int = 0

    def nvmlInit(self) -> None:
        if self.failure:
            raise FakeError(self.failure)
        self.open_sessions += 1

    def nvmlShutdown(self) -> None:
        self.open_sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:
        return self.cuda

    def nvmlDeviceGetCount(self) -> int:
        return len(self.devices)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> dict[str, Any]:
        return self.devices[index]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def answer(device: dict[str, Any], *about: Any) -> Any:
            key = "-".join([name.removeprefix("nvmlDeviceGet"), *map(str, about)])
            found = device.get(key, FakeNotSupported("Not Supported"))
            if isinstance(found, Exception):
                raise found
            return found

        return answer


GB10: dict[str, Any] = {
    "Name": "NVIDIA GB10",
    "CudaComputeCapability": (12, 1),
    "PowerUsage": 11170,
}

H100: dict[str, Any] = {
    "Name": "NVIDIA H100 80GB HBM3",
    "CudaComputeCapability": (9, 0),
    "MemoryInfo": SimpleNamespace(total=81559 * 2**20, free=81079 * 2**20),
    "MemoryBusWidth": 5120,
    "MaxClockInfo-memory": 2619,
    "MaxClockInfo-sm": 1980,
    "ClockInfo-sm": 345,
    "PowerUsage": 70000,
    "EnforcedPowerLimit": 700000,
}
