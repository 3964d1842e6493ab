"""Whether the engine is ready or stuck, by what it generates and not by its health check.

vLLM answers /health with 200 while its core is dead. A probe is a generation of one token.
It waits like any request, so one that fails is as good as a request in flight: an engine
that froze while idle is found too.
"""

from dataclasses import dataclass, field

from slipstream.hardware.host import Host
from slipstream.hardware.processor import parse_meminfo
from slipstream.units import show_bytes

READY_WITHIN_SECONDS = 30.0
STUCK_AFTER_SECONDS = 60.0
STUCK_AFTER_PREFILLS = 3
FAILED_PROBES = 2
PROBE_EVERY_SECONDS = 10.0
# A first long prompt must not look like a hang: this is slow even for a CPU.
UNKNOWN_PREFILL_TOKENS_PER_S = 250.0
LEAST_AVAILABLE_BYTES = 6 << 30
WATCHED_BELOW_BYTES = 15 << 30
FASTEST_FALL_BYTES_PER_S = 2 << 30
LOOK_EVERY_SECONDS = 1.0
# A timer that is a little early still counts; a fall over less time than this is noise.
_LEAST_INTERVAL_SECONDS = 0.9


@dataclass(frozen=True, slots=True)
class EngineObservation:
    """What is observed of a running engine.

    A probe that came back is a good generation too; the failed ones are those since then.
    """

    now: float
    in_flight: int
    last_token_at: float | None
    last_good_generation_at: float | None
    failed_probes: int
    longest_prompt_tokens: int = 0
    prefill_tokens_per_s: float | None = None

    @property
    def silent_seconds(self) -> float | None:
        """Return the seconds since the last sign of life, None if there never was one."""
        signs = (self.last_token_at, self.last_good_generation_at)
        seen = [sign for sign in signs if sign is not None]
        return max(0.0, self.now - max(seen)) if seen else None

    @property
    def expected_prefill_seconds(self) -> float:
        """Return how long the prefill of the longest prompt in flight may take without output."""
        rate = self.prefill_tokens_per_s or UNKNOWN_PREFILL_TOKENS_PER_S
        return self.longest_prompt_tokens / rate if self.in_flight else 0.0


@dataclass(frozen=True, slots=True)
class Health:
    """Whether to send requests, whether to replace the engine, and why."""

    ready: bool
    stuck: bool
    reason: str


def assess(seen: EngineObservation) -> Health:
    silent = seen.silent_seconds
    if silent is None:
        return Health(ready=False, stuck=False, reason="nothing generated yet")
    failing = seen.failed_probes >= FAILED_PROBES and silent >= PROBE_EVERY_SECONDS
    if silent <= max(READY_WITHIN_SECONDS, seen.expected_prefill_seconds) and not failing:
        return Health(ready=True, stuck=False, reason=f"last token {silent:.0f} s ago")
    patience = max(STUCK_AFTER_SECONDS, STUCK_AFTER_PREFILLS * seen.expected_prefill_seconds)
    reason = (
        f"no token for {silent:.0f} s, {seen.in_flight} in flight, "
        f"{seen.failed_probes} failed probes"
    )
    return Health(ready=False, stuck=failing and silent > patience, reason=reason)


def should_probe(seen: EngineObservation, last_probe_at: float | None) -> bool:
    """Return whether to probe: a silent engine needs it, a working one shows its tokens."""
    silent = seen.silent_seconds
    if silent is not None and silent < PROBE_EVERY_SECONDS:
        return False
    if silent is not None and seen.in_flight and silent <= seen.expected_prefill_seconds:
        return False
    return last_probe_at is None or seen.now - last_probe_at >= PROBE_EVERY_SECONDS


@dataclass(slots=True)
class MemoryGuard:
    """Ends an engine before a machine with unified memory freezes.

    On GB10 the GPU's memory is the system's. No limit of a cgroup sees it and no killer comes: the
    machine hangs until the power is cut (vllm#46307, vllm#56824). Elsewhere it is inactive.
    """

    unified: bool
    _last: tuple[float, int] | None = field(default=None, init=False)

    def look(self, meminfo: str, now: float) -> str | None:
        """Return why the engine must stop now, if it must."""
        available = parse_meminfo(meminfo, limit_bytes=None).available_bytes
        if not self.unified or available is None:
            return None
        fall = self._measure_fall(available, now)
        if available < LEAST_AVAILABLE_BYTES:
            return (
                f"{show_bytes(available)} of memory are left, "
                f"under {show_bytes(LEAST_AVAILABLE_BYTES)}"
            )
        if available < WATCHED_BELOW_BYTES and fall is not None and fall > FASTEST_FALL_BYTES_PER_S:
            return (
                f"{show_bytes(available)} of memory are left, "
                f"and {show_bytes(int(fall))} more are used every second"
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
    kinds = {accelerator.memory_kind for accelerator in host.accelerators}
    return MemoryGuard(unified="unified" in kinds)
