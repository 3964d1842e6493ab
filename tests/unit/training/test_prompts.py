"""Prompts become conversations; what is alike is kept once and never lies on both sides."""

import json
from collections import Counter, defaultdict
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
    Message,
    PromptReport,
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


def read(folder: Path, *lines: Any) -> tuple[tuple[Conversation, ...], PromptReport]:
    return read_prompts([write(folder / "chat.jsonl", *lines)], seed=0)


def read_one(folder: Path, line: Any) -> Conversation:
    (conversation,), _ = read(folder, line)
    return conversation


def refuse(*files: Path) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        read_prompts(files, seed=0)
    return caught.value


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]


def number(kind: str, count: int, group: str | None = None) -> list[dict[str, str]]:
    """Make prompts that all differ, in one group or each in its own."""
    named = {} if group is None else {"group": group}
    return [{"prompt": f"{kind} {group} {one}", "kind": kind, **named} for one in range(count)]


@pytest.mark.parametrize("line", [{"prompt": "What is ice?"}, "What is ice?", {"messages": [USER]}])
def test_a_prompt_is_a_conversation_of_one_message(tmp_path: Path, line: Any) -> None:
    conversation = read_one(tmp_path, line)
    assert said(conversation) == [("user", "What is ice?")]
    assert conversation.id == sha256(b'[["user", "what is ice?"]]').hexdigest()[:16]
    assert conversation.group == sha256(b"what is ice?").hexdigest()[:16]
    assert (conversation.kind, conversation.held_out) == ("chat", False)


def test_a_line_may_state_its_kind_and_group(tmp_path: Path) -> None:
    stated = {"kind": "code", "group": "topic:ice"}
    for line in ({"prompt": "a", **stated}, {"request": {"messages": [USER]}, **stated}):
        conversation = read_one(tmp_path, line)
        assert (conversation.kind, conversation.group) == ("code", "topic:ice")


@pytest.mark.parametrize("unstated", [None, ""])
def test_a_kind_and_group_without_a_name_are_as_if_unstated(
    tmp_path: Path, unstated: str | None
) -> None:
    plain = read_one(tmp_path, {"prompt": "a"})
    assert read_one(tmp_path, {"prompt": "a", "kind": unstated, "group": unstated}) == plain


def test_a_chat_log_loses_only_its_last_answers(tmp_path: Path) -> None:
    line = {"messages": [SYSTEM, USER, ANSWER, FURTHER, ANSWER, CALL], "model": "m", "choices": []}
    assert said(read_one(tmp_path, line)) == [
        ("system", "Be brief."),
        ("user", "What is ice?"),
        ("assistant", "Frozen water."),
        ("user", "And snow?"),
    ]


def test_a_logged_request_is_read_like_its_messages(tmp_path: Path) -> None:
    logged = {"request": {"messages": [SYSTEM, USER], "temperature": 1}, "response": {"id": "1"}}
    assert read_one(tmp_path, logged) == read_one(tmp_path, {"messages": [SYSTEM, USER]})


def test_messages_beat_a_request_and_a_prompt(tmp_path: Path) -> None:
    line = {"messages": [USER], "request": {"messages": [FURTHER]}, "prompt": "Hm?"}
    assert said(read_one(tmp_path, line)) == [("user", "What is ice?")]


def test_a_request_that_is_only_named_is_ignored(tmp_path: Path) -> None:
    assert said(read_one(tmp_path, {"prompt": "Hm?", "request": "17"})) == [("user", "Hm?")]


def test_parts_of_text_are_joined_by_line_ends(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "What is"}, {"type": "text", "text": "ice?"}]
    line = {"messages": [{"role": "user", "content": parts}]}
    assert said(read_one(tmp_path, line)) == [("user", "What is\nice?")]


def test_a_tool_may_have_spoken(tmp_path: Path) -> None:
    line = {"messages": [USER, {"role": "tool", "content": "0 degrees", "tool_call_id": "1"}]}
    assert said(read_one(tmp_path, line))[1] == ("tool", "0 degrees")


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
    conversations, report = read(tmp_path, {"messages": messages}, "a", {"messages": messages})
    assert [said(one) for one in conversations] == [[("user", "a")]]
    assert (report.read, report.duplicates, report.skipped) == (3, 0, {reason: 2})


def test_of_duplicates_the_first_is_kept(tmp_path: Path) -> None:
    code = write(tmp_path / "code.jsonl", "What  is\tICE?", {"messages": [SYSTEM, USER]})
    chat = write(tmp_path / "chat.jsonl", " what is ice?\n", {"messages": [USER, ANSWER]}, "b")
    conversations, report = read_prompts([code, chat], seed=0)
    assert [one.kind for one in conversations] == ["code", "code", "chat"]
    assert said(conversations[0]) == [("user", "What  is\tICE?")]
    assert report == PromptReport(
        read=5,
        duplicates=2,
        skipped={},
        training={"chat": 1, "code": 2},
        held_out={"chat": 0, "code": 0},
    )
    assert list(report.training) == list(report.held_out) == ["chat", "code"]


def test_the_same_words_of_another_role_are_no_duplicate(tmp_path: Path) -> None:
    other = {"messages": [USER, {**SYSTEM, "content": "And snow?"}]}
    conversations, report = read(tmp_path, {"messages": [USER, FURTHER]}, other)
    assert len({one.id for one in conversations}) == 2
    assert report.duplicates == 0


def test_conversations_that_begin_alike_are_one_group(tmp_path: Path) -> None:
    louder = {"role": "user", "content": "WHAT is  ice?"}
    lines = [{"messages": [USER]}, {"messages": [SYSTEM, louder]}, {"messages": [FURTHER]}]
    groups = [one.group for one in read(tmp_path, *lines)[0]]
    assert groups[0] == groups[1] != groups[2]


def test_blank_lines_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'\n"a"\r\n  \n"b"')
    conversations, report = read_prompts([path], seed=0)
    assert [said(one) for one in conversations] == [[("user", "a")], [("user", "b")]]
    assert report.read == 2


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (b'{"prompt": "a"', "Invalid JSON: EOF while parsing an object at column 14"),
        (b'"\xff"', "Invalid JSON: invalid unicode code point at column 2"),
        (b"5", "Input should be an object"),
        (b'{"prompt": 5}', "prompt: Input should be a valid string"),
        (b'{"text": "a"}', "Value error, neither a prompt nor messages"),
        (b'{"request": {"prompt": "a"}}', "Value error, neither a prompt nor messages"),
        (b'{"messages": "a"}', "messages: Input should be a valid array"),
        (b'{"messages": ["a"]}', "messages[0]: Input should be an object"),
        (
            b'{"messages": [{"role": "critic", "content": 5}], "kind": 5}',
            "messages[0].role: Input should be 'system', 'user', 'assistant' or 'tool'; "
            "messages[0].content: Input should be a valid array; "
            "kind: Input should be a valid string",
        ),
        (
            b'{"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}',
            "messages[0].content[0].text: Input should be a valid string",
        ),
    ],
)
def test_a_faulty_line_is_named_with_all_its_faults(
    tmp_path: Path, line: bytes, fault: str
) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_bytes(b'"a"\n\n' + line + b"\n")
    error = refuse(path)
    assert error.message == "lines that cannot be read: 1"
    assert error.details == (f"{path}:3: {fault}",)
    assert error.hint == PROMPTS_HINT


def test_the_faults_of_all_files_come_together(tmp_path: Path) -> None:
    first, second = write(tmp_path / "a.jsonl", 1, "a", 2), write(tmp_path / "b.jsonl", 3)
    places = [detail.partition(": ")[0] for detail in refuse(first, second).details]
    assert places == [f"{first}:1", f"{first}:3", f"{second}:1"]


@pytest.mark.parametrize(("count", "last"), [(20, ""), (21, "1"), (50, "30")])
def test_no_more_than_twenty_faults_are_listed(tmp_path: Path, count: int, last: str) -> None:
    path = write(tmp_path / "chat.jsonl", *range(count))
    error = refuse(path)
    assert error.message == f"lines that cannot be read: {count}"
    assert error.details[19] == f"{path}:20: Input should be an object"
    assert error.details[20:] == ((f"... and {last} more",) if last else ())


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = refuse(write(tmp_path / "chat.jsonl", "a"), tmp_path / "none.jsonl")
    assert error.message == f"cannot read {tmp_path / 'none.jsonl'}: No such file or directory"
    assert error.hint == PROMPTS_HINT


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert refuse(tmp_path).message == f"cannot read {tmp_path}: Is a directory"


def test_files_without_a_conversation_are_refused_with_what_was_skipped(tmp_path: Path) -> None:
    error = refuse(write(tmp_path / "chat.jsonl", "", {"messages": [SYSTEM]}, " "))
    assert error.message == "no usable prompt in 3 lines"
    assert error.details == ("empty content: 2", "no user message: 1")
    assert error.hint == PROMPTS_HINT


@pytest.mark.parametrize("share", [-0.01, 1.0, 5.0, float("nan")])
def test_a_share_that_leaves_no_training_is_refused(tmp_path: Path, share: float) -> None:
    path = write(tmp_path / "chat.jsonl", "a")
    with pytest.raises(InvalidInputError, match=f"the held-out share is {share:g}") as caught:
        read_prompts([path], seed=0, held_out_share=share)
    assert caught.value.hint == "take a share such as 0.05"


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
    conversations, report = read_prompts([path], seed=0, held_out_share=share, least_held_out=least)
    assert report.held_out == {"a": held_out}
    assert report.training == {"a": count - held_out}
    assert sum(one.held_out for one in conversations) == held_out


def test_the_seed_alone_decides_which_are_held_out(tmp_path: Path) -> None:
    lines = number("a", 200)
    forwards = write(tmp_path / "forwards.jsonl", *lines)
    backwards = write(tmp_path / "backwards.jsonl", *reversed(lines))

    def held_out(path: Path, seed: int) -> set[str]:
        return {one.id for one in read_prompts([path], seed=seed)[0] if one.held_out}

    assert held_out(forwards, 0) == held_out(backwards, 0)
    assert held_out(forwards, 0) != held_out(forwards, 1)


def test_the_groups_of_the_lowest_hashes_are_held_out(tmp_path: Path) -> None:
    groups = [f"topic:{one}" for one in range(30)]
    path = write(tmp_path / "chat.jsonl", *({"prompt": one, "group": one} for one in groups))
    conversations, _ = read_prompts([path], seed=7, held_out_share=0.1)
    lowest = sorted(groups, key=lambda group: sha256(f"7:{group}".encode()).hexdigest())[:3]
    assert {one.group for one in conversations if one.held_out} == set(lowest)


def test_a_group_larger_than_the_share_is_trained_on(tmp_path: Path) -> None:
    lines = number("a", 50, "large") + number("a", 50)
    for seed in range(10):
        path = write(tmp_path / "chat.jsonl", *lines)
        conversations, report = read_prompts([path], seed=seed)
        assert "large" not in {one.group for one in conversations if one.held_out}
        assert report.held_out == {"a": 5}


def test_of_large_groups_the_smallest_pays_the_least(tmp_path: Path) -> None:
    lines = [line for size in (30, 12, 20) for line in number("a", size, f"of {size}")]
    conversations, report = read(tmp_path, *lines)
    assert {one.group for one in conversations if one.held_out} == {"of 12"}
    assert report.training == {"a": 50}


def test_what_is_held_out_already_is_counted_once_towards_the_least(tmp_path: Path) -> None:
    lines = [line for size in (3, 5, 40) for line in number("a", size, f"of {size}")]
    conversations, report = read(tmp_path, *lines)
    assert {one.group for one in conversations if one.held_out} == {"of 3", "of 5"}
    assert report.held_out == {"a": 8}


def test_a_kind_that_pays_the_least_is_drawn_from_groups_of_every_size(tmp_path: Path) -> None:
    pairs = chain.from_iterable(number("a", 2, f"pair {one}") for one in range(10))
    path = write(tmp_path / "chat.jsonl", *pairs, *number("a", 20))
    drawn = set()
    for seed in range(10):
        conversations, report = read_prompts([path], seed=seed, held_out_share=0)
        assert report.held_out == {"a": 4}
        drawn |= {one.group.startswith("pair") for one in conversations if one.held_out}
    assert drawn == {True, False}


def test_a_kind_of_one_group_is_trained_on(tmp_path: Path) -> None:
    _, report = read(tmp_path, *number("a", 100, "all"), *number("b", 100))
    assert report.held_out == {"a": 0, "b": 5}


def test_a_group_that_is_all_of_another_kind_is_trained_on(tmp_path: Path) -> None:
    lines = number("a", 20, "left") + number("b", 1, "left") + number("a", 30, "right")
    conversations, report = read(tmp_path, *lines)
    assert {one.group for one in conversations if one.held_out} == {"right"}
    assert report.training == {"a": 20, "b": 1}


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
    conversations, report = read_prompts(
        [path], seed=seed, held_out_share=share, least_held_out=least
    )
    held_out = {one.group for one in conversations if one.held_out}
    training = {one.group for one in conversations if not one.held_out}
    assert not held_out & training
    assert sum(report.training.values()) + sum(report.held_out.values()) == report.read
    assert all(report.training.values())
    groups: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for (kind, group), count in cells.items():
        groups[group][kind] = count
    short = {
        kind
        for kind, count in report.held_out.items()
        if count < least and count + report.training[kind] >= 10 * least
    }
    for group in training:
        empties = any(report.training[kind] == count for kind, count in groups[group].items())
        assert empties or not short & set(groups[group])


def test_conversations_load_back_identically(tmp_path: Path) -> None:
    strange = Message(role="user", content='line\nend, "quote", \u2028, \x85, 氷')
    lines, _ = read(tmp_path, "a", {"messages": [SYSTEM, USER, ANSWER, FURTHER], "group": "g"})
    written = (*lines, lines[0].model_copy(update={"held_out": True, "messages": (strange,)}))
    path = tmp_path / "conversations.jsonl"
    write_conversations(path, written)
    assert read_conversations(path) == written
    assert len(path.read_bytes().splitlines()) == 3
    assert sorted(file.name for file in tmp_path.iterdir()) == ["chat.jsonl", path.name]


def test_written_conversations_are_prompts_too(tmp_path: Path) -> None:
    first, _ = read(tmp_path, *number("a", 60))
    write_conversations(tmp_path / "again.jsonl", first)
    again, _ = read_prompts([tmp_path / "again.jsonl"], seed=0)
    assert again == first


def test_conversations_of_another_form_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "conversations.jsonl", {"prompt": "a"})
    with pytest.raises(InvalidInputError) as caught:
        read_conversations(path)
    (detail,) = caught.value.details
    assert detail.startswith(f"{path}:1: id: Field required; kind: Field required; ")
    assert detail.endswith("; prompt: Extra inputs are not permitted")
    assert caught.value.hint == f"make {path} again from its prompts"


def test_conversations_that_are_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot read .*none\.jsonl: No such file"):
        read_conversations(tmp_path / "none.jsonl")
