"""Columns for the terminal."""

from collections.abc import Iterable, Sequence


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
