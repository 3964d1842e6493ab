"""`fleet swap` as a user types it, whatever becomes of the control machine."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.errors import UnreachableError
from slipstream.fleet.rolling.rollout import Rollout
from slipstream.fleet.rolling.steps import TRIES
from slipstream.serving.swaps import ServedDrafter, SwapTrial
from tests.unit.cli.fleet.site import Site
from tests.unit.cli.fleet.test_rollouts import DRAFTING, Capture, drafters, read_rollout
from tests.unit.fleet.far_machines import ControlDiedError

CANARY = ("fleet", "swap", "new", "--canary", "1", "--hours", "2")


def test_all_drafting_groups_are_swapped_and_back(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "swap", "new"], {}) == 0
    assert drafters(site) == ["new", "new"]
    assert site.runs["three"].drafters == ()
    assert run(["fleet", "swap", "--back"], {}) == 0
    assert drafters(site) == ["old", "old"]
    assert read_rollout(site).state == "rolled back"
    capsys.readouterr()
    assert run(["fleet", "swap", "--back"], {}) == 1


def test_a_run_that_is_over_needs_no_drafter_back(site: Site) -> None:
    assert run(["fleet", "swap", "new"], {}) == 0
    site.runs["two"] = site.runs["two"].model_copy(update={"state": "stopped"})
    assert run(["fleet", "swap", "--back"], {}) == 0
    assert drafters(site) == ["old", "new"]


def test_if_a_group_refuses_a_drafter_all_return(site: Site, capsys: Capture) -> None:
    site.refused = {("two", "new")}
    assert run(["fleet", "swap", "new"], {}) == 4
    shown = capsys.readouterr().out
    assert drafters(site) == ["old", "old"]
    assert "b, swap: b: swap-shape" in shown
    assert "\x1b" not in shown


@pytest.mark.parametrize("unheard", [1, 3])
def test_a_swap_whose_answer_was_lost_is_taken_back_with_the_others(
    unheard: int, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slipstream.fleet.rolling.steps.TRY_AGAIN_SECONDS", 0)
    lost = 0

    def lose(machine: str, words: list[str], _: bytes | None, after: bool) -> None:
        """Have the answer of one's swap be lost, and those of the looks at it that follow."""
        nonlocal lost
        is_looked_at = words[0] == "swap" or (lost and words[0] == "status")
        if after and machine == "one" and is_looked_at and lost < unheard:
            lost += 1
            raise UnreachableError("one cannot be reached: closed by remote host", hint="ssh one")

    site.far.meddle = lose
    site.refused = {("two", "new")}
    code = run(["fleet", "swap", "new"], {})
    if unheard == TRIES:
        assert (code, drafters(site)) == (3, ["new", "old"])
        code = run(["fleet", "swap", "--resume"], {})
    assert code == 4
    assert lost == unheard
    assert drafters(site) == ["old", "old"]
    swaps = [line for line in site.log if line.startswith("swap")]
    assert swaps == ["swap one new", "swap two new", "swap one old"]


@pytest.mark.parametrize(("worse", "code", "left"), [(set(), 0, "new"), ({"new"}, 4, "old")])
def test_a_canary_decides_about_a_drafter_for_all(
    worse: set[str], code: int, left: str, site: Site, capsys: Capture
) -> None:
    site.worse = worse
    assert run([*CANARY, "--json"], {}) == code
    rollout = Rollout.model_validate_json(capsys.readouterr().out)
    assert (rollout.canary, rollout.trial_seconds) == (("b",), 7200.0)
    assert drafters(site) == [left, left]
    swapped = [line for line in site.log if line.startswith("swap")]
    assert swapped == (["swap two new", "swap one new"] if code == 0 else ["swap two new"])
    run(["fleet", "status"], {})
    assert (
        f"trial on two: new: {'passed' if code == 0 else 'rolled back'}" in capsys.readouterr().out
    )


def test_a_machine_that_is_silent_for_a_while_is_no_end_of_a_trial(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def wait(_: float) -> None:
        nonlocal looks
        looks += 1
        site.far.down = {"two"} if looks < 3 else set()
        if looks > 3:
            site.end_trials()

    monkeypatch.setattr("slipstream.fleet.rolling.steps.time.sleep", wait)
    assert run([*CANARY], {}) == 0
    assert drafters(site) == ["new", "new"]


def test_an_interrupted_trial_goes_on_and_can_be_ended_by_order(
    site: Site, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("slipstream.fleet.rolling.steps.time.sleep", interrupt)
    assert run([*CANARY], {}) == 130
    trial = site.runs["two"].trial
    assert trial is not None
    assert trial.state == "running"
    capsys.readouterr()
    assert run(["fleet", "swap", "new"], {}) == 1
    assert "slipstream fleet swap --resume" in capsys.readouterr().err
    assert run(["fleet", "swap", "--back"], {}) == 0
    assert drafters(site) == ["old", "old"]


@pytest.mark.parametrize("dies_after", [False, True])
@pytest.mark.parametrize("worse", [set[str](), {"new"}])
def test_a_control_machine_that_dies_at_any_call_leaves_a_trace_and_no_untested_drafter(
    worse: set[str], dies_after: bool, site: Site
) -> None:
    """Every call is the last one once: the machines go on alone, then another machine resumes."""
    site.worse = worse
    start = dict(site.runs)
    deaths = 0
    for calls in range(40):
        site.runs, site.far.files = dict(start), dict(site.far.files)
        site.far.files.pop(("one", f"{site.fleet.folder}/rollout.json"), None)
        site.far.left, site.far.dies_after = calls, dies_after
        try:
            code = run([*CANARY], {})
        except ControlDiedError:
            deaths += 1
        else:
            assert code == (4 if worse else 0)
            break
        site.far.left = None
        if drafters(site) != ["old", "old"]:
            # Whoever has it is on trial there, or follows one who passed; and all is written down.
            assert read_rollout(site).drafter == "new"
            trial = site.runs["two"].trial
            assert trial is not None
            assert trial.state in (
                ["passed"] if "new" in drafters(site)[:1] else ["running", "passed"]
            )
        site.end_trials()
        assert drafters(site)[0] == "old" or not worse
        resumed = run(["fleet", "swap", "--resume"], {})
        if resumed == 1:
            # It died before anything was begun, or after all was done and written down.
            begun = site.read("one", "rollout.json")
            assert begun is None or read_rollout(site).is_over
            assert len(set(drafters(site))) == 1
        else:
            assert resumed == (4 if worse else 0)
            assert drafters(site) == (["old", "old"] if worse else ["new", "new"])
            tries = [line for line in site.log if line == "swap two new"]
            assert len(tries) == 1
        site.log.clear()
    assert deaths > 6


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["new", "--back"],
        ["--back", "--canary", "1"],
        ["--resume", "new"],
        ["new", "--learned", "b"],
    ],
)
def test_a_drafter_or_back_or_resume_is_wanted(words: list[str], capsys: Capture) -> None:
    assert run(["fleet", "swap", *words], {}) == 2
    assert "hint: slipstream fleet swap DRAFTER --canary 1" in capsys.readouterr().err


def test_a_canary_of_all_groups_is_refused_before_anything_is_done(site: Site) -> None:
    site.far.commands.clear()
    assert run(["fleet", "swap", "new", "--canary", "2"], {}) == 1
    assert site.far.commands == []


def test_a_learned_drafter_goes_to_the_others_only_after_its_trial(
    site: Site, capsys: Capture
) -> None:
    words = ["fleet", "swap", "--learned"]
    assert run([*words, "bb"], {}) == 2
    assert "did you mean b?" in capsys.readouterr().err
    assert run([*words, "b"], {}) == 1
    assert "b serves no drafter that it has learned" in capsys.readouterr().err
    served, now = site.runs["two"], datetime.now(UTC)
    planned, learned = (
        ServedDrafter(name=name, folder=Path("/x"), since=now) for name in ("old", "generation 1")
    )
    trial = SwapTrial(
        order="1",
        drafter=learned.name,
        folder=learned.folder,
        before=planned,
        began_at=now,
        until=now,
    )
    changed = {"drafters": (planned, learned), "trial": trial}
    site.runs["two"] = served.model_copy(update=changed)
    assert run([*words, "b"], {}) == 1
    assert "b: generation 1: running, until" in capsys.readouterr().err
    assert drafters(site)[0] == "old"


def test_an_engine_over_several_machines_is_rolled_instead(site: Site, capsys: Capture) -> None:
    with Path("fleet.toml").open("a") as file:
        file.write('[machines.four]\n[machines.five]\n[groups.d]\nmachines = ["four", "five"]\n')
    site.far.commands.clear()
    assert run(["fleet", "swap", "new"], {}) == 1
    assert site.far.commands == []
    assert "slipstream fleet roll d" in capsys.readouterr().err


def test_a_folder_of_this_machine_is_sent_to_every_machine(site: Site, tmp_path: Path) -> None:
    drafter = tmp_path / "my drafter"
    drafter.mkdir()
    assert run(["fleet", "swap", str(drafter)], {}) == 1
    for name in ("config.json", "model.safetensors", "notes.md"):
        (drafter / name).write_text(name)
    assert run(["fleet", "swap", str(drafter)], {}) == 0
    (name,) = set(drafters(site))
    assert name.startswith("~/.local/share/slipstream/fleet/lab/drafters/my-drafter-")
    sent = sorted(one for one in site.far.files if "/drafters/" in one[1])
    assert sent == [
        (machine, f"{name.removeprefix('~/')}/{file}")
        for machine in DRAFTING
        for file in ("config.json", "model.safetensors")
    ]
