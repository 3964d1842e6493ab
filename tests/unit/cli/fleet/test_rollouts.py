"""`fleet roll` and `fleet swap` as a user types them, whatever becomes of the control machine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.fleet.far_side.judging import RunVerdict
from slipstream.fleet.rolling.rollout import Rollout
from slipstream.steering.swap_test import Verdict
from tests.unit.cli.fleet.site import Site, bring_up, make_replicas, write_replicas
from tests.unit.fleet.far_machines import ControlDiedError

Capture = pytest.CaptureFixture[str]
DRAFTING = ("one", "two")
CANARY = ("fleet", "swap", "new", "--canary", "1", "--hours", "2")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Iterator[Site]:
    made = make_replicas(tmp_path, monkeypatch)
    bring_up(made, capsys)
    monkeypatch.setattr("slipstream.fleet.rolling.steps.time.sleep", made.end_trials)
    yield made
    # Nobody ever serves what was neither tried nor accepted by its own machine.
    for run_now in made.runs.values():
        trial = run_now.trial
        if trial is not None and trial.state == "rolled back":
            assert run_now.drafters[-1].name == "old"


def read_rollout(site: Site) -> Rollout:
    return Rollout.model_validate_json(site.read("one", "rollout.json") or b"")


def drafters(site: Site) -> list[str]:
    return [site.list_drafters()[machine] for machine in DRAFTING]


def test_roll_gives_one_group_after_the_other_the_new_plan(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    write_replicas(tmp_path, context=384)
    assert run(["fleet", "roll", "--json"], {}) == 0
    rollout = Rollout.model_validate_json(capsys.readouterr().out)
    assert rollout.state == "done"
    assert set(site.contexts.values()) == {384}
    steps_done = [line for line in site.log if line != "balancer state"]
    assert steps_done[:6] == [
        "balancer close a",
        "stop one",
        "serve one 384 True",
        "verify one",
        "balancer open a",
        "balancer close b",
    ]
    # A plain group has no drafts to verify.
    assert "verify three" not in steps_done
    said = "each token is the target's own"
    assert [one.verified for one in rollout.groups] == [said, said, None]
    assert set(site.states.values()) == {"open"}
    assert read_rollout(site) == rollout


@pytest.mark.parametrize("fault", ["serve", "verify"])
def test_a_roll_that_fails_returns_to_the_old_plan_everywhere(
    fault: str, site: Site, tmp_path: Path, capsys: Capture
) -> None:
    write_replicas(tmp_path, context=384)
    site.bad = {("two", fault, 384)}
    assert run(["fleet", "roll"], {}) == 4
    told = capsys.readouterr().out
    assert "rolled back after" in told
    assert f"because of b, {'start' if fault == 'serve' else 'verify'}: " in told
    assert set(site.contexts.values()) == {512}
    assert set(site.states.values()) == {"open"}
    assert not any(line.startswith("serve three") for line in site.log)


def test_an_engine_that_drafts_nothing_at_this_load_is_no_reason_to_roll_back(
    site: Site, tmp_path: Path
) -> None:
    write_replicas(tmp_path, context=384)
    site.undrafted = True
    assert run(["fleet", "roll"], {}) == 0
    assert set(site.contexts.values()) == {384}


def test_a_roll_that_another_machine_left_is_continued(
    site: Site, tmp_path: Path, capsys: Capture
) -> None:
    write_replicas(tmp_path, context=384)
    site.bad = {("two", "serve", 384), ("two", "serve", 512)}
    assert run(["fleet", "roll"], {}) == 3
    assert read_rollout(site).state == "rollback failed"
    assert site.states == {"a": "open", "b": "closed", "c": "open"}
    capsys.readouterr()
    assert run(["fleet", "roll"], {}) == 1
    assert "slipstream fleet roll --resume" in capsys.readouterr().err
    site.bad.clear()
    assert run(["fleet", "roll", "--resume"], {}) == 4
    assert read_rollout(site).state == "rolled back"
    assert set(site.contexts.values()) == {512}
    assert set(site.states.values()) == {"open"}
    assert run(["fleet", "roll", "--resume"], {}) == 1


def test_the_last_group_that_takes_requests_is_not_closed(site: Site) -> None:
    site.states = {"a": "open", "b": "down", "c": "closed"}
    assert run(["fleet", "roll", "a"], {}) == 4
    assert not any(line.startswith(("stop", "serve")) for line in site.log)


def test_a_plan_of_another_fleet_is_not_rolled(site: Site, tmp_path: Path, capsys: Capture) -> None:
    run(["fleet", "plan", "--json"], {})
    other = capsys.readouterr().out.replace('"name": "lab"', '"name": "other"')
    (tmp_path / "other.json").write_text(other)
    assert run(["fleet", "roll", "--plan", "other.json"], {}) == 2
    assert not any(line.startswith(("stop", "serve")) for line in site.log)


@pytest.mark.parametrize(
    ("verdict", "seconds", "code", "context"),
    [
        ("as-good", 60.0, 0, 384),
        ("worse", 60.0, 4, 512),
        (None, 7300.0, 4, 512),
    ],
)
def test_the_requests_of_a_canary_decide_about_a_plan(
    verdict: Verdict | None, seconds: float, code: int, context: int, site: Site, tmp_path: Path
) -> None:
    found = RunVerdict(
        run="r", seconds=seconds, verdict=verdict, requests=40, tokens_per_second=(50.0, 51.0)
    )
    site.verdicts["one"] = found
    write_replicas(tmp_path, context=384)
    assert run(["fleet", "roll", "--canary", "1", "--hours", "2"], {}) == code
    assert set(site.contexts.values()) == {context}
    touched = {line.split()[1] for line in site.log if line.startswith("serve")}
    assert touched == ({"one", "two", "three"} if code == 0 else {"one"})


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
    "words", [[], ["new", "--back"], ["--back", "--canary", "1"], ["--resume", "new"]]
)
def test_a_drafter_or_back_or_resume_is_wanted(words: list[str], capsys: Capture) -> None:
    assert run(["fleet", "swap", *words], {}) == 2
    assert "hint: slipstream fleet swap DRAFTER --canary 1" in capsys.readouterr().err


def test_a_canary_of_all_groups_is_refused_before_anything_is_done(site: Site) -> None:
    site.far.commands.clear()
    assert run(["fleet", "swap", "new", "--canary", "2"], {}) == 1
    assert site.far.commands == []


def test_an_engine_over_several_machines_is_rolled_instead(site: Site, capsys: Capture) -> None:
    with Path("fleet.toml").open("a") as file:
        file.write('[machines.four]\n[machines.five]\n[groups.d]\nmachines = ["four", "five"]\n')
    site.far.commands.clear()
    assert run(["fleet", "swap", "new"], {}) == 1
    assert site.far.commands == []
    assert "slipstream fleet roll d" in capsys.readouterr().err


def test_another_machine_that_holds_the_fleet_keeps_it(site: Site, capsys: Capture) -> None:
    site.far.lease = {"owner": "0" * 32, "who": "ann@desk", "purpose": "roll"}
    assert run(["fleet", "swap", "new"], {}) == 1
    assert "ann@desk holds the fleet for roll" in capsys.readouterr().err
    assert drafters(site) == ["old", "old"]


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
