"""A `Report` as one HTML page: no network, no script; light, dark, phone and paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from slipstream.reporting.drawing import draw, protect
from slipstream.reporting.report import Report, Row, Section, Table

# What a hostile name could try, the browser refuses as well.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
LONG_SENTENCE, LONG_FIGURE = 240, 6
MOST_COLUMNS = {"small": 4, "broad": 3, "wide": 1}


@dataclass(frozen=True, slots=True)
class Figure:
    """Drawings under a title, with how to read them; one that is folded opens at a click.

    `key` lists what they show: a letter, which is a colour's class in lower case, and a name.
    """

    title: str
    caption: str
    panels: Sequence[str]
    key: Sequence[tuple[str, str]] = ()
    layout: Literal["small", "broad", "wide"] = "small"
    folded: bool = False


def render_page(report: Report, figures: Sequence[Figure]) -> str:
    """Write the page: the answer, the charts, the tables, the conditions."""
    style = (files("slipstream.reporting") / "page.css").read_text()
    head = "".join(
        (
            draw("meta", charset="utf-8"),
            draw("meta", name="viewport", content="width=device-width, initial-scale=1"),
            draw("meta", name="color-scheme", content="light dark"),
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}"/>',
            draw("title", protect(report.title)),
            f"<style>{style}</style>",
        )
    )
    body = draw(
        "main",
        _render_headline(report),
        *(_render_figure(figure) for figure in figures if figure.panels),
        *map(_render_section, report.filled),
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>{body}</body></html>\n'


def _render_headline(report: Report) -> str:
    return draw(
        "header",
        draw("p", protect(report.title), kind="topic"),
        draw(
            "div",
            draw("strong", protect(report.figure)),
            draw("span", protect(report.interval), kind="range"),
            draw("p", protect(report.figure_note)),
            kind=f"figure {report.answer.replace(' ', '-')}"
            + " wordy" * (len(report.figure) > LONG_FIGURE),
        ),
        draw(
            "h1",
            draw("span", protect(report.answer)),
            protect(report.sentence),
            kind="long" if len(report.sentence) > LONG_SENTENCE else "",
        ),
    )


def _render_figure(figure: Figure) -> str:
    columns = min(len(figure.panels), MOST_COLUMNS[figure.layout])
    caption = draw(
        "figcaption",
        *(_render_key(letter, name) for letter, name in figure.key if name),
        protect(figure.caption),
    )
    panels = draw(
        "div", *figure.panels, kind=f"panels {figure.layout}", style=f"--columns:{columns}"
    )
    return _place("figure", figure.title, [caption, panels], folded=figure.folded)


def _place(name: str, title: str, parts: Sequence[str], *, folded: bool) -> str:
    """Return an element under its title; folded, the title opens it."""
    heading = draw("h2", protect(title))
    if not folded:
        return draw(name, heading, *parts)
    return draw(name, draw("details", draw("summary", heading), *parts))


def _render_key(letter: str, name: str) -> str:
    arm = letter.lower()
    swatch = draw(
        "svg",
        draw("path", d="M0 6H24", kind=f"line {arm}"),
        draw("circle", cx=12, cy=6, r=4, kind=f"dot {arm}"),
        viewBox="0 0 24 12",
        aria_hidden="true",
    )
    return draw("span", swatch, protect(f"{letter} {name}"), kind=f"key value {arm}")


def _render_section(section: Section) -> str:
    parts = []
    if section.table is not None:
        table = _render_table(section.table)
        parts.append(
            draw("div", table, kind="scroll", tabindex="0", role="region", aria_label=section.title)
        )
    if section.lines:
        parts.append(draw("ul", *(draw("li", protect(line)) for line in section.lines)))
    if section.code:
        lines = "\n".join(map(protect, section.code.split("\n")))
        parts.append(draw("pre", lines, tabindex="0"))
    return _place("section", section.title, parts, folded=section.in_full)


def _render_table(table: Table) -> str:
    def fill(name: str, row: Row) -> list[str]:
        return [
            draw(name, protect(cell), kind="words" if at in table.words else "number")
            for at, cell in enumerate(row)
        ]

    rows = []
    before = ""
    for row in table.rows:
        first = draw("th", protect(row[0]), scope="row")
        group = "" if row[0] == before else "group"
        rows.append(draw("tr", first, *fill("td", row)[1:], kind=group))
        before = row[0]
    header = draw("thead", draw("tr", *fill("th", table.header))) if table.header else ""
    return draw("table", header, draw("tbody", "".join(rows)), kind="" if header else "facts")
