"""Two control machines do not change a fleet together, and one that goes away holds up nobody."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from slipstream.fleet.machines.lease import FILE, LEASE_SECONDS, LeaseRequest, change_lease

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
OURS, THEIRS = "a" * 32, "b" * 32


def change(
    folder: Path,
    owner: str,
    now: datetime = NOW,
    *,
    action: Literal["take", "release"] = "take",
    force: bool = False,
) -> str:
    request = LeaseRequest(
        fleet="lab", action=action, owner=owner, who="me@desk", purpose="up", force=force
    )
    return change_lease(folder, request, now).owner


def test_a_held_lease_is_shown_and_kept(tmp_path: Path) -> None:
    assert change(tmp_path, OURS) == OURS
    assert change(tmp_path, THEIRS) == OURS
    assert change(tmp_path, OURS, NOW + timedelta(seconds=30)) == OURS


def test_a_lease_ends_by_itself_and_late_renewal_does_not_take_it_back(tmp_path: Path) -> None:
    change(tmp_path, OURS)
    later = NOW + timedelta(seconds=LEASE_SECONDS + 1)
    assert change(tmp_path, THEIRS, later) == THEIRS
    assert change(tmp_path, OURS, later) == THEIRS


def test_a_lease_is_taken_by_force_given_back_by_its_owner_only_and_a_spoilt_one_is_free(
    tmp_path: Path,
) -> None:
    change(tmp_path, OURS)
    assert change(tmp_path, THEIRS, force=True) == THEIRS
    change(tmp_path, OURS, action="release")
    assert (tmp_path / FILE).exists()
    change(tmp_path, THEIRS, action="release")
    assert not (tmp_path / FILE).exists()
    (tmp_path / FILE).write_text("{")
    assert change(tmp_path, OURS) == OURS
