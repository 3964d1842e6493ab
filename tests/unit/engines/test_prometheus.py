"""Metrics are read in the form in which engines print them."""

import pytest

from slipstream.engines.prometheus import (
    MetricSample,
    add_up,
    list_accepted,
    parse_metrics,
    read_figures,
)

PAGE = r"""# HELP vllm:drafts_total Number of drafts.
# TYPE vllm:drafts_total counter
vllm:drafts_total{engine="0",model_name="a {target}, \"quoted\" \\ x"} 7.0
vllm:drafts_total{engine="1",model_name="b"} 1.2e+03 1794730948426
process_open_fds 12
vllm:odd{a="b"} many
vllm:none{} NaN
vllm:bucket{le="+Inf"} 5
"""


def test_every_line_is_a_sample_with_its_labels() -> None:
    assert list(parse_metrics(PAGE))[:3] == [
        MetricSample(
            "vllm:drafts_total", {"engine": "0", "model_name": 'a {target}, "quoted" \\ x'}, 7.0
        ),
        MetricSample("vllm:drafts_total", {"engine": "1", "model_name": "b"}, 1200.0),
        MetricSample("process_open_fds", {}, 12.0),
    ]


def test_parts_are_added_up_and_what_is_no_number_is_left_out() -> None:
    assert add_up(parse_metrics(PAGE)) == {
        "vllm:drafts_total": 1207.0,
        "process_open_fds": 12.0,
        "vllm:bucket": 5.0,
    }


@pytest.mark.parametrize("text", ["", "no metrics here", "{}", "<html></html>", 'a{b="c 1'])
def test_other_text_has_no_samples(text: str) -> None:
    assert add_up(parse_metrics(text)) == {}


def test_a_metric_that_a_version_renamed_is_one_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("vllm:old_total", "vllm:new_total")
    monkeypatch.setattr(
        "slipstream.engines.prometheus.METRICS",
        {"cache_hits": names, "accepted_by_position": names},
    )
    for page in ("{0} 3\n", "{1} 3\n", "{0} 3\n{1} 3\n"):
        lines = page.format(*(f'{name}{{position="0"}}' for name in names))
        samples = list(parse_metrics(lines))
        assert read_figures(samples)["cache_hits"] == 3
        assert list_accepted(samples) == (3,)
