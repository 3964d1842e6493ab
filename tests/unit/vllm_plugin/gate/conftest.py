"""A busy disk is no failure: nothing here has to outlive a power cut."""

import pytest

from tests.unit.vllm_plugin.gate.pieces import Engine


@pytest.fixture(autouse=True)
def _do_not_wait_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def engine() -> Engine:
    return Engine()
