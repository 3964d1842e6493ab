"""What tests of serving share: a machine's processes, as /proc shows them."""

from pathlib import Path

import pytest

from tests.unit.serving.kept_runs import FakeProc


@pytest.fixture
def proc(tmp_path: Path) -> FakeProc:
    return FakeProc(tmp_path / "proc")
