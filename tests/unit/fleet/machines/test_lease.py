"""Two control machines do not change a fleet together, and one that goes away holds up nobody."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from slipstream.errors import SlipstreamError, UnreachableError
from slipstream.fleet.machines import lease
from slipstream.fleet.machines.commands import CommandResult, Machines
from slipstream.fleet.machines.lease import (
    FILE,
    LEASE_SECONDS,
    SURE_SECONDS,
    LeaseLostError,
    LeaseRequest,
    change_lease,
    holding,
)
from tests.unit.fleet.far_machines import FarMachines, make_fleet, say

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
OURS, THEIRS = "a" * 32, "b" * 32


def change(folder: Path, owner: str, seconds: float = 0, **changes: object) -> str:
    wanted = {
        "fleet": "lab",
        "action": "take",
        "owner": owner,
        "holder": "me@desk",
        "purpose": "up",
    }
    request = LeaseRequest.model_validate(wanted | changes)
    return change_lease(folder, request, NOW + timedelta(seconds=seconds)).owner


def test_a_held_lease_is_shown_and_kept(tmp_path: Path) -> None:
    assert change(tmp_path, OURS) == OURS
    assert change(tmp_path, THEIRS) == OURS
    assert change(tmp_path, OURS, 30, epoch=1) == OURS


def test_a_lease_ends_by_itself_and_late_renewal_does_not_take_it_back(tmp_path: Path) -> None:
    change(tmp_path, OURS)
    # Nobody wanted it meanwhile.
    assert change(tmp_path, OURS, LEASE_SECONDS + 1, epoch=1) == OURS
    later = 2 * LEASE_SECONDS + 2
    assert change(tmp_path, THEIRS, later) == THEIRS
    assert change(tmp_path, OURS, later, epoch=1) == THEIRS


@pytest.mark.parametrize(("seconds", "force"), [(5, True), (LEASE_SECONDS + 1, False)])
def test_who_had_it_before_another_does_not_get_it_back_by_renewing(
    seconds: int, force: bool, tmp_path: Path
) -> None:
    change(tmp_path, OURS)
    assert change(tmp_path, THEIRS, seconds, force=force) == THEIRS
    change(tmp_path, OURS, seconds, action="release", epoch=1)
    assert change(tmp_path, OURS, seconds) == THEIRS
    change(tmp_path, THEIRS, seconds, action="release", epoch=2)
    assert change(tmp_path, OURS, seconds + 1, epoch=1) == THEIRS
    assert change(tmp_path, OURS, seconds + 1) == OURS
    assert json.loads((tmp_path / FILE).read_text())["epoch"] == 3


def test_a_spoilt_lease_is_free_and_is_not_renewed(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert change(tmp_path, OURS, epoch=1) != OURS
    assert change(tmp_path, OURS) == OURS


def test_a_holder_that_cannot_be_sure_any_more_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept, another took the fleet and gave it back; or the way to the lease is broken."""
    clock, fault = 0.0, list[Exception]()

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        return say("{}")

    def meddle(machine: str, words: list[str], stdin: bytes | None, after: bool) -> None:
        if words == ["LeaseRequest"] and fault:
            raise fault[0]

    far = FarMachines(reply, leases=tmp_path, meddle=meddle)
    monkeypatch.setattr(lease, "read_clock", lambda: clock)
    with holding(Machines(make_fleet(), far), "up") as held:
        held.send("two", b"1", "file")
        clock = SURE_SECONDS + 1
        held.send("two", b"2", "file")
        clock += SURE_SECONDS + 1
        fault.append(OSError(11, "Resource temporarily unavailable"))
        with pytest.raises(OSError, match="temporarily"):
            held.send("two", b"3", "file")
        fault.clear()
        held.send("two", b"4", "file")
        change(tmp_path, THEIRS, force=True)
        change(tmp_path, THEIRS, action="release", epoch=2)
        clock += SURE_SECONDS + 1
        for _ in range(2):
            with pytest.raises(LeaseLostError, match="took the fleet over"):
                held.send("two", b"5", "file")
    assert [*far.files.values()] == [b"4"]


def test_who_takes_it_by_force_waits_until_its_holder_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "SURE_SECONDS", 0.2)
    machines = Machines(make_fleet(), FarMachines(lambda *_: say("{}"), leases=tmp_path, now=NOW))
    change(tmp_path, THEIRS)
    with (
        pytest.raises(SlipstreamError, match="me@desk holds the fleet for up"),
        holding(machines, "up"),
    ):
        pass
    began = time.monotonic()
    with holding(machines, "up", force=True) as held:
        assert time.monotonic() - began >= 0.2
        held.send("two", b"1", "file")


def test_while_the_first_machine_is_down_one_of_those_that_force_has_the_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds it on the first machine, too, changes nothing once another may."""
    clock = 0.0
    monkeypatch.setattr(lease, "read_clock", lambda: clock)
    monkeypatch.setattr(lease, "SURE_SECONDS", 0.2)
    far = FarMachines(lambda *_: say("{}"), leases=tmp_path / "two", now=NOW)
    machines = Machines(make_fleet(), far)
    with holding(machines, "up") as before:
        far.down.add("one")
        with pytest.raises(UnreachableError, match="one"), holding(machines, "stop"):
            pass
        began = time.monotonic()
        with holding(machines, "stop", force=True) as first:
            assert time.monotonic() - began >= 0.2
            first.send("two", b"1", "file")
            with holding(machines, "stop", force=True) as second:
                clock += 0.3
                with pytest.raises(UnreachableError, match="one"):
                    before.send("two", b"0", "file")
                with pytest.raises(LeaseLostError, match="took the fleet over"):
                    first.send("two", b"2", "file")
                second.send("two", b"3", "file")
            far.down.add("two")
            with (
                pytest.raises(UnreachableError, match="no machine grants a lease"),
                holding(machines, "stop", force=True),
            ):
                pass
    assert [*far.files.values()] == [b"3"]
