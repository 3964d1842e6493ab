"""An agent's tasks grow turn by turn, fit their sizes, and are the same for everybody."""

import json
from itertools import pairwise

import pytest

from slipstream.errors import InvalidInputError, UsageError
from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.tool_calls import check_call
from slipstream.measuring.workloads import Prompt, Workload, load_workload
from slipstream.measuring.workloads.agent_tasks import SIZES
from slipstream.measuring.workloads.shipped import TASKS_PER_KIND, make_prompts
from slipstream.measuring.workloads.workload import count_prompt_tokens, estimate_tokens

CONTENT = {
    "agent-2k": "33e141f3f180",
    "agent-8k": "6fba01743394",
    "agent-32k": "a8625874e58c",
}


@pytest.fixture(scope="module")
def workloads() -> dict[str, Workload]:
    return {
        kind: Workload(name=kind, prompts=make_prompts(kind, estimate_tokens)) for kind in SIZES
    }


@pytest.fixture(params=SIZES)
def tasks(
    request: pytest.FixtureRequest, workloads: dict[str, Workload]
) -> list[tuple[Prompt, ...]]:
    return workloads[request.param].list_units(request.param)


def test_what_a_task_stands_for_never_changes(workloads: dict[str, Workload]) -> None:
    assert {kind: made.sha256[:12] for kind, made in workloads.items()} == CONTENT


def test_a_class_has_tasks_with_numbered_turns(tasks: list[tuple[Prompt, ...]]) -> None:
    assert len(tasks) == TASKS_PER_KIND
    kind = tasks[0][0].kind
    assert [task[0].task for task in tasks] == [f"{kind}-{n:02d}" for n in range(1, 9)]
    for task in tasks:
        assert [turn.turn for turn in task] == list(range(1, len(tasks[0]) + 1))
        assert {(turn.task, turn.kind) for turn in task} == {(task[0].task, kind)}
        assert len({turn.id for turn in task}) == len(task)
    beginnings = {json.dumps(task[0].messages) for task in tasks}
    assert len(beginnings) == len(tasks)


def test_every_turn_continues_the_one_before_and_the_last_fills_the_size(
    tasks: list[tuple[Prompt, ...]],
) -> None:
    for task in tasks:
        for before, after in pairwise(task):
            assert after.messages[: len(before.messages)] == before.messages
            new = [message["role"] for message in after.messages[len(before.messages) :]]
            assert new in (["assistant", "tool"], ["assistant", "user"])
            assert after.extra == before.extra
        tokens = count_prompt_tokens(task[-1], estimate_tokens) + task[-1].max_tokens
        assert 0.93 < tokens / SIZES[task[0].kind] <= 1


def test_the_scripted_calls_are_ones_that_would_parse(tasks: list[tuple[Prompt, ...]]) -> None:
    for task in tasks:
        tools = task[0].extra["tools"]
        called = [one["tool_calls"][0] for one in task[-1].messages if "tool_calls" in one]
        expected = [turn.expected_tool for turn in task if turn.expected_tool]
        for call, tool in zip(called, expected, strict=True):
            made = ToolCall.model_validate(call["function"])
            assert check_call([made], tool, tools) == "parsed", made
        results = [one["tool_call_id"] for one in task[-1].messages if one["role"] == "tool"]
        assert results == [call["id"] for call in called]
        assert len(set(results)) == len(results)
        assert task[-1].expected_tool is None


def test_a_task_is_drawn_and_left_out_as_a_whole() -> None:
    workload = load_workload(["agent"], most_per_kind=2, context=8192)
    assert workload.kinds == ("agent-2k", "agent-8k")
    assert workload.has_tasks
    for kind in workload.kinds:
        turns = [[turn.turn for turn in task] for task in workload.list_units(kind)]
        assert turns == [list(range(1, len(turns[0]) + 1))] * 2
    assert sorted(workload.left_out) == [f"agent-32k-{n:02d}" for n in range(1, 9)]
    assert {one.task for one in workload.warm_up}.isdisjoint(one.task for one in workload.prompts)
    with pytest.raises(InvalidInputError):
        load_workload(["agent"], context=1024)


def test_tasks_are_not_measured_together_with_prompts() -> None:
    with pytest.raises(UsageError) as caught:
        load_workload(["code", "agent-2k"])
    assert caught.value.hint == "--workload agent-2k"
