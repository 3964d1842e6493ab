"""A task is timed from its first request to its last token, and its turns are told one by one."""

from typing import Any

import pytest

from slipstream.measuring.client.sample import Sample
from slipstream.measuring.tasks import describe_tasks, split_tasks


def make_turn(task: str, turn: int, began_at: float, **more: Any) -> Sample:
    whole = {
        "prompt_id": f"{task}/{turn}",
        "kind": "agent-2k",
        "concurrency": 1,
        "began_at": began_at,
        "seconds": 2.0,
        "first_token_seconds": 0.5 * turn,
        "prompt_tokens": 100 * turn,
        "output_tokens": 11,
        "task": task,
        "turn": turn,
    }
    return Sample(**{**whole, **more})


def test_wall_time_is_from_the_first_request_to_the_last_token() -> None:
    samples = [
        make_turn("a", 1, 1.0),
        make_turn("a", 2, 3.5),
        make_turn("b", 1, 6.0),
        make_turn("b", 2, 8.0, seconds=4.0),
        make_turn("a", 1, 12.0),
    ]
    runs = split_tasks(samples)
    assert [(run.name, run.seconds, run.output_tokens) for run in runs] == [
        *(("a", 4.5, 22), ("b", 6.0, 22), ("a", 2.0, 11))
    ]


def test_a_load_of_tasks_is_told_by_task_and_by_turn() -> None:
    samples = [
        make_turn("a", 1, 0.0, cached_tokens=0, call="parsed"),
        make_turn("a", 2, 2.0, cached_tokens=100, call="not JSON"),
        make_turn("b", 1, 4.0, cached_tokens=0, call="parsed"),
        make_turn("b", 2, 6.0, cached_tokens=140, seconds=3.0),
        make_turn("c", 1, 9.0, error="cut off"),
    ]
    told = describe_tasks(samples)
    assert told is not None
    assert (told.tasks, told.failed, told.cached_share) == (3, 1, 240 / 600)
    assert told.seconds is not None
    assert (told.seconds.p50, told.seconds.p99) == (4.0, 5.0)
    assert told.calls == {"parsed": 2, "not JSON": 1}
    assert [(turn.turn, turn.prompt_tokens, turn.cached_share) for turn in told.turns] == [
        *((1, 100, 0.0), (2, 200, 240 / 400))
    ]
    assert told.turns[1].first_token is not None
    assert told.turns[1].first_token.p50 == 1.0


def test_what_a_server_does_not_report_is_unknown() -> None:
    told = describe_tasks([make_turn("a", 1, 0.0)])
    assert told is not None
    assert (told.cached_share, told.turns[0].cached_share, told.calls) == (None, None, {})
    alone = make_turn("a", 1, 0.0).model_copy(update={"task": None, "turn": None})
    assert describe_tasks([alone]) is None


@pytest.mark.parametrize("error", [None, "cut off"])
def test_a_task_whose_last_turn_failed_has_no_time(error: str | None) -> None:
    (run,) = split_tasks([make_turn("a", 1, 0.0), make_turn("a", 2, 2.0, error=error)])
    assert run.failed is (error is not None)
