"""A run begins with what the newest earlier run of the same plan has learnt, and with no more."""

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.planning import LaunchPlan
from slipstream.planning.planner import make_plan
from slipstream.planning.settings import Choice
from slipstream.planning.settings.options import make_options
from slipstream.serving.learnt import MOST_BYTES, digest_plan, inherit_learnt
from slipstream.serving.served_plan import listen_at
from slipstream.serving.swaps import ServedDrafter
from tests.unit.planning.pieces import DRAFTER, TARGET
from tests.unit.serving.kept_runs import AT, HOST, PLAN, keep

NAME = "learnt.json"
SAME = {"plan_digest": "a"}


def change_plan(*words: str) -> LaunchPlan:
    return make_plan(HOST, TARGET, DRAFTER, None, make_options(engine=words))


def digest(plan: LaunchPlan = PLAN, vllm: str = "0.32.0", *, steered: bool = True) -> str:
    return digest_plan(plan, {"vllm": vllm}, steered=steered)


def test_a_plan_is_the_same_wherever_it_listens() -> None:
    copying = {"SLIPSTREAM_COPY": Choice("31", "user", "requested")}
    assert digest(listen_at(PLAN, "::1", 8017)) == digest()
    assert digest(change_plan("--ssl-certfile", "/a.pem")) == digest()
    others = (
        digest(change_plan("--spec-tokens", "3")),
        digest(change_plan("--seed", "3")),
        digest(PLAN.change_variables(copying)),
        digest(vllm="0.33.0"),
        digest(steered=False),
    )
    assert len({digest(), *others}) == len(others) + 1


def test_the_newest_run_of_the_same_plan_hands_its_file_on(tmp_path: Path) -> None:
    for number, digest in enumerate("aaab"):
        at = AT + timedelta(hours=number)
        folder, _ = keep(tmp_path, f"run-{number}", began_at=at, plan_digest=digest)
        if number != 2:  # It learnt nothing.
            (folder.path / NAME).write_text(f"of {number}")
    folder, run = keep(tmp_path, "now", began_at=AT + timedelta(days=1), **SAME)
    source = inherit_learnt(folder, run)
    assert source is not None
    assert source.path.name == "run-1"
    copied = folder.path / NAME
    assert copied.read_text() == "of 1"
    assert copied.stat().st_mode & 0o777 == 0o600


def test_every_core_has_its_own_and_what_is_there_is_kept(tmp_path: Path) -> None:
    before, _ = keep(tmp_path, "before", **SAME)
    for name in (NAME, "learnt-rank-1.json"):
        (before.path / name).write_text("theirs")
    folder, run = keep(tmp_path, "now", **SAME)
    (folder.path / NAME).write_text("mine")
    inherit_learnt(folder, run)
    assert (folder.path / NAME).read_text() == "mine"
    assert (folder.path / "learnt-rank-1.json").read_text() == "theirs"


def _link(path: Path) -> None:
    path.with_name("secret").write_text("secret")
    path.symlink_to("secret")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "link": _link,
    "pipe": os.mkfifo,
    "folder": Path.mkdir,
    "large": lambda path: path.write_bytes(b"1" * (MOST_BYTES + 1)),
    "empty": Path.touch,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_no_small_file_is_not_taken(tmp_path: Path, kind: str) -> None:
    before, _ = keep(tmp_path, "before", **SAME)
    HOSTILE[kind](before.path / NAME)
    folder, run = keep(tmp_path, "now", **SAME)
    assert inherit_learnt(folder, run) is None
    assert not (folder.path / NAME).exists()


def test_the_largest_file_is_taken_whole(tmp_path: Path) -> None:
    before, _ = keep(tmp_path, "before", **SAME)
    (before.path / NAME).write_bytes(b"1" * MOST_BYTES)
    folder, run = keep(tmp_path, "now", **SAME)
    assert inherit_learnt(folder, run) is not None
    assert (folder.path / NAME).stat().st_size == MOST_BYTES


def test_another_users_file_and_a_swapped_drafters_are_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = (ServedDrafter(name="mine-2", folder=tmp_path, since=AT),)
    other, _ = keep(tmp_path, "swapped", drafters=swapped, **SAME)
    (other.path / NAME).write_text("of another drafter")
    folder, run = keep(tmp_path, "now", **SAME)
    assert inherit_learnt(folder, run) is None
    before, _ = keep(tmp_path, "before", **SAME)
    (before.path / NAME).write_text("mine")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert inherit_learnt(folder, run) is None
