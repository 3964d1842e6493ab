"""The manual page says what `--help` says, in a form that man reads without a complaint."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from slipstream.cli.arguments import PEOPLES_VERBS
from slipstream.cli.manual import render_manual
from slipstream.errors import ExitCode
from tests.snapshots import read_snapshot

FOLDER = Path(__file__).parents[3] / "man"


@pytest.fixture(autouse=True)
def columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_the_kept_page_is_the_one_that_the_parsers_make() -> None:
    page = render_manual()
    assert page == read_snapshot("slipstream.1", page, FOLDER)


def test_every_verb_and_exit_code_has_its_place() -> None:
    page = render_manual()
    assert all(f"\n.SS {verb}\n" in page for verb in PEOPLES_VERBS)
    assert all(f"\n.B {int(code)}\n" in page for code in ExitCode)


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_roff_formats_the_page_without_a_warning() -> None:
    done = subprocess.run(
        ["groff", "-man", "-ww", "-Tascii", "-P-cbou"],
        input=render_manual().encode(),
        capture_output=True,
        check=True,
        env={"PATH": os.environ["PATH"]},
    )
    assert done.stderr == b""
    assert b"--no-speculation" in done.stdout
