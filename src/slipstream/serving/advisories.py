"""The published holes that an installed engine has, by its version."""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Literal

from slipstream.records import Record

SHIPPED = Path(__file__).with_name("advisories.toml")


class Advisory(Record):
    """A published hole: what it lets others do, and which versions have it."""

    id: str
    danger: str
    since: str = "0"
    fixed: str


class AdvisoryFile(Record):
    """The holes that are known."""

    schema_version: Literal[1]
    advisories: tuple[Advisory, ...]


@cache
def load_advisories() -> tuple[Advisory, ...]:
    """Read the shipped list."""
    return AdvisoryFile.model_validate(tomllib.loads(SHIPPED.read_text())).advisories


def find_holes(version: str) -> tuple[Advisory, ...]:
    """Give the holes of a version."""
    found = parse_version(version)
    return tuple(
        advisory
        for advisory in load_advisories()
        if parse_version(advisory.since) <= found < parse_version(advisory.fixed)
    )


def parse_version(text: str) -> tuple[int, int, int]:
    """Read the first three numbers of a version, whatever build it names after them."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    major, minor, patch = numbers.groups() if numbers else (0, 0, 0)
    return int(major or 0), int(minor or 0), int(patch or 0)
