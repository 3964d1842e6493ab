"""The text that engines print on /metrics, in Prometheus' format, as samples.

A label's value is quoted and may hold anything, braces too: a model's name is one.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import NamedTuple

# Every figure by the names that engines, and versions of one, have for it.
METRICS: Mapping[str, tuple[str, ...]] = {
    "prompt_tokens": ("vllm:prompt_tokens_total", "sglang:prompt_tokens_total"),
    "output_tokens": ("vllm:generation_tokens_total", "sglang:generation_tokens_total"),
    "cache_queries": ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total"),
    "cache_hits": ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total"),
    "preemptions": ("vllm:num_preemptions_total", "sglang:num_retracted_requests_total"),
    "drafts": ("vllm:spec_decode_num_drafts_total",),
    "drafted": ("vllm:spec_decode_num_draft_tokens_total",),
    "accepted": ("vllm:spec_decode_num_accepted_tokens_total",),
    "accepted_by_position": ("vllm:spec_decode_num_accepted_tokens_per_pos_total",),
    "running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "latest_tokens_per_step": ("sglang:spec_accept_length",),
    "kv_usage": ("vllm:kv_cache_usage_perc",),
}
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


def read_figures(samples: Iterable[MetricSample]) -> dict[str, float]:
    """Return the figures that an engine reports; of two names for one the first counts."""
    totals = add_up(samples)
    found = {
        figure: next((totals[name] for name in names if name in totals), None)
        for figure, names in METRICS.items()
    }
    return {figure: value for figure, value in found.items() if value is not None}


def list_accepted(samples: Iterable[MetricSample]) -> tuple[int, ...]:
    """Return the accepted tokens by position in the draft."""
    samples = list(samples)
    for name in METRICS["accepted_by_position"]:
        found = dict[int, float]()
        for sample in samples:
            position = sample.labels.get("position", "")
            if sample.name == name and position.isdecimal() and isfinite(sample.value):
                found[int(position)] = found.get(int(position), 0) + sample.value
        if found:
            return tuple(int(found[position]) for position in sorted(found))
    return ()


def _read_labels(text: str) -> Iterator[tuple[str, str]]:
    for name, quoted in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda sign: "\n" if sign[1] == "n" else sign[1], quoted[1:-1])
