"""The pair that tests of pairing begin with."""

from pathlib import Path

import pytest

from tests.unit.checkpoints.pairs import Bench


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)
