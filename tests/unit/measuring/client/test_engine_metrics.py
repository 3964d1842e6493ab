"""An engine's counters are read in the form in which it prints them, and compared in time."""

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import (
    EngineCounts,
    parse_engine_counts,
    read_engine_counts,
)
from slipstream.steering.drafts import Drafts
from tests.unit.measuring.client.stream_server import run_stream_server

LABELS = 'engine="0",model_name="a {target}"'
# As vLLM 0.32 prints it, with a second engine beside the first.
VLLM = f"""\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{{LABELS}}} 7.0
vllm:spec_decode_num_drafts_created{{{LABELS}}} 1.7947309484264154e+09
vllm:spec_decode_num_draft_tokens_total{{{LABELS}}} 21.0
vllm:spec_decode_num_accepted_tokens_total{{{LABELS}}} 5.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="0"}} 3.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="1"}} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="10"}} 1.0
vllm:spec_decode_num_accepted_tokens_per_pos_created{{{LABELS},position="0"}} 1.79473e+09
vllm:num_requests_running{{{LABELS}}} 2.0
vllm:num_requests_running{{engine="1",model_name="a {{target}}"}} 1.0
vllm:num_requests_waiting{{{LABELS}}} 4.0
vllm:num_requests_waiting_by_reason{{{LABELS},reason="capacity"}} 4.0
vllm:prefix_cache_queries_total{{{LABELS}}} 200.0
vllm:prefix_cache_hits_total{{{LABELS}}} 50.0
vllm:external_prefix_cache_hits_total{{{LABELS}}} 9.0
vllm:num_preemptions_total{{{LABELS}}} 1.0
vllm:prompt_tokens_total{{{LABELS}}} 1.2e+06
vllm:prompt_tokens_by_source_total{{{LABELS},source="local_compute"}} 31.0
vllm:generation_tokens_total{{{LABELS}}} 6.0
vllm:generation_tokens_total{{engine="1",model_name="a {{target}}"}} 10.0
"""
SGLANG = """\
sglang:prompt_tokens_total{model_name="m"} 400.0
sglang:generation_tokens_total{model_name="m"} 90.0
sglang:cached_tokens_total{cache_source="device",model_name="m"} 100.0
sglang:cached_tokens_total{cache_source="host",model_name="m"} 60.0
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:num_running_reqs{model_name="m"} 3.0
sglang:num_queue_reqs{model_name="m"} 1.0
sglang:spec_accept_length{model_name="m"} 3.25
"""


def test_vllms_counters_are_added_up_over_its_engines() -> None:
    counts = parse_engine_counts(VLLM)
    assert counts == EngineCounts(
        prompt_tokens=1_200_000,
        output_tokens=16,
        cache_queries=200,
        cache_hits=50,
        preemptions=1,
        drafts=7,
        drafted=21,
        accepted=5,
        accepted_by_position=(3, 1, 1),
        running=3,
        waiting=4,
    )
    assert counts.cache_hit_share == 0.25
    assert counts.tokens_per_step == 1 + 5 / 7


def test_sglang_tells_its_latest_tokens_per_step_and_no_drafts() -> None:
    counts = parse_engine_counts(SGLANG)
    assert (counts.drafts, counts.accepted, counts.preemptions) == (None, None, 2)
    assert (counts.running, counts.waiting, counts.output_tokens) == (3, 1, 90)
    assert counts.cache_hit_share == 0.4
    assert counts.tokens_per_step == 3.25


def test_what_was_counted_in_between_is_a_difference_and_a_queue_is_not() -> None:
    before, after = EngineCounts(), parse_engine_counts(VLLM)
    assert after.since(before) == after
    more = after.model_copy(
        update={"drafts": 10, "accepted": 11, "accepted_by_position": (6, 3, 2), "waiting": 0}
    )
    between = more.since(after)
    assert (between.drafts, between.accepted, between.accepted_by_position) == (3, 6, (3, 2, 1))
    assert (between.output_tokens, between.preemptions) == (0, 0)
    assert (between.running, between.waiting) == (3, 0)
    assert between.tokens_per_step == 3
    assert between.cache_hit_share is None


@pytest.mark.parametrize(
    "less",
    [
        {"output_tokens": 3},
        {"drafts": 0},
        {"accepted_by_position": (3, 0, 1)},
        {"accepted_by_position": (3, 1)},
    ],
)
def test_an_engine_that_was_started_anew_is_noticed(less: dict[str, object]) -> None:
    before = parse_engine_counts(VLLM)
    with pytest.raises(EngineError, match="was restarted"):
        before.model_copy(update=less).since(before)


def test_they_are_read_beside_v1_and_not_below_it() -> None:
    with run_stream_server(lambda _: []) as server:
        server.metrics = SGLANG.encode()
        assert read_engine_counts(Endpoint(f"{server.url}/v1")) == parse_engine_counts(SGLANG)
        server.metrics = b"python_info 1.0\nhttp_requests_total 5.0\n"
        assert read_engine_counts(Endpoint(server.url)) == EngineCounts()
        server.status = "404 Not Found"
        assert read_engine_counts(Endpoint(server.url)) == EngineCounts()
    assert [head.split(" HTTP")[0] for head in server.heads] == ["GET /metrics"] * 3
    with pytest.raises(EngineError, match="no answer from"):
        read_engine_counts(Endpoint(server.url))


def test_tokens_beyond_the_last_position_count_for_the_speed() -> None:
    counts = EngineCounts(drafts=10, drafted=100, accepted=60, accepted_by_position=(10, 8, 6))
    assert counts.tokens_per_step == 7.0
    assert EngineCounts(drafts=10, accepted=24, accepted_by_position=(10, 8, 6)).draft_counts == (
        Drafts(drafts=10, accepted=(10, 8, 6))
    )
