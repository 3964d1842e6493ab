"""Samples of a load tell what a step took, how many shared it, and what became of drafts."""

from random import Random

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.client.sample import Sample
from slipstream.tuning.experiment import EngineStart
from slipstream.tuning.reading import read_acceptance, read_point
from tests.unit.tuning.synthetic_engine import SyntheticEngine, average, serve

ENGINE = SyntheticEngine(noise=0.01)
LONG = EngineStart(7, (1, 4, 16))
PLAIN = EngineStart(0, (1, 16))
SCHEDULED = EngineStart(7, (2, 8), schedule=((1, 2, 7), (3, 8, 2)))


@pytest.mark.parametrize("load", [1, 4, 16])
@pytest.mark.parametrize("start", [LONG, PLAIN])
def test_a_load_tells_the_time_of_its_steps(start: EngineStart, load: int) -> None:
    drafts = bool(start.draft_length)
    point = read_point(serve(ENGINE, "code", load, start, Random(load)), drafts=drafts)
    assert (point.kind, point.concurrency, point.draft_length) == ("code", load, start.draft_length)
    exact = ENGINE.take_seconds(point.sequences, start.draft_length)
    assert point.seconds_per_step == pytest.approx(exact, rel=0.02)


def test_a_place_that_reads_its_prompt_does_not_share_a_step() -> None:
    alone = read_point(serve(ENGINE, "code", 1, LONG, Random(0)), drafts=True)
    many = read_point(serve(ENGINE, "code", 16, LONG, Random(0)), drafts=True)
    assert alone.sequences == 1
    assert 14 < many.sequences < 16


def test_drafts_are_counted_by_kind_and_length_whatever_the_load() -> None:
    loads = [
        serve(ENGINE, kind, load, LONG, Random(load)) for kind in ENGINE.kinds for load in (2, 16)
    ]
    found = read_acceptance(loads, (7,))
    assert [(one.kind, one.draft_length) for one in found] == [("code", 7), ("prose", 7)]
    assert [len(one.requests) for one in found] == [54, 54]
    for one in found:
        likely = ENGINE.kinds[one.kind]
        exact = sum(likely**place for place in range(8))
        assert average(one, 7) == pytest.approx(exact, rel=0.08)
        assert sum(request.pace for request in one.requests) / 54 == pytest.approx(1, rel=0.1)


def test_requests_whose_draft_length_changed_under_way_are_left_out() -> None:
    samples = serve(ENGINE, "code", 8, SCHEDULED, Random(1))
    changed = [
        one.model_copy(update={"drafted": one.drafted + 5 * (one.drafts // 2)})
        for one in samples[:3]
    ]
    samples[:3] = changed
    found = read_acceptance([samples, serve(ENGINE, "code", 2, SCHEDULED, Random(2))], (2, 7))
    assert [one.draft_length for one in found] == [2, 7]
    assert len(found[0].requests) <= len(samples) - len(changed)
    assert len(found[1].requests) == 6
    assert {len(request.accepted) for request in found[0].requests} == {2}
    assert 2 < read_point(samples, drafts=True).draft_length < 7


def test_failed_requests_are_left_out() -> None:
    samples = serve(ENGINE, "code", 4, LONG, Random(1))
    broken = [sample.model_copy(update={"error": "it broke", "drafts": 0}) for sample in samples]
    assert read_point([*samples, *broken], drafts=True) == read_point(samples, drafts=True)
    with pytest.raises(EngineError, match="no request got two tokens"):
        read_point(broken, drafts=True)


def test_an_engine_that_does_not_tell_its_drafts_is_asked_to() -> None:
    samples = [
        sample.model_copy(update={"drafts": 0, "drafted": 0, "accepted_by_position": ()})
        for sample in serve(ENGINE, "code", 4, LONG, Random(1))
    ]
    with pytest.raises(EngineError, match="told of no drafts") as refused:
        read_point(samples, drafts=True)
    assert "--per-request-spec-decode-metrics summary" in refused.value.hint


def test_a_request_of_one_token_has_no_step() -> None:
    short = Sample(
        prompt_id="short",
        kind="code",
        concurrency=4,
        began_at=0,
        seconds=1,
        first_token_seconds=1,
        output_tokens=1,
    )
    samples = serve(ENGINE, "code", 4, LONG, Random(1))
    assert read_point([*samples, short], drafts=True) == read_point(samples, drafts=True)
