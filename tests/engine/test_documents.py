"""The documents' commands that need an engine, as a user types them one after the other."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.documents import DOCUMENTS, make_environment, read_blocks, run_blocks

pytestmark = [pytest.mark.engine, pytest.mark.weekly]


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """Yield an empty home, and stop what a failed command left running there."""
    yield tmp_path
    command = ["slipstream", "stop", "--now"]
    environment = make_environment(tmp_path)
    subprocess.run(command, env=environment, capture_output=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "document",
    [name for name in DOCUMENTS if any(block.needs("engine") for block in read_blocks(name))],
)
def test_what_needs_an_engine_does_what_the_document_says(document: str, home: Path) -> None:
    blocks = [block for block in read_blocks(document) if block.is_commands]
    elsewhere = ("bed", "gpu", "run")
    here = [block for block in blocks if not any(block.needs(mark) for mark in elsewhere)]
    assert run_blocks(here, home) is None
