"""A drafter goes through a fleet group by group, or is decided upon on a canary."""

from functools import partial
from pathlib import Path

import pytest

from slipstream.errors import EngineError, InvalidInputError
from slipstream.fleet.canary import trial
from slipstream.fleet.canary.far_groups import FarGroups, TrialLimits
from slipstream.fleet.canary.record import Canary
from slipstream.fleet.swap import (
    FleetSwap,
    list_swapping_groups,
    place_drafter,
)
from tests.unit.fleet.canary.serving_machines import FLEET, ServingMachine, reply_of
from tests.unit.fleet.far_machines import FarMachines

Machines = dict[str, ServingMachine]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slipstream.fleet.canary.far_groups.time.sleep", lambda _: None)


@pytest.fixture
def machines() -> Machines:
    return {name: ServingMachine(name) for name in FLEET.machines}


def begin(machines: Machines, drafter: str) -> tuple[FleetSwap, FarMachines]:
    far = FarMachines(partial(reply_of, machines))
    return FleetSwap(FarGroups(FLEET, far, lambda _: None), drafter, lambda: None), far


def try_on(machines: Machines, drafter: str, *, answers: int = 0) -> Canary:
    swap, _ = begin(machines, drafter)
    limits = TrialLimits(requests=100, seconds=3600, answers=answers)
    return swap.try_on(("three",), ("one", "two"), limits)


def list_drafters(machines: Machines) -> dict[str, str]:
    return {name: machine.drafters[-1][0] for name, machine in machines.items()}


def test_without_a_canary_all_groups_are_swapped_in_turn(machines: Machines) -> None:
    swap, far = begin(machines, "good")
    swap.swap_groups(list_swapping_groups(FLEET))
    assert list_drafters(machines) == dict.fromkeys(machines, "good")
    swapped = [name for name, words in far.commands if "swap" in words]
    assert swapped == ["one", "two", "three"]


def test_if_a_group_refuses_all_go_back(machines: Machines) -> None:
    machines["three"].refuses = True
    swap, _ = begin(machines, "good")
    with pytest.raises(EngineError, match=r"three: .swap_shape: it has"):
        swap.swap_groups(list_swapping_groups(FLEET))
    assert list_drafters(machines) == dict.fromkeys(machines, "old")
    assert [len(machine.drafters) for machine in machines.values()] == [3, 3, 1]
    assert not any("\x1b" in line for line in swap.done)


def test_a_better_drafter_is_promoted_to_all(machines: Machines) -> None:
    canary = try_on(machines, "good", answers=24)
    assert canary.verdict.outcome == "promote"
    assert canary.verdict.cause == "speed"
    assert list_drafters(machines) == dict.fromkeys(machines, "good")
    assert canary.before == "old"
    assert (canary.groups, canary.others) == (("three",), ("one", "two"))
    assert canary.evidence.regret is not None
    assert canary.evidence.regret.answers == 24
    assert Canary.model_validate_json(canary.to_json()) == canary


def test_a_worse_drafter_goes_back_and_the_others_never_see_it(machines: Machines) -> None:
    canary = try_on(machines, "bad")
    assert canary.verdict.outcome == "go-back"
    assert list_drafters(machines) == dict.fromkeys(machines, "old")
    assert [len(machine.drafters) for machine in machines.values()] == [1, 1, 3]


def test_an_equal_drafter_is_undecided_in_the_end_and_goes_back(machines: Machines) -> None:
    canary = try_on(machines, "same")
    assert (canary.verdict.outcome, canary.verdict.cause) == ("undecided", "limit")
    assert list_drafters(machines)["three"] == "old"


def test_answers_of_another_text_go_back_at_once(machines: Machines) -> None:
    machines["three"].faulty = frozenset({"good"})
    canary = try_on(machines, "good", answers=24)
    assert (canary.verdict.outcome, canary.verdict.cause) == ("go-back", "regret")
    assert list_drafters(machines)["three"] == "old"


def test_a_canary_that_swapped_back_by_itself_is_left_alone(machines: Machines) -> None:
    machines["three"].returns_at = 16
    canary = try_on(machines, "bad")
    assert (canary.verdict.outcome, canary.verdict.cause) == ("go-back", "own-watch")
    assert [name for name, _ in machines["three"].drafters] == ["old", "bad", "old"]
    assert canary.done[-1] == "three had swapped back by itself"


def test_an_interrupt_leaves_the_drafter_before(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(trial.CanaryTrial, "watch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        try_on(machines, "good")
    assert list_drafters(machines) == dict.fromkeys(machines, "old")


def test_a_machine_that_is_silent_for_a_while_is_no_end(
    machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap, far = begin(machines, "good")
    looks = 0

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        far.down = {"one"} if looks < 4 else set()

    monkeypatch.setattr("slipstream.fleet.canary.far_groups.time.sleep", wait)
    canary = swap.try_on(("three",), ("one", "two"), TrialLimits(requests=100, answers=0))
    assert canary.verdict.outcome == "promote"
    assert looks >= 4


def test_a_trial_needs_requests_before_it(machines: Machines) -> None:
    for machine in machines.values():
        machine.lines.clear()
    canary = try_on(machines, "good")
    assert canary.evidence.requests_before >= 48
    assert canary.verdict.outcome == "promote"


def test_a_folder_of_the_desk_is_sent_to_every_machine(tmp_path: Path, machines: Machines) -> None:
    drafter = tmp_path / "my drafter"
    drafter.mkdir()
    for name in ("config.json", "model.safetensors", "notes.md"):
        (drafter / name).write_text(name)
    far = FarMachines(partial(reply_of, machines))
    place = place_drafter(FLEET, far, ("one", "two"), str(drafter), lambda _: None)
    assert place.startswith("~/.local/share/slipstream/fleet/lab/drafters/my-drafter-")
    assert sorted(far.files) == [
        (machine, f"{place.removeprefix('~/')}/{name}")
        for machine in ("one", "two")
        for name in ("config.json", "model.safetensors")
    ]
    assert place_drafter(FLEET, far, ("one",), "org/name", lambda _: None) == "org/name"


def test_a_folder_without_weights_is_not_sent(tmp_path: Path, machines: Machines) -> None:
    far = FarMachines(partial(reply_of, machines))
    with pytest.raises(InvalidInputError, match="no safetensors"):
        place_drafter(FLEET, far, ("one",), str(tmp_path), lambda _: None)
