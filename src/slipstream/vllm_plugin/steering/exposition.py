"""The core's report on vLLM's /metrics, as it is at each scrape.

Labels are bounded: six kinds, and as many positions as a draft may have tokens.
"""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING

from slipstream.steering.state import SteeringState

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_GAUGES = {
    "draft_length": ("draft_length", "Draft length chosen for the current batch."),
    "longest": ("longest_draft_length", "Longest draft length that may be chosen."),
    "steers": ("steers", "Whether the draft length is chosen while the engine runs."),
    "plain_pays": ("plain_pays", "Whether a step without drafts is the fastest for this batch."),
    "step_seconds": ("step_seconds", "Mean seconds per engine step."),
    "tokens_per_second": ("tokens_per_second", "Generated tokens per second, over ten seconds."),
}
_COUNTERS = {
    "requests": ("requests", "Requests that ended, by kind of content."),
    "tokens": ("tokens", "Generated tokens, by kind of content."),
    "steps": ("steps", "Engine steps of requests, by kind of content."),
    "drafts": ("drafts", "Drafts, by kind of content."),
    "drafted": ("drafted_tokens", "Drafted tokens, by kind of content."),
    "copied": (
        "copied_tokens",
        "Draft tokens copied from a request's own tokens, by kind of content.",
    ),
    "copied_accepted": ("copied_accepted_tokens", "Accepted copied tokens, by kind of content."),
}


class SteeringCollector:
    """A collector for prometheus_client; `read` returns the report."""

    read: Callable[[], SteeringState | None] = staticmethod(lambda: None)

    def describe(self) -> list["Metric"]:
        """Return nothing, so that registering reads no report."""
        return []

    def collect(self) -> Iterator["Metric"]:
        """Yield the metrics of the report, none without one."""
        if (report := self.read()) is not None:
            yield from _list_gauges(report)
            yield from _list_counters(report)


def _list_gauges(report: SteeringState) -> Iterator["Metric"]:
    from prometheus_client.core import GaugeMetricFamily

    for field, (name, text) in _GAUGES.items():
        if (value := getattr(report, field)) is not None:
            yield GaugeMetricFamily(f"slipstream_steering_{name}", text, value=float(value))


def _list_counters(report: SteeringState) -> Iterator["Metric"]:
    from prometheus_client.core import CounterMetricFamily

    for field, (name, text) in _COUNTERS.items():
        family = CounterMetricFamily(f"slipstream_ledger_{name}", text, labels=("kind",))
        for kind, counts in report.kinds.items():
            family.add_metric((kind,), getattr(counts, field))
        yield family
    by_position = CounterMetricFamily(
        "slipstream_ledger_accepted_tokens",
        "Accepted draft tokens, by kind of content and position in the draft.",
        labels=("kind", "position"),
    )
    for kind, counts in report.kinds.items():
        for position, accepted in enumerate(counts.accepted, start=1):
            by_position.add_metric((kind, str(position)), accepted)
    yield by_position


def expose_steering(read: Callable[[], SteeringState | None]) -> None:
    """Add the report to this process's /metrics."""
    _register().read = read


@cache
def _register() -> SteeringCollector:
    """Register the collector, which a process can do only once."""
    from prometheus_client import REGISTRY

    collector = SteeringCollector()
    REGISTRY.register(collector)
    return collector
