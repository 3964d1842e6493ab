"""Results as text, JSON, an HTML page and Markdown."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.reporting.report import Report, render_markdown, render_text

Measured = TypeVar("Measured", bound=Record)


def require_writable(*files: Path | None) -> None:
    """Raise if a report's folder does not exist, before anything is measured."""
    for file in files:
        if file is not None and not (folder := file.absolute().parent).is_dir():
            raise InvalidInputError(f"there is no folder {folder}", hint=f"mkdir -p {folder}")


def show_report(
    record: Measured,
    report: Report,
    html: Callable[[Measured], str],
    options: argparse.Namespace,
    screen: Screen,
    text: str | None = None,
) -> None:
    """Print a record, and write the files that --html and --markdown name."""
    screen.show_data(text=text or render_text(report), document=record.to_json())
    if options.html:
        write_report(options.html, html(record), screen)
    if options.markdown:
        write_report(options.markdown, render_markdown(report), screen)


def write_report(file: Path, content: str, screen: Screen) -> None:
    """Write a report and print its path."""
    file.write_text(content, encoding="utf-8")
    screen.show_progress(f"written: {file}")
