"""The gate's own metrics, on vLLM's /metrics: vLLM serves whatever its process has registered.

With several API processes prometheus_client keeps the values in files that vLLM adds up. Labels
are bounded: routes that the gate knows, ids of keys from the key file, codes of refusals.
"""

import math
import time
from collections import deque
from functools import cache, partial
from pathlib import Path

OTHER = "other"
NOBODY = "none"
MOST_KEYS = 100
SWAP_OUTCOMES = ("swapped", "refused", "swapped_back")
SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
FIRST_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
FIRST_TOKENS_WINDOW_SECONDS = 300.0
MOST_FIRST_TOKENS = 512
BODY_BYTES = tuple(4.0**power for power in range(4, 12))


class Metrics:
    """Counters, gauges and histograms of this process."""

    def __init__(self) -> None:
        # Here, since the gate's modules need nothing but Python; every vLLM brings it.
        from prometheus_client import Counter, Gauge, Histogram

        self._requests = Counter(
            "slipstream_gate_requests",
            "Requests by route, key and status class; answers 'left' and 'failed' are incomplete.",
            ("route", "status", "key"),
        )
        self._refusals = Counter(
            "slipstream_gate_refusals", "Requests that the gate refused.", ("reason", "key")
        )
        gauge = partial(Gauge, multiprocess_mode="livesum")
        self.in_flight = gauge("slipstream_gate_requests_in_flight", "Requests in the engine.")
        self.waiting = gauge(
            "slipstream_gate_requests_waiting",
            "Requests in the gate: their body is being read, or they wait for a seat.",
        )
        self.connections = gauge("slipstream_gate_connections", "Open connections.")
        self.notes = Gauge(
            "slipstream_run_notes",
            "Number of deviations from the plan, which slipstream status lists.",
            multiprocess_mode="mostrecent",
        )
        self.generation = Gauge(
            "slipstream_drafter_generation",
            "Generation of the drafter that serves; 0 is the drafter of the plan.",
            multiprocess_mode="mostrecent",
        )
        self.body_bytes = Histogram(
            "slipstream_gate_request_body_bytes", "Sizes of request bodies.", buckets=BODY_BYTES
        )
        self._seconds = Histogram(
            "slipstream_gate_request_seconds",
            "Seconds from head to end of answer, of requests that reached the engine.",
            ("route",),
            buckets=SECONDS,
        )
        self._first_seconds = Histogram(
            "slipstream_gate_first_token_seconds",
            "Seconds from a request's head to its stream's first token.",
            ("route",),
            buckets=FIRST_SECONDS,
        )
        self.dropped_lines = Counter(
            "slipstream_gate_access_log_dropped_lines",
            "Lines of the access log that were lost because of a slow or full disk.",
        )
        self.swaps = Counter(
            "slipstream_drafter_swaps", "Requested swaps of the drafter, by outcome.", ("outcome",)
        )
        for outcome in SWAP_OUTCOMES:  # From zero on, so that the first one is an increase.
            self.swaps.labels(outcome)
        self._certificate_end = Gauge(
            "slipstream_gate_certificate_end_seconds",
            "Unix time at which the server's certificate expires; NaN without TLS.",
        )
        self._certificate_end.set(math.nan)
        self._keys: set[str] = set()
        self._first_tokens: deque[tuple[float, float]] = deque(maxlen=MOST_FIRST_TOKENS)

    def watch_certificate(self, file: str) -> None:
        """Show when the certificate in a file ends, which may be replaced at any time."""
        from cryptography.x509 import load_pem_x509_certificate

        def read_end() -> float:
            try:
                pem = Path(file).read_bytes()
                return load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()
            except (OSError, ValueError):
                return 0.0

        self._certificate_end.set_function(read_end)

    def count_request(self, route: str, status: str, key: str) -> None:
        self._requests.labels(route, status, self._bound_key(key)).inc()

    def count_refusal(self, reason: str, key: str) -> None:
        self._refusals.labels(reason, self._bound_key(key)).inc()

    def observe_seconds(self, route: str, seconds: float, first_seconds: float | None) -> None:
        """Observe the duration of the engine's answer, and of a stream's first token."""
        self._seconds.labels(route).observe(seconds)
        if first_seconds is not None:
            self._first_seconds.labels(route).observe(first_seconds)
            self._first_tokens.append((time.monotonic(), first_seconds))

    def summarize_first_tokens(self) -> dict[str, float] | None:
        """Return the median and the 99th percentile of the last minutes' streams."""
        since = time.monotonic() - FIRST_TOKENS_WINDOW_SECONDS
        found = sorted(seconds for ended, seconds in self._first_tokens if ended >= since)
        if not found:
            return None
        count = len(found)
        ranks = {f"p{share}": found[-(-share * count // 100) - 1] for share in (50, 99)}
        return {"streams": count, **ranks}

    def _bound_key(self, key: str) -> str:
        """Return a label for a key: keys come and go, and a label stays."""
        if len(self._keys) < MOST_KEYS:
            self._keys.add(key)
        return (key or NOBODY) if key in self._keys else OTHER


@cache
def open_metrics() -> Metrics:
    """Return the metrics of this process, which can be registered only once."""
    return Metrics()
