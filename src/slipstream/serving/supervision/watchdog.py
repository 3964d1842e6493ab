"""Whether the engine is ready or stuck, by what it generates and not by its health check.

vLLM answers /health with 200 while its core is dead. A probe is a generation of one token.
It waits like any request, so one that fails is as good as a request in flight: an engine
that froze while idle is found too.
"""

from dataclasses import dataclass

READY_WITHIN_SECONDS = 30.0
STUCK_AFTER_SECONDS = 60.0
STUCK_AFTER_PREFILLS = 3
FAILED_PROBES = 2
PROBE_EVERY_SECONDS = 10.0
# A first long prompt must not look like a hang: this is slow even for a CPU.
UNKNOWN_PREFILL_TOKENS_PER_S = 250.0


@dataclass(frozen=True, slots=True)
class Observation:
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


def judge(seen: Observation) -> Health:
    """Return whether an engine generates, is slow or is stuck."""
    silent = seen.silent_seconds
    if silent is None:
        return Health(ready=False, stuck=False, reason="nothing was generated yet")
    failing = seen.failed_probes >= FAILED_PROBES and silent >= PROBE_EVERY_SECONDS
    if silent <= max(READY_WITHIN_SECONDS, seen.expected_prefill_seconds) and not failing:
        return Health(ready=True, stuck=False, reason=f"it generated {silent:.0f} s ago")
    stuck = failing and silent > _find_patience(seen)
    reason = (
        f"no token for {silent:.0f} s, {seen.in_flight} in flight, "
        f"{seen.failed_probes} failed probes"
    )
    return Health(ready=False, stuck=stuck, reason=reason)


def should_probe(seen: Observation, last_probe_at: float | None) -> bool:
    """Return whether to probe: a silent engine needs it, a working one shows its tokens."""
    silent = seen.silent_seconds
    if silent is not None and silent < PROBE_EVERY_SECONDS:
        return False
    if silent is not None and seen.in_flight and silent <= seen.expected_prefill_seconds:
        return False
    return last_probe_at is None or seen.now - last_probe_at >= PROBE_EVERY_SECONDS


def _find_patience(seen: Observation) -> float:
    return max(STUCK_AFTER_SECONDS, STUCK_AFTER_PREFILLS * seen.expected_prefill_seconds)
