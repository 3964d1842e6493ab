"""The text that engines print on /metrics, in Prometheus' format, as samples.

A label's value is quoted and may hold anything, braces too: a model's name is one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"^([A-Za-z_:][\w:]*)(?:\{{((?:[^\"}}]|{_QUOTED})*)\}})?[ \t]+(\S+)", re.MULTILINE
)
_LABEL = re.compile(rf"(\w+)=({_QUOTED})")
_ESCAPED = re.compile(r"\\(.)")


class MetricSample(NamedTuple):
    """One line: a metric's name, its labels and its value."""

    name: str
    labels: Mapping[str, str]
    value: float


def parse_metrics(text: str) -> Iterator[MetricSample]:
    """Yield the samples of a page of metrics; comments and non-numbers are skipped."""
    for name, labels, value in _LINE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        yield MetricSample(name, dict(_read_labels(labels)), number)


def add_up(samples: Iterable[MetricSample]) -> dict[str, float]:
    """Add up each metric over its labels: an engine's parts report one by one."""
    totals: dict[str, float] = {}
    for sample in samples:
        if isfinite(sample.value):
            totals[sample.name] = totals.get(sample.name, 0) + sample.value
    return totals


def _read_labels(text: str) -> Iterator[tuple[str, str]]:
    for name, quoted in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda sign: "\n" if sign[1] == "n" else sign[1], quoted[1:-1])
