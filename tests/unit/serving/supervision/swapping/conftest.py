"""A stage for swaps, without waits."""

from pathlib import Path

import pytest

from slipstream.hardware import Host
from slipstream.serving.supervision.swapping import swapping
from tests.unit.serving.supervision.swapping.test_swapping import Theatre


@pytest.fixture(autouse=True)
def hurry(hurried: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swapping, "LOOK_EVERY_SECONDS", 0.01)


@pytest.fixture
def theatre(tmp_path: Path, host: Host) -> Theatre:
    return Theatre(tmp_path, host)
