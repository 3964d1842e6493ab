"""Figures as people read them; a figure that is not known is called unknown."""

import re

UNKNOWN = "unknown"


def show_bytes(count: int | None) -> str:
    return UNKNOWN if count is None else f"{count / 2**30:.1f} GiB"


def show_bandwidth(bytes_per_s: int | None) -> str:
    return UNKNOWN if bytes_per_s is None else f"{bytes_per_s / 1e9:.0f} GB/s"


def show_time(seconds: float) -> str:
    """Write a time in seconds, or in minutes from 90 s on."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def show_number(value: float | None, unit: str = "") -> str:
    return UNKNOWN if value is None else f"{value:.0f} {unit}".rstrip()


def version_tuple(text: str) -> tuple[int, int, int]:
    """Return a version or a compute capability as numbers that compare; suffixes are left out."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    major, minor, patch = numbers.groups() if numbers else (0, 0, 0)
    return int(major or 0), int(minor or 0), int(patch or 0)
