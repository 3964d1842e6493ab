"""Published security advisories for an installed engine, from the shipped list.

The list is the floor for a machine without a network; it ages, and says so.
"""

import re
import tomllib
from datetime import date, timedelta
from functools import cache
from pathlib import Path
from typing import Literal

from slipstream.records import Record

SHIPPED = Path(__file__).with_name("advisories.toml")
OLD_AFTER = timedelta(days=90)


class Advisory(Record):
    """A published advisory: its consequence and the affected versions."""

    id: str
    danger: str
    since: str = "0"
    fixed: str


class AdvisoryFile(Record):
    """The known advisories, and the date of the list."""

    schema_version: Literal[1]
    compiled: date
    advisories: tuple[Advisory, ...]


class KnownAdvisory(Record):
    """A published advisory for an installed package."""

    package: str
    version: str
    id: str
    summary: str


class Lookup(Record):
    """The result of a lookup; `failure` says why nothing is known."""

    asked: int
    advisories: tuple[KnownAdvisory, ...] = ()
    failure: str | None = None


@cache
def load_advisories() -> AdvisoryFile:
    """Return the shipped list."""
    return AdvisoryFile.model_validate(tomllib.loads(SHIPPED.read_text()))


def find_advisories(version: str) -> tuple[Advisory, ...]:
    """Return the advisories of a version."""
    found = parse_version(version)
    return tuple(
        advisory
        for advisory in load_advisories().advisories
        if parse_version(advisory.since) <= found < parse_version(advisory.fixed)
    )


def parse_version(text: str) -> tuple[int, int, int]:
    """Return the first three numbers of a version."""
    numbers = re.match(r"(\d+)(?:\.(\d+))?(?:\.(\d+))?", text)
    major, minor, patch = numbers.groups() if numbers else (0, 0, 0)
    return int(major or 0), int(minor or 0), int(patch or 0)
