"""The same over HTTP: streamed tokens, acceptance in the last chunk, counters that agree."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import read_engine_counts
from tests.engine.conftest import RunArm
from tests.engine.offline import BATCH_SIZE
from tests.engine.server import Server, Streamed
from tests.engine.test_client_crosscheck import measure_ours

pytestmark = [pytest.mark.engine, pytest.mark.beside]


def stream_alone(server: Server, prompts: list[list[int]]) -> list[Streamed]:
    return [server.stream(prompt) for prompt in prompts]


def stream_together(server: Server, prompts: list[list[int]]) -> list[Streamed]:
    with ThreadPoolExecutor(BATCH_SIZE) as pool:
        return list(pool.map(server.stream, prompts))


@pytest.mark.parametrize("ask", [stream_alone, stream_together])
def test_streams_equal_plain_decoding_and_account_for_their_drafts(
    ask: Callable[[Server, list[list[int]]], list[Streamed]],
    server: Server,
    prompts: list[list[int]],
    arm: RunArm,
) -> None:
    before = server.read_counters()
    answers = ask(server, prompts)
    after = server.read_counters()

    plain = [answer.token_ids for answer in arm("float32", "plain").alone]
    assert [answer.token_ids for answer in answers] == plain

    for answer in answers:
        acceptance = answer.acceptance
        steps, accepted = acceptance["num_spec_steps"], acceptance["num_accepted_draft_tokens"]
        histogram = acceptance["acceptance_histogram"]
        assert acceptance["num_spec_tokens"] == 7
        assert sum(histogram) == steps
        assert sum(count * times for count, times in enumerate(histogram)) == accepted
        assert acceptance["mean_acceptance_length"] == pytest.approx(1 + accepted / steps)
        assert answer.chunks <= 1 + steps + 1

    summed = {
        "drafts": sum(answer.acceptance["num_spec_steps"] for answer in answers),
        "draft_tokens": sum(answer.acceptance["num_draft_tokens"] for answer in answers),
        "accepted_tokens": sum(
            answer.acceptance["num_accepted_draft_tokens"] for answer in answers
        ),
    }
    counted = {key: after[key] - before.get(key, 0) for key in summed}
    sys.stdout.write(f"\n{ask.__name__}: by request {summed}, on /metrics {counted}\n")
    assert summed["accepted_tokens"] > 0
    assert counted == summed
    per_position = after["accepted_tokens_per_pos"] - before.get("accepted_tokens_per_pos", 0)
    assert per_position == summed["accepted_tokens"]


def test_the_drafts_of_all_samples_are_those_that_the_engine_counted(server: Server) -> None:
    endpoint = Endpoint(server.url)
    before = read_engine_counts(endpoint)
    samples = measure_ours(server.url)
    counted = read_engine_counts(endpoint).since(before)
    told = {
        name: sum(getattr(sample, name) for sample in samples)
        for name in ("prompt_tokens", "output_tokens", "drafts", "drafted", "accepted")
    }
    assert told == {name: getattr(counted, name) for name in told}
    positions = zip(*(sample.accepted_by_position for sample in samples), strict=True)
    assert counted.accepted_by_position == tuple(map(sum, positions))
    assert all(len(sample.token_ids) == sample.output_tokens for sample in samples)
    assert (counted.running, counted.waiting, counted.preemptions) == (0, 0, 0)
