"""A tag is released only if the version, the changelog and the addresses agree with it."""

import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

REPOSITORY = Path(__file__).parents[3]
notes: Any = SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "release")))
URLS = {"Homepage": "https://github.com/us/slipstream"}
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.2.0 - 2026-12-01\n\n- two\n\n## 0.1.0\n\n- one\n"
)


def test_a_section_is_the_one_of_its_version() -> None:
    assert notes.read_section(CHANGELOG, "0.2.0") == "- two"
    assert notes.read_section(CHANGELOG, "0.1.0") == "- one"
    assert notes.read_section(CHANGELOG, "0.1") is None


def test_what_fits_is_released_and_everything_that_does_not_fit_is_named() -> None:
    assert notes.find_faults("v0.2.0", "0.2.0", "- two", URLS, "us/slipstream") == []
    faults = notes.find_faults("v0.2.0", "0.3.0.dev0", None, URLS, "them/slipstream")
    assert len(faults) == 4
    for words in ("the tag is v0.2.0", "no version to release", "no section", "Homepage"):
        assert sum(words in fault for fault in faults) == 1


def test_the_changelog_has_a_section_for_this_version_or_for_the_next() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    assert notes.read_section(changelog, "Unreleased") is not None
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert {"Homepage", "Issues", "Changelog", "Documentation"} == set(project["urls"])
