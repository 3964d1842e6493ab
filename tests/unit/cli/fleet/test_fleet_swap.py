"""`slipstream fleet swap` as a user types it, with its record, its page and its exit code."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from slipstream.cli.fleet import swap
from slipstream.cli.main import run
from slipstream.fleet.canary.record import Canary
from slipstream.fleet.record import Fleet
from tests.unit.fleet.canary.serving_machines import FLEET, ServingMachine, reply_of
from tests.unit.fleet.far_machines import FarMachines

Capture = pytest.CaptureFixture[str]
Machines = dict[str, ServingMachine]


@pytest.fixture
def machines() -> Machines:
    return {name: ServingMachine(name) for name in FLEET.machines}


@pytest.fixture(autouse=True)
def far(tmp_path: Path, machines: Machines, monkeypatch: pytest.MonkeyPatch) -> FarMachines:
    reached = FarMachines(partial(reply_of, machines))

    @contextmanager
    def open_fake(_: Fleet) -> Iterator[FarMachines]:
        yield reached

    monkeypatch.setattr(swap, "open_ssh", open_fake)
    monkeypatch.setattr("slipstream.fleet.canary.far_groups.time.sleep", lambda _: None)
    monkeypatch.chdir(tmp_path)
    groups = "".join(
        f'[machines.{name}]\n[groups.{name}]\nmachines = ["{name}"]\n' for name in machines
    )
    fleet = f'schema_version = 1\nname = "lab"\n[model]\ntarget = "m"\ndrafter = "old"\n{groups}'
    Path("fleet.toml").write_text(fleet)
    return reached


def list_drafters(machines: Machines) -> set[str]:
    return {machine.drafters[-1][0] for machine in machines.values()}


def test_a_better_drafter_is_promoted_with_a_record_and_a_page(
    machines: Machines, far: FarMachines, capsys: Capture
) -> None:
    words = ["fleet", "swap", "good", "--canary", "1", "--requests", "100", "--html", "page.html"]
    assert run(words, {}) == 0
    assert list_drafters(machines) == {"good"}
    told = capsys.readouterr()
    assert told.out.startswith("PROMOTED: The drafter was promoted to all groups, after ")
    page = Path("page.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    (kept,) = [
        Canary.model_validate_json(content)
        for (machine, name), content in far.files.items()
        if machine == "one" and "/canaries/" in name
    ]
    assert kept.verdict.outcome == "promote"


def test_a_worse_drafter_leaves_with_4(machines: Machines, capsys: Capture) -> None:
    words = ["fleet", "swap", "bad", "--canary", "1", "--answers", "0", "--json"]
    assert run([*words, "--requests", "100"], {}) == 4
    assert list_drafters(machines) == {"old"}
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["outcome"] == "go-back"


def test_all_groups_are_swapped_and_back(machines: Machines, capsys: Capture) -> None:
    assert run(["fleet", "swap", "good"], {}) == 0
    assert list_drafters(machines) == {"good"}
    assert capsys.readouterr().out.splitlines() == [
        f"{name}: good drafts" for name in ("one", "two", "three")
    ]
    assert run(["fleet", "swap", "--back"], {}) == 0
    assert list_drafters(machines) == {"old"}


@pytest.mark.parametrize("words", [[], ["good", "--back"], ["--back", "--canary", "1"]])
def test_a_drafter_or_back_is_wanted(words: list[str], capsys: Capture) -> None:
    assert run(["fleet", "swap", *words], {}) == 2
    assert "hint: slipstream fleet swap DRAFTER --canary 1" in capsys.readouterr().err


def test_a_canary_of_all_groups_is_refused_before_anything_is_done(
    far: FarMachines, capsys: Capture
) -> None:
    assert run(["fleet", "swap", "good", "--canary", "3"], {}) == 1
    assert far.commands == []
    assert "at least one goes on as before" in capsys.readouterr().err


def test_an_engine_over_several_machines_is_rolled_instead(
    far: FarMachines, capsys: Capture
) -> None:
    machines = "[machines.four]\n[machines.five]\n"
    with Path("fleet.toml").open("a") as file:
        file.write(f'{machines}[groups.pair]\nmachines = ["four", "five"]\n')
    assert run(["fleet", "swap", "good"], {}) == 1
    assert far.commands == []
    said = capsys.readouterr().err
    assert "pair: an engine over several machines cannot swap its drafter" in said
    assert "slipstream fleet roll pair" in said


def test_another_desk_that_holds_the_fleet_keeps_it(
    machines: Machines, far: FarMachines, capsys: Capture
) -> None:
    far.lease = {"owner": "0" * 32, "who": "ann@desk", "purpose": "roll"}
    assert run(["fleet", "swap", "good"], {}) == 1
    assert "ann@desk holds the fleet for roll" in capsys.readouterr().err
    assert list_drafters(machines) == {"old"}
