"""Two answers side by side on the terminal, growing at their measured speed."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from slipstream.demo.performance import RecordedAnswer, Token
from slipstream.reporting.report import clean, clean_lines

LEAST_SECONDS_PER_FRAME = 0.04
LEAST_WIDTH = 10
BETWEEN = " | "
TAB = "    "

_BOLD, _GREEN, _PLAIN = "\033[1m", "\033[32m", "\033[0m"


class _Sign(NamedTuple):
    text: str
    drafted: bool


def list_frames(
    plain: RecordedAnswer, drafted: RecordedAnswer, *, width: int, rows: int, colour: bool
) -> Iterator[tuple[float, list[str]]]:
    """Yield the lines on the screen from each moment on; every frame has as many lines."""
    column = max(LEAST_WIDTH, (width - len(BETWEEN)) // 2)
    answers = {"plain": plain, "drafted": drafted}
    needed = max(len(_wrap(answer.tokens, column)) for answer in answers.values())
    title = clean(f"{plain.prompt.kind}: {plain.prompt.messages[-1]['content']}")
    for moment in _list_moments(plain, drafted):
        columns = [
            _draw_column(name, answer, moment, column, min(rows, needed), colour)
            for name, answer in answers.items()
        ]
        lines = [BETWEEN.join(cells).rstrip() for cells in zip(*columns, strict=True)]
        yield moment, [title[:width], *lines]


def _list_moments(*answers: RecordedAnswer) -> list[float]:
    """List the moments at which tokens came, and the beginning; close ones are seen as one."""
    moments = [0.0]
    came = sorted({token.seconds for answer in answers for token in answer.tokens})
    for seconds in came:
        if seconds - moments[-1] >= LEAST_SECONDS_PER_FRAME or seconds == came[-1]:
            moments.append(seconds)
    return moments


def _draw_column(
    name: str, answer: RecordedAnswer, moment: float, width: int, rows: int, colour: bool
) -> list[str]:
    """Draw an answer so far under its counter, and of a long one the end."""
    tokens = [token for token in answer.tokens if token.seconds <= moment]
    seconds = min(moment, answer.seconds)
    speed = f"{len(tokens) / seconds:.1f} tokens/s" if tokens else ""
    room = width - len(name)
    counter = f"{seconds:.1f} s  {speed:>13}".rjust(room)[-room:]
    head = f"{_BOLD}{name}{_PLAIN}" if colour else name
    lines = _wrap(tokens, width)[-rows:]
    blank = [""] * (rows - len(lines))
    return [
        head + counter,
        *(_paint(line, colour) + " " * (width - len(line)) for line in lines),
        *(line.ljust(width) for line in blank),
    ]


def _paint(line: Sequence[_Sign], colour: bool) -> str:
    parts = []
    for drafted, signs in groupby(line, key=lambda sign: sign.drafted):
        text = "".join(sign.text for sign in signs)
        parts.append(f"{_GREEN}{text}{_PLAIN}" if drafted and colour else text)
    return "".join(parts)


def _wrap(tokens: Sequence[Token], width: int) -> list[list[_Sign]]:
    """Break text into lines, between words where possible."""
    lines: list[list[_Sign]] = []
    line: list[_Sign] = []
    for token in tokens:
        for sign in clean_lines(token.text.replace("\t", TAB)):
            if sign == "\n":
                lines.append(line)
                line = []
                continue
            line = [*line, _Sign(sign, token.drafted)]
            if len(line) > width:
                end = _find_break(line, width)
                lines.append(line[:end])
                line = line[end + (line[end].text == " ") :]
    return [*lines, line]


def _find_break(line: Sequence[_Sign], width: int) -> int:
    """Return the place of the last space after a word, or else the column's end."""
    text = "".join(sign.text for sign in line)
    indent = len(text) - len(text.lstrip())
    return max(text.rfind(" ", indent), 0) or width
