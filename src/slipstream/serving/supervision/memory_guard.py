"""Stop the engine before a machine with unified memory freezes.

On GB10 the GPU's memory is the system's. No limit of a cgroup sees it and no killer comes:
the machine hangs until the power is cut (vllm#46307, vllm#56824). Looked at once a second.
"""

from dataclasses import dataclass, field

from slipstream.hardware.host import Host
from slipstream.hardware.processor import parse_meminfo
from slipstream.units import show_bytes

LEAST_AVAILABLE_BYTES = 6 << 30
WATCHED_BELOW_BYTES = 15 << 30
FASTEST_FALL_BYTES_PER_S = 2 << 30
LOOK_EVERY_SECONDS = 1.0
# A timer that is a little early still counts; a fall over less time than this is noise.
_LEAST_INTERVAL_SECONDS = 0.9


@dataclass(frozen=True, slots=True)
class Alarm:
    """The reason why the engine must stop now."""

    available_bytes: int
    reason: str


@dataclass(slots=True)
class MemoryGuard:
    """The available memory at the last check; inactive where memory is not unified."""

    unified: bool
    _last: tuple[float, int] | None = field(default=None, init=False)

    def look(self, meminfo: str, now: float) -> Alarm | None:
        """Compare the kernel's figures with the limits."""
        available = parse_meminfo(meminfo, limit_bytes=None).available_bytes
        if not self.unified or available is None:
            return None
        fall = self._measure_fall(available, now)
        if available < LEAST_AVAILABLE_BYTES:
            return Alarm(
                available,
                f"{show_bytes(available)} of memory are left, "
                f"under {show_bytes(LEAST_AVAILABLE_BYTES)}",
            )
        if available < WATCHED_BELOW_BYTES and fall is not None and fall > FASTEST_FALL_BYTES_PER_S:
            return Alarm(
                available,
                f"{show_bytes(available)} of memory are left, "
                f"and {show_bytes(int(fall))} go every second",
            )
        return None

    def _measure_fall(self, available: int, now: float) -> float | None:
        """Return the bytes lost per second since the last check, None if it was just now."""
        last = self._last
        if last is not None and now - last[0] < _LEAST_INTERVAL_SECONDS:
            return None
        self._last = (now, available)
        return None if last is None else (last[1] - available) / (now - last[0])


def guard_host(host: Host) -> MemoryGuard:
    """Return the memory guard for a machine."""
    kinds = {accelerator.memory_kind for accelerator in host.accelerators}
    return MemoryGuard(unified="unified" in kinds)
