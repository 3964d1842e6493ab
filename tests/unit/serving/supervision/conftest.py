"""What the tests of supervisors share: a machine, and waits that are short."""

from functools import partial
from pathlib import Path

import pytest

from slipstream.hardware import Host, load_host
from slipstream.serving.supervision import engine_life, supervisor
from slipstream.serving.supervision.causes import ladder
from tests.unit.serving.supervision.fake_engine import MakeStage, Stage


@pytest.fixture
def host() -> Host:
    """Return a machine without unified memory: nothing guards it."""
    return load_host("gb10").model_copy(update={"accelerators": ()})


@pytest.fixture
def make_stage(tmp_path: Path, host: Host) -> MakeStage:
    return partial(Stage, tmp_path, host)


@pytest.fixture
def stage(make_stage: MakeStage) -> Stage:
    return make_stage()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for nothing that the tests are not about."""
    monkeypatch.setattr(ladder, "FIRST_WAIT_SECONDS", 0)
    monkeypatch.setattr(ladder, "LONGEST_WAIT_SECONDS", 0)
    monkeypatch.setattr(engine_life, "WATCH_EVERY_SECONDS", 0.05)
    monkeypatch.setattr(engine_life, "READ_LOG_EVERY_SECONDS", 0.02)
    monkeypatch.setattr(supervisor, "SETTLED_SECONDS", 0.1)
