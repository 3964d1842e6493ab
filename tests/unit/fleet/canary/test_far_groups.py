"""A trial around a change that is no swap: a group that was started anew with another plan."""

from functools import partial

import pytest

from slipstream.fleet.canary.far_groups import FarGroups, FarTrial, TrialLimits, open_trial
from tests.unit.fleet.canary.serving_machines import FLEET, ServingMachine, reply_of
from tests.unit.fleet.far_machines import FarMachines

Machines = dict[str, ServingMachine]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.fleet.canary.far_groups.time.sleep", lambda _: None)


@pytest.fixture
def machines() -> Machines:
    return {name: ServingMachine(name) for name in FLEET.machines}


def begin(machines: Machines) -> FarTrial:
    groups = FarGroups(FLEET, FarMachines(partial(reply_of, machines)), lambda _: None)
    return open_trial(groups, "plan", ("one",), ("two", "three"), TrialLimits(requests=100))


@pytest.mark.parametrize(("drafter", "outcome"), [("good", "promote"), ("bad", "go-back")])
def test_a_plan_is_decided_upon_by_requests(machines: Machines, drafter: str, outcome: str) -> None:
    trial = begin(machines)
    machines["one"].restart(drafter)
    verdict = trial.decide()
    assert verdict.outcome == outcome
    canary = trial.trial.describe(verdict, name="the new plan", done=())
    assert (canary.subject, canary.threshold) == ("plan", 0.9)


def test_a_canary_whose_run_ends_goes_back(machines: Machines) -> None:
    trial = begin(machines)
    serve = machines["one"].serve

    def end(requests: int) -> None:
        machines["one"].run = "another"
        serve(requests)

    machines["one"].serve = end  # type: ignore[method-assign]
    verdict = trial.decide()
    assert (verdict.outcome, verdict.cause) == ("go-back", "lost")
    assert verdict.because == "one: its run ended during the trial"
