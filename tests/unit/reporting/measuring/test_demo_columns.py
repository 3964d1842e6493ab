"""Two answers grow side by side, each at its own pace, in frames of one size."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.demo.performance import RecordedAnswer
from slipstream.reporting.measuring.demo_columns import list_frames
from tests.unit.demo.pieces import TEXT, make_answer

PLAIN, DRAFTED = make_answer(), make_answer(drafts=3)
WIDTH = 43

texts = some.text(some.characters(codec="utf-8"), min_size=2, max_size=60)


def frames(
    plain: RecordedAnswer = PLAIN,
    drafted: RecordedAnswer = DRAFTED,
    *,
    width: int = WIDTH,
    rows: int = 9,
    **how: bool,
) -> list[tuple[float, list[str]]]:
    colour = how.get("colour", False)
    return list(list_frames(plain, drafted, width=width, rows=rows, colour=colour))


def split(lines: list[str], width: int = WIDTH) -> tuple[str, str]:
    """Return the two answers of a frame, without their counters."""
    column = (width - 3) // 2
    cells = [(line[:column].rstrip(), line[column + 3 :]) for line in lines[2:]]
    return tuple(" ".join(column).strip() for column in zip(*cells, strict=True))  # type: ignore[return-value]


def test_each_answer_has_at_any_moment_what_had_come_by_then() -> None:
    for moment, lines in frames():
        for answer, shown in zip((PLAIN, DRAFTED), split(lines), strict=True):
            came = "".join(token.text for token in answer.tokens if token.seconds <= moment)
            assert shown == came.strip()


def test_frames_begin_at_once_and_end_with_the_later_answer() -> None:
    moments = [moment for moment, _ in frames()]
    assert (moments[0], moments[-1]) == (0, PLAIN.seconds)
    assert moments == sorted(moments)
    assert split(frames()[-1][1]) == (TEXT, TEXT)


def test_the_counter_stops_when_its_answer_is_whole() -> None:
    title, counter, *_ = frames(width=83)[-1][1]
    assert title == "prose: Some prose, please."
    assert re.findall(r"(\w+) +([\d.]+ s)", counter) == [("plain", "4.5 s"), ("drafted", "1.5 s")]
    assert f"{len(TEXT) / 1.5:.1f} tokens/s" in counter
    assert "tokens/s" not in frames(width=83)[0][1][1]


def test_only_accepted_drafts_are_green_and_nothing_is_without_colour() -> None:
    last = "\n".join(frames(colour=True)[-1][1])
    green = "".join(re.findall("\033\\[32m(.*?)\033\\[0m", last))
    drafted = "".join(token.text for token in DRAFTED.tokens if token.drafted)
    assert green.replace(" ", "") == drafted.replace(" ", "")
    assert re.sub("\033\\[\\d+m", "", last) == "\n".join(frames()[-1][1])


def test_of_a_long_answer_the_end_is_seen() -> None:
    assert split(frames(rows=1)[-1][1]) == ("that is the question",) * 2


def test_code_keeps_its_indentation() -> None:
    code = make_answer("def f():\n\treturn a + b + c + d")
    lines = [line[:20].rstrip() for line in frames(code, code)[-1][1][2:]]
    assert lines == ["def f():", "    return a + b + c", "+ d"]


@given(texts, texts, some.integers(1, 120), some.integers(1, 20))
def test_every_frame_fits_the_screen_and_none_moves_it(
    one: str, other: str, width: int, rows: int
) -> None:
    shown = frames(make_answer(one), make_answer(other, drafts=2), width=width, rows=rows)
    assert len({len(lines) for _, lines in shown}) == 1
    for _, lines in shown:
        assert len(lines) <= rows + 2
        assert all(len(line) <= max(width, 23) for line in lines)
        assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("drafts", [0, 1, 7])
def test_tokens_that_come_together_are_one_frame(drafts: int) -> None:
    taken = make_answer(drafts=drafts)
    assert len(frames(taken, taken)) == 1 + len({token.seconds for token in taken.tokens})
