"""A tag is released only if the version, the changelog and the addresses agree with it."""

import argparse
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream import __version__

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
    assert notes.find_faults("v0.2.0a1", "0.2.0a1", "- two", URLS, "us/slipstream") == []
    faults = notes.find_faults("v0.2.0", "0.3.0.dev0", None, URLS, "them/slipstream")
    assert len(faults) == 4
    for words in ("the tag is v0.2.0", "no version to release", "no section", "Homepage"):
        assert sum(words in fault for fault in faults) == 1


def test_what_this_version_is_tagged_as_is_released_once_it_has_an_owner() -> None:
    changelog = (REPOSITORY / "CHANGELOG.md").read_text()
    section = notes.read_section(changelog, __version__)
    assert section
    urls = tomllib.loads(change_owner("us")["pyproject.toml"])["project"]["urls"]
    assert {"Homepage", "Issues", "Changelog", "Documentation"} == set(urls)
    assert notes.find_faults(f"v{__version__}", __version__, section, urls, "us/slipstream") == []


def change_owner(name: str) -> dict[str, str]:
    """Return every file that names the owner, with this one."""
    texts = {file: (REPOSITORY / file).read_text() for file in notes.OWNED}
    owner = tomllib.loads(texts["pyproject.toml"])["project"]["urls"]["Homepage"].split("/")[3]
    changed: dict[str, str] = notes.change_owner(texts, owner, name)
    return changed


def test_one_command_writes_the_owner_into_every_file() -> None:
    changed = change_owner("some-one")
    assert "* @some-one\n" in changed[".github/CODEOWNERS"]
    assert notes.change_owner(changed, "some-one", "us") == change_owner("us")
    folders = (".github", "deploy", "docs", "scripts", "src")
    files = [
        *REPOSITORY.glob("*.*"),
        *(file for one in folders for file in REPOSITORY.glob(f"{one}/**/*")),
    ]
    pattern = re.compile(r"(github\.com/|--repo |@)OWNER\b")
    named = {
        str(file.relative_to(REPOSITORY))
        for file in files
        if file.is_file() and pattern.search(file.read_text(errors="replace"))
    }
    assert named <= {*notes.OWNED}
    assert not any("OWNER/slipstream" in text or "@OWNER" in text for text in changed.values())


@pytest.mark.parametrize("name", ["", "a b", "us/slipstream", "-us", "x" * 40, "@us"])
def test_what_is_no_name_on_github_is_refused(name: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        notes.read_owner(name)
