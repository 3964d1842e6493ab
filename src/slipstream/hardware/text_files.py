"""Files of the kernel that may be missing or unreadable."""

from pathlib import Path


def read_text(path: Path) -> str | None:
    """Return the file's text, or None where it cannot be read."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None
