"""Two desks do not change a fleet at the same time, and one that goes away holds up nobody."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream.fleet.lease import FILE, LEASE_SECONDS, make_lease, release_lease, take_lease

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
OURS, THEIRS = "a" * 32, "b" * 32


def take(folder: Path, owner: str, now: datetime = NOW, *, force: bool = False) -> str:
    wanted = make_lease(owner, "me@desk", "up", now)
    return take_lease(folder, wanted, now=now, force=force).owner


def test_a_held_lease_is_shown_and_kept(tmp_path: Path) -> None:
    assert take(tmp_path, OURS) == OURS
    assert take(tmp_path, THEIRS) == OURS
    assert take(tmp_path, OURS, NOW + timedelta(seconds=30)) == OURS


def test_a_lease_ends_by_itself_and_late_renewal_does_not_take_it_back(tmp_path: Path) -> None:
    take(tmp_path, OURS)
    later = NOW + timedelta(seconds=LEASE_SECONDS + 1)
    assert take(tmp_path, THEIRS, later) == THEIRS
    assert take(tmp_path, OURS, later) == THEIRS


def test_a_lease_is_taken_by_force_and_given_back_by_its_owner_only(tmp_path: Path) -> None:
    take(tmp_path, OURS)
    assert take(tmp_path, THEIRS, force=True) == THEIRS
    release_lease(tmp_path, OURS)
    assert (tmp_path / FILE).exists()
    release_lease(tmp_path, THEIRS)
    assert not (tmp_path / FILE).exists()


def test_a_spoilt_file_holds_up_nobody(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("{")
    assert take(tmp_path, OURS) == OURS
