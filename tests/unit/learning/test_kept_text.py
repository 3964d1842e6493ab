"""Kept text: every kind has its share of a bounded folder, and a broken end costs itself only."""

from pathlib import Path

import pytest

from slipstream.learning import kept_text
from slipstream.learning.kept_text import KeptText, decode, encode, read_kept
from slipstream.steering.state import Kind

PROMPT, ANSWER = [1, 4093, 198], list(range(100, 120))


def make(kind: Kind = "code", answer: list[int] = ANSWER, at: float = 7.9) -> bytes:
    record = encode(kind, at, PROMPT, answer)
    assert record is not None
    return record


def test_a_record_is_read_as_it_was_written() -> None:
    kept = decode(make())
    assert (kept.kind, kept.at) == ("code", 7)
    assert (kept.prompt.tolist(), kept.answer.tolist()) == (PROMPT, ANSWER)


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ([], ANSWER),
        (PROMPT, [1] * 7),
        (PROMPT, [1] * 40_000),
        (PROMPT, [-1] * 9),
        ([1 << 40], ANSWER),
    ],
)
def test_what_teaches_nothing_or_is_too_long_is_no_record(
    prompt: list[int], answer: list[int]
) -> None:
    assert encode("code", 0, prompt, answer) is None


@pytest.mark.parametrize("at", range(0, len(make()), 7))
def test_a_cut_record_or_one_with_other_tokens_is_refused(at: int) -> None:
    record = make()
    with pytest.raises(ValueError, match="record"):
        decode(record[:at])
    with pytest.raises(ValueError, match="record"):
        decode(record + record[: at + 1])
    changed = bytearray(record)
    changed[-1 - at] ^= 0xFF
    # Kind and time are not part of the checksum.
    if not 4 <= len(record) - 1 - at < 9:
        with pytest.raises(ValueError, match="record"):
            decode(bytes(changed))


def test_no_kind_crowds_out_another_and_the_folder_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_text, "FILE_BYTES", 1000)
    kept = KeptText(tmp_path / "kept")
    kept.add("prose", make("prose"))
    for number in range(500):
        kept.add("code", make(answer=[number] * 30))
    kept.close()
    sizes = [path.stat().st_size for path in (tmp_path / "kept").iterdir()]
    assert len(sizes) <= 9
    assert max(sizes) <= 1000
    read = list(read_kept(tmp_path / "kept"))
    assert [one.answer[0] for one in read if one.kind == "code"] == list(
        range(500 - (len(read) - 1), 500)
    )
    assert sum(one.kind == "prose" for one in read) == 1


def test_a_process_begins_a_file_of_its_own_and_a_broken_end_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    first = KeptText(folder)
    first.add("code", make())
    first.close()
    (path,) = folder.iterdir()
    path.write_bytes(path.read_bytes() + make()[:-3])
    second = KeptText(folder)
    second.add("code", make(answer=[9] * 9))
    second.close()
    assert [len(one.answer) for one in read_kept(folder)] == [20, 9]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


def test_a_folder_that_others_can_read_and_a_link_are_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        with pytest.raises(PermissionError):
            KeptText(tmp_path / name)
    (tmp_path / "elsewhere").write_bytes(make())
    (tmp_path / "own" / "code-000000000000.tokens").symlink_to(tmp_path / "elsewhere")
    assert list(read_kept(tmp_path / "own")) == []
    assert list(read_kept(tmp_path / "nowhere")) == []
