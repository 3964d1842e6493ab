"""Three replicas that serve, for tests of what changes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.cli.fleet.site import Site, bring_up, make_replicas


@pytest.fixture
def site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Site]:
    made = make_replicas(tmp_path, monkeypatch)
    bring_up(made, capsys)
    monkeypatch.setattr("slipstream.fleet.rolling.steps.time.sleep", made.end_trials)
    yield made
    # Nobody ever serves what was neither tried nor accepted by its own machine.
    for run_now in made.runs.values():
        trial = run_now.trial
        if trial is not None and trial.state == "rolled back":
            assert run_now.drafters[-1].name == "old"
