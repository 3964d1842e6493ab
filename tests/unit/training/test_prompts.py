"""Prompts become conversations; what is alike is kept once and never lies on both sides."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.lines import PROMPTS_HINT
from slipstream.training.prompts import (
    Conversation,
    read_conversations,
    read_prompts,
    write_conversations,
)

USER = {"role": "user", "content": "What is ice?"}
SYSTEM = {"role": "system", "content": "Be brief."}
ANSWER = {"role": "assistant", "content": "Frozen water."}
FURTHER = {"role": "user", "content": "And snow?"}
TEXT = {"type": "text", "text": "What is this?"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
CALL = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"id": "1"}]}

Cells = dict[tuple[str, str], int]


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def read(folder: Path, *lines: Any) -> tuple[tuple[Conversation, ...], dict[str, int]]:
    return read_prompts([write(folder / "chat.jsonl", *lines)], seed=0)


def read_one(folder: Path, line: Any) -> Conversation:
    (conversation,), _ = read(folder, line)
    return conversation


def refuse(*files: Path) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        read_prompts(files, seed=0)
    return caught.value


def count_kinds(conversations: Iterable[Conversation], *, held_out: bool) -> Counter[str]:
    """Count the conversations on one side by kind."""
    return Counter(one.kind for one in conversations if one.held_out is held_out)


def number(kind: str, count: int, group: str | None = None) -> list[dict[str, str]]:
    """Make prompts that all differ, in one group or each in its own."""
    named = {} if group is None else {"group": group}
    return [{"prompt": f"{kind} {group} {one}", "kind": kind, **named} for one in range(count)]


@pytest.mark.parametrize("line", [{"prompt": "What is ice?"}, "What is ice?", {"messages": [USER]}])
def test_a_prompt_is_a_conversation_of_one_message(tmp_path: Path, line: Any) -> None:
    conversation = read_one(tmp_path, line)
    assert conversation.messages == (USER,)
    assert conversation.id == sha256(b'[["user", "what is ice?"]]').hexdigest()[:16]
    assert conversation.group == sha256(b"what is ice?").hexdigest()[:16]
    assert (conversation.kind, conversation.held_out) == ("chat", False)


def test_a_line_may_state_its_kind_and_group(tmp_path: Path) -> None:
    stated = {"kind": "code", "group": "topic:ice"}
    for line in ({"prompt": "a", **stated}, {"request": {"messages": [USER]}, **stated}):
        conversation = read_one(tmp_path, line)
        assert (conversation.kind, conversation.group) == ("code", "topic:ice")
    plain = read_one(tmp_path, {"prompt": "a"})
    for unstated in (None, ""):
        assert read_one(tmp_path, {"prompt": "a", "kind": unstated, "group": unstated}) == plain


@pytest.mark.parametrize(
    ("line", "messages"),
    [
        # A chat log loses its last answers only.
        (
            {"messages": [SYSTEM, USER, ANSWER, FURTHER, ANSWER, CALL], "model": "m"},
            [SYSTEM, USER, ANSWER, FURTHER],
        ),
        # A logged request is read like its messages; those of the line itself come first.
        ({"request": {"messages": [SYSTEM, USER]}, "response": {"id": "1"}}, [SYSTEM, USER]),
        ({"messages": [USER], "request": {"messages": [FURTHER]}, "prompt": "Hm?"}, [USER]),
        ({"prompt": "And snow?", "request": "17"}, [FURTHER]),
        # Parts of text are joined by line ends, and a tool may have spoken.
        (
            {"messages": [{"role": "user", "content": [TEXT, TEXT]}]},
            [{"role": "user", "content": "What is this?\nWhat is this?"}],
        ),
        (
            {"messages": [USER, {"role": "tool", "content": "0 degrees", "tool_call_id": "1"}]},
            [USER, {"role": "tool", "content": "0 degrees"}],
        ),
    ],
)
def test_what_the_target_is_to_answer_is_read(
    tmp_path: Path, line: Any, messages: list[dict[str, str]]
) -> None:
    assert list(read_one(tmp_path, line).messages) == messages


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "no user message"),
        ([SYSTEM], "no user message"),
        ([ANSWER], "no user message"),
        ([{"role": "user", "content": " \n"}], "empty content"),
        ([{"role": "user", "content": []}], "empty content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "empty content"),
        ([{"role": "system", "content": ""}, USER], "empty content"),
        ([{"role": "user", "content": None}], "content other than text"),
        ([{"role": "user", "content": [TEXT, IMAGE]}], "content other than text"),
        ([USER, CALL, {"role": "tool", "content": "0 degrees"}], "tool calls"),
    ],
)
def test_what_cannot_be_asked_as_text_is_skipped_and_counted(
    tmp_path: Path, messages: list[Any], reason: str
) -> None:
    line = {"messages": messages}
    conversations, counts = read(tmp_path, line, "a", line)
    assert [one.messages[0]["content"] for one in conversations] == ["a"]
    assert counts == {"read": 3, "duplicates": 0, "skipped": 2, "training": 1, "held_out": 0}
    assert refuse(write(tmp_path / "chat.jsonl", line)).details == (f"{reason}: 1",)


def test_of_duplicates_the_first_is_kept(tmp_path: Path) -> None:
    code = write(tmp_path / "code.jsonl", "What  is\tICE?", {"messages": [SYSTEM, USER]})
    chat = write(tmp_path / "chat.jsonl", " what is ice?\n", {"messages": [USER, ANSWER]}, "b")
    conversations, counts = read_prompts([code, chat], seed=0)
    assert [one.kind for one in conversations] == ["code", "code", "chat"]
    assert conversations[0].messages[0]["content"] == "What  is\tICE?"
    assert counts == {"read": 5, "duplicates": 2, "skipped": 0, "training": 3, "held_out": 0}


def test_role_and_beginning_tell_conversations_and_groups_apart(tmp_path: Path) -> None:
    other = {"messages": [USER, {**SYSTEM, "content": "And snow?"}]}
    conversations, counts = read(tmp_path, {"messages": [USER, FURTHER]}, other)
    assert (len({one.id for one in conversations}), counts["duplicates"]) == (2, 0)
    louder = {"role": "user", "content": "WHAT is  ice?"}
    lines = [{"messages": [USER]}, {"messages": [SYSTEM, louder]}, {"messages": [FURTHER]}]
    groups = [one.group for one in read(tmp_path, *lines)[0]]
    assert groups[0] == groups[1] != groups[2]


@pytest.mark.parametrize(
    ("line", "places"),
    [
        (b'{"prompt": "a"', [""]),
        (b'"\xff"', [""]),
        (b'{"text": "a"}', [""]),
        (b'{"request": {"prompt": "a"}}', [""]),
        (b'{"messages": ["a"]}', ["messages[0]"]),
        (
            b'{"messages": [{"role": "critic", "content": 5}], "kind": 5}',
            ["messages[0].role", "messages[0].content", "kind"],
        ),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}',
            ["messages[0].content[0].text"],
        ),
    ],
)
def test_a_faulty_line_is_named_with_all_its_faults(
    tmp_path: Path, line: bytes, places: list[str]
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'"a"\n\n' + line + b"\n")
    error = refuse(path)
    (detail,) = error.details
    assert detail.startswith(f"{path}:3: ")
    faults = detail.removeprefix(f"{path}:3: ").split("; ")
    assert [fault.rpartition(": Input")[0] for fault in faults] == places
    assert error.hint == PROMPTS_HINT


def test_the_faults_of_all_files_come_together_but_no_more_than_twenty(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", 1, "a", 2), write(tmp_path / "b.jsonl", *range(20))
    *places, more = (detail.partition(": ")[0] for detail in refuse(first, second).details)
    lines = [f"{first}:1", f"{first}:3", *(f"{second}:{line}" for line in range(1, 19))]
    assert (places, more) == (lines, "... and 2 more")


def test_files_that_cannot_be_read_or_hold_no_conversation_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "chat.jsonl", "a")
    for path in (tmp_path / "none.jsonl", tmp_path):
        assert refuse(good, path).message.startswith(f"cannot read {path}: ")
    error = refuse(write(tmp_path / "chat.jsonl", "", {"messages": [SYSTEM]}, " "))
    assert error.details == ("empty content: 2", "no user message: 1")


@pytest.mark.parametrize("share", [-0.01, 1.0, 5.0, float("nan")])
def test_a_share_that_leaves_no_training_is_refused(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "chat.jsonl", "a")
    with pytest.raises(InvalidInputError, match=f"the held-out share is {share:g}") as caught:
        read_prompts([path], seed=0, held_out_share=share)
    assert caught.value.hint == "use a share such as 0.05"


@pytest.mark.parametrize(
    ("count", "share", "least", "held_out"),
    [
        (1000, 0.05, 4, 50),
        (1000, 0.2, 4, 200),
        (40, 0.05, 4, 4),
        (39, 0.05, 4, 2),
        (40, 0.05, 5, 2),
        (40, 0.0, 4, 4),
        (40, 0.0, 0, 0),
        (5, 0.05, 4, 0),
        (2, 0.99, 4, 1),
        (1, 0.99, 4, 0),
    ],
)
def test_prompts_of_one_group_each_are_split_to_the_count(
    tmp_path: Path, count: int, share: float, least: int, held_out: int
) -> None:
    path = write(tmp_path / "chat.jsonl", *number("a", count))
    conversations, counts = read_prompts([path], seed=0, held_out_share=share, least_held_out=least)
    assert (counts["held_out"], counts["training"]) == (held_out, count - held_out)
    assert sum(one.held_out for one in conversations) == held_out


def test_the_groups_of_the_lowest_hashes_are_held_out_in_any_order(tmp_path: Path) -> None:
    groups = [f"topic:{one}" for one in range(30)]
    lines = [{"prompt": one, "group": one} for one in groups]
    for seed, ordered in ((7, lines), (7, lines[::-1]), (8, lines)):
        path = write(tmp_path / "chat.jsonl", *ordered)
        conversations, _ = read_prompts([path], seed=seed, held_out_share=0.1)
        by_hash = sorted(groups, key=lambda one: sha256(f"{seed}:{one}".encode()).hexdigest())
        assert {one.group for one in conversations if one.held_out} == set(by_hash[:3])


def test_a_group_larger_than_the_share_is_trained_on(tmp_path: Path) -> None:
    lines = number("a", 50, "large") + number("a", 50)
    for seed in range(10):
        path = write(tmp_path / "chat.jsonl", *lines)
        conversations, counts = read_prompts([path], seed=seed)
        assert "large" not in {one.group for one in conversations if one.held_out}
        assert counts["held_out"] == 5


@pytest.mark.parametrize(
    ("sizes", "held_out"),
    [
        ((30, 12, 20), {"of 12"}),  # of large groups the smallest pays the least
        ((3, 5, 40), {"of 3", "of 5"}),  # what is held out already counts towards the least
    ],
)
def test_small_groups_pay_the_least(
    sizes: tuple[int, ...], held_out: set[str], tmp_path: Path
) -> None:
    lines = [line for size in sizes for line in number("a", size, f"of {size}")]
    conversations, counts = read(tmp_path, *lines)
    assert {one.group for one in conversations if one.held_out} == held_out
    assert counts["held_out"] == sum(int(group.split()[1]) for group in held_out)


def test_a_kind_that_pays_the_least_is_drawn_from_groups_of_every_size(tmp_path: Path) -> None:
    pairs = chain.from_iterable(number("a", 2, f"pair {one}") for one in range(10))
    path = write(tmp_path / "chat.jsonl", *pairs, *number("a", 20))
    drawn = set()
    for seed in range(10):
        conversations, counts = read_prompts([path], seed=seed, held_out_share=0)
        assert counts["held_out"] == 4
        drawn |= {one.group.startswith("pair") for one in conversations if one.held_out}
    assert drawn == {True, False}


@settings(deadline=None)
@given(
    cells=some.dictionaries(
        some.tuples(some.sampled_from("abc"), some.sampled_from("tuvwxyz")),
        some.integers(1, 30),
        min_size=1,
        max_size=12,
    ),
    share=some.sampled_from([0.0, 0.05, 0.3, 0.9]),
    least=some.integers(0, 5),
    seed=some.integers(),
)
def test_every_split_keeps_its_promises(
    tmp_path_factory: pytest.TempPathFactory, cells: Cells, share: float, least: int, seed: int
) -> None:
    path = tmp_path_factory.mktemp("split") / "chat.jsonl"
    lines = [number(kind, count, group) for (kind, group), count in cells.items()]
    write(path, *chain.from_iterable(lines))
    conversations, counts = read_prompts(
        [path], seed=seed, held_out_share=share, least_held_out=least
    )
    held_out = {one.group for one in conversations if one.held_out}
    training = {one.group for one in conversations if not one.held_out}
    assert not held_out & training
    assert counts["training"] + counts["held_out"] == counts["read"]
    held, trained = (count_kinds(conversations, held_out=side) for side in (True, False))
    assert trained.keys() == {kind for kind, _ in cells}
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind, group), count in cells.items():
        groups[group][kind] = count
    short = {kind for kind in trained if held[kind] < least <= (held[kind] + trained[kind]) / 10}
    for group in training:
        empties = any(trained[kind] == size for kind, size in groups[group].items())
        assert empties or not short & set(groups[group])


def test_conversations_load_back_identically_and_are_prompts_too(tmp_path: Path) -> None:
    strange = {"role": "user", "content": 'line\nend, "quote", \u2028, \x85, 氷'}
    lines, _ = read(tmp_path, "a", {"messages": [SYSTEM, USER, ANSWER, FURTHER], "group": "g"})
    written = (*lines, lines[0].model_copy(update={"held_out": True, "messages": (strange,)}))
    path = tmp_path / "conversations.jsonl"
    write_conversations(path, written)
    assert read_conversations(path) == written
    assert len(path.read_bytes().splitlines()) == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chat.jsonl", path.name]
    first, _ = read(tmp_path, *number("a", 60))
    write_conversations(path, first)
    assert read_prompts([path], seed=0)[0] == first


def test_conversations_of_another_form_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "conversations.jsonl", {"prompt": "a"})
    with pytest.raises(InvalidInputError) as caught:
        read_conversations(path)
    assert f"{path}:1: id: Field required" in caught.value.details[0]
