"""`Report`: the content of a report, as text for the terminal and as Markdown.

`html_page.py` makes the same into a page. Names come from servers and files of others, so what
cannot be printed is replaced before it reaches a terminal or a page.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean
from typing import TypeVar

from slipstream.units import UNKNOWN

Row = tuple[str, ...]
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, optionally with a header; all but the text columns are figures."""

    header: Row
    rows: Sequence[Row]
    words: Sequence[int] = (0,)


@dataclass(frozen=True, slots=True)
class Section:
    """A table, lines or a command under a title; one in full is too long for the terminal."""

    title: str
    table: Table | None = None
    lines: Sequence[str] = ()
    code: str = ""
    in_full: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The answer in a word, its main figure and sentence, and the evidence."""

    title: str
    answer: str
    sentence: str
    sections: Sequence[Section]
    figure: str = ""
    interval: str = ""
    figure_note: str = ""

    @property
    def filled(self) -> list[Section]:
        """The sections that have something to show."""
        return [
            one for one in self.sections if (one.table and one.table.rows) or one.lines or one.code
        ]


def tabulate(
    items: Iterable[Item], columns: Mapping[str, Callable[[Item], str]], words: Sequence[int] = (0,)
) -> Table:
    """Return a table with a row per item, from each column's name and how it writes an item."""
    rows = [tuple(write(item) for write in columns.values()) for item in items]
    return Table(tuple(columns), rows, words)


def render_text(report: Report) -> str:
    """Write a report for the terminal: the sentence first."""
    parts = [clean(report.sentence)]
    for section in report.filled:
        if not section.in_full:
            lines = [f"  {clean(line)}" for line in (*section.lines, *section.code.splitlines())]
            table = align_table(section.table, "  ") if section.table else []
            parts.append("\n".join([clean(section.title), *table, *lines]))
    return "\n\n".join(parts)


def render_markdown(report: Report) -> str:
    """Write a report as Markdown, whole."""
    parts = [f"# {_mark(report.title)}", f"**{_mark(report.sentence)}**"]
    for section in report.filled:
        parts.append(f"## {_mark(section.title)}")
        if section.table is not None:
            parts.append("\n".join(_mark_table(section.table)))
        if section.lines:
            parts.append("\n".join(f"- {_mark(line)}" for line in section.lines))
        if section.code:
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", section.code)), default=0))
            parts.append(f"{fence}\n{clean_lines(section.code)}\n{fence}")
    return "\n\n".join(parts) + "\n"


def clean(text: str) -> str:
    """Replace what cannot be printed, an escape for the terminal among it."""
    return "".join(sign if sign.isprintable() else "\N{REPLACEMENT CHARACTER}" for sign in text)


def clean_lines(text: str) -> str:
    """Replace what cannot be printed, but for the ends of lines."""
    return "\n".join(map(clean, text.split("\n")))


def clean_text(text: str) -> str:
    """Replace what cannot be printed, but for tabs and the ends of lines."""
    return "\t".join(map(clean_lines, text.split("\t")))


def show(value: float | None, decimals: int = 1, unit: str = "") -> str:
    """Write a figure with so many decimals, and its unit if it has one."""
    return UNKNOWN if value is None else f"{value:.{decimals}f} {unit}".rstrip()


def find_mean(values: Sequence[float]) -> float | None:
    """Return the geometric mean: the ratio of two is the mean of the ratios."""
    if not values:
        return None
    return exp(fmean(map(log, values))) if min(values) > 0 else 0.0


def align(rows: Iterable[Sequence[str]], *, indent: str = "") -> list[str]:
    """Pad every column but the last to its widest cell."""
    table = [list(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return [
        indent
        + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def align_table(table: Table, indent: str = "") -> list[str]:
    """Write a table for the terminal, figures to the right; one without rows is nothing."""
    if not table.rows:
        return []
    rows = [[clean(cell) for cell in row] for row in table.rows]
    if table.header:
        rows.insert(0, [clean(name).upper() for name in table.header])
    columns = [
        column
        if at in table.words
        else [cell.rjust(max(len(other) for other in column)) for cell in column]
        for at, column in enumerate(zip(*rows, strict=True))
    ]
    return align(zip(*columns, strict=True), indent=indent)


def _mark_table(table: Table) -> list[str]:
    header = table.header or ("",) * len(table.rows[0])
    rule = ["---" if at in table.words else "---:" for at in range(len(header))]
    rows = [[_mark(cell) for cell in row] for row in (header, *table.rows)]
    return [f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:])]


def _mark(text: str) -> str:
    return re.sub(r"([\\`*_\[\]<>|#&~])", r"\\\1", clean(text))
