"""A ledger is read once, across rotations, whatever else its file holds; its requests add up."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slipstream.steering.ledger import (
    LONGEST_LINE_BYTES,
    LedgerReader,
    LedgerSummary,
    name_context,
    read_ledger,
    summarize,
)
from tests.unit.steering.lines import make, write


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def reader() -> Iterator[LedgerReader]:
    with closing(LedgerReader()) as opened:
        yield opened


def append(file: Path, content: bytes) -> None:
    with file.open("ab") as opened:
        opened.write(content)


def read_ids(reader: LedgerReader, file: Path, most: int = 100) -> list[str | None]:
    return [line.id for line in reader.read(file, most)]


def test_a_line_is_read_as_it_was_written(file: Path) -> None:
    file.write_bytes(write())
    (line,) = read_ledger([file])
    assert line == make()
    assert (line.context_tokens, line.uncached_tokens) == (364, 44)


def test_reading_goes_on_where_it_stopped_and_takes_no_more_than_asked(
    reader: LedgerReader, file: Path
) -> None:
    assert read_ids(reader, file) == []
    file.write_bytes(write(id="a") + write(id="b") + write(id="c"))
    assert read_ids(reader, file, most=2) == ["a", "b"]
    append(file, write(id="d"))
    assert read_ids(reader, file) == ["c", "d"]
    assert read_ids(reader, file) == []


def test_half_a_line_waits_for_its_end(reader: LedgerReader, file: Path) -> None:
    line = write(id="late")
    file.write_bytes(line[:40])
    assert read_ids(reader, file) == []
    append(file, line[40:])
    assert read_ids(reader, file) == ["late"]
    assert reader.skipped_lines == 0
    # What another folder's ledger holds is read on with.
    spare = file.with_name("spare.jsonl")
    spare.write_bytes(write(id="b"))
    assert read_ids(reader, spare) == ["b"]


def test_what_came_before_a_rotation_is_read_first(reader: LedgerReader, file: Path) -> None:
    file.write_bytes(write(id="a"))
    assert read_ids(reader, file) == ["a"]
    append(file, write(id="b"))
    file.rename(file.with_name("ledger-1.jsonl"))
    file.write_bytes(write(id="c"))
    assert read_ids(reader, file) == ["b", "c"]


def test_a_ledger_that_is_begun_anew_is_read_from_its_start(
    reader: LedgerReader, file: Path
) -> None:
    file.write_bytes(write(id="a") + write(id="b"))
    assert read_ids(reader, file) == ["a", "b"]
    file.write_bytes(write(id="c"))
    assert read_ids(reader, file) == ["c"]


@pytest.mark.parametrize(
    "foreign",
    [
        b"not json\n",
        b"{}\n",
        b"\xff\xfe\n",
        write(schema_version=2),
        write(more=1),
        write(tokens=-1),
        write(tokens=10**400),
        write(seconds=float("nan")),
        write(accepted=[1, 2]),
        write(accepted=[1] * 200),
        write(kind="x" * 200),
        b"[" * 5000 + b"\n",
        b"x" * (3 * LONGEST_LINE_BYTES) + b"\n",
    ],
)
def test_what_is_no_line_of_the_ledger_is_skipped_and_counted(
    reader: LedgerReader, file: Path, foreign: bytes
) -> None:
    file.write_bytes(write(id="a") + foreign + b"\n" + write(id="b"))
    assert read_ids(reader, file) == ["a", "b"]
    assert reader.skipped_lines == 1


def test_a_line_without_end_takes_bounded_memory(reader: LedgerReader, file: Path) -> None:
    file.write_bytes(b"x" * (5 * LONGEST_LINE_BYTES))
    assert read_ids(reader, file) == []
    append(file, b"\n" + write(id="after"))
    assert read_ids(reader, file) == ["after"]
    assert reader.skipped_lines == 1


def test_a_link_in_its_place_is_not_followed(file: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(write())
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        LedgerReader().read(file, 1)


def test_requests_add_up_by_kind_the_largest_first() -> None:
    lines = [
        make(kind="prose", tokens=10, steps=10, drafts=8, accepted=[2, 1]),
        make(tokens=30, steps=10, drafts=9, accepted=[8, 6, 1], seconds=3.0, first_seconds=0.1),
        make(tokens=60, steps=20, drafts=18, accepted=[10, 6], seconds=7.0, first_seconds=None),
    ]
    summary = summarize(lines, "kind")
    code, prose = summary.groups
    assert (code.name, code.requests, code.tokens, code.steps) == ("code", 2, 90, 30)
    assert (code.accepted, code.by_position[0]) == ((18, 12, 1), 18 / 27)
    assert (code.token_share, code.tokens_per_step) == (0.9, 3.0)
    assert code.first_seconds == 0.1
    assert code.seconds_per_token == pytest.approx(9.9 / 89)
    assert (prose.name, prose.by_position) == ("prose", (0.25, 0.125))
    assert (summary.total.requests, summary.total.accepted) == (3, (20, 13, 1))
    assert LedgerSummary.model_validate_json(summary.to_json()) == summary


def test_copies_add_up_apart_from_drafts_and_an_older_line_has_none() -> None:
    copying = make(tokens=60, steps=10, copies=4, copied=80, copied_accepted=45)
    (group,) = summarize([make(tokens=40, steps=10), copying], "kind").groups
    assert (group.copies, group.copied, group.copied_accepted) == (4, 80, 45)
    assert (group.drafts, group.drafted, group.accepted[0]) == (58, 406, 50)
    assert (group.tokens_per_step, group.copied_share) == (5.0, 0.45)
    assert (make().copies, make().copied_share, make().expected) == (0, 0.0, None)


def test_groups_are_what_was_asked_for() -> None:
    lines = [make(key=None), make(route="messages", prompt_tokens=20_000)]
    names = {
        by: [group.name for group in summarize(lines, by).groups]
        for by in ("key", "route", "context")
    }
    assert names == {
        "key": ["ann", "none"],
        "route": ["chat", "messages"],
        "context": ["0 to 1k", "16k to 64k"],
    }


def test_without_drafts_or_tokens_nothing_is_said() -> None:
    line = make(tokens=0, steps=0, drafts=0, drafted=0, accepted=[], first_seconds=None)
    total = summarize([line], "kind").total
    assert total.by_position == ()
    assert (total.tokens_per_step, total.seconds_per_token, total.first_seconds) == (None,) * 3
    assert summarize([], "kind").groups == ()


def test_a_range_of_context_has_its_lower_bound_and_not_its_upper() -> None:
    names = [name_context(tokens) for tokens in (0, 1023, 1024, 16384, 65535, 65536)]
    assert names == ["0 to 1k", "0 to 1k", "1k to 4k", "16k to 64k", "16k to 64k", "64k on"]
