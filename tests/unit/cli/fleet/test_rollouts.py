"""`fleet roll` as a user types it, whatever becomes of the control machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.errors import SlowError, UnreachableError
from slipstream.fleet.far_side.evaluation import RunVerdict
from slipstream.fleet.rolling.rollout import Rollout
from slipstream.steering.swap_test import SwapVerdict
from tests.unit.cli.fleet.site import Site, bring_up, make_replicas, write_replicas
from tests.unit.fleet.far_machines import FarStream, connect, find_words

Capture = pytest.CaptureFixture[str]
DRAFTING = ("one", "two")


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


@pytest.mark.parametrize("fault", ["serve", "verify", "check"])
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


def test_a_group_is_rolled_back_to_what_it_served_itself(site: Site, tmp_path: Path) -> None:
    write_replicas(tmp_path, context=384)
    assert run(["fleet", "roll", "b"], {}) == 0
    assert run(["fleet", "swap", "new"], {}) == 0
    write_replicas(tmp_path, context=256)
    site.bad = {("three", "serve", 256)}
    assert run(["fleet", "roll"], {}) == 4
    assert site.contexts == {"one": 512, "two": 384, "three": 512}
    assert drafters(site) == ["new", "new"]
    assert set(site.states.values()) == {"open"}


def test_a_connection_that_breaks_during_a_start_is_no_reason_to_roll_back(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(_: FarStream) -> Iterator[bytes]:
        raise UnreachableError("two cannot be reached: closed by remote host", hint="ssh two")
        yield b""

    monkeypatch.setattr("slipstream.fleet.rolling.steps.TRY_AGAIN_SECONDS", 0)
    write_replicas(tmp_path, context=384)
    with monkeypatch.context() as broken:
        broken.setattr(FarStream, "lines", break_off)
        assert run(["fleet", "roll", "b"], {}) == 3
    assert read_rollout(site).state == "rolling"
    assert run(["fleet", "roll", "--resume"], {}) == 0
    assert site.contexts["two"] == 384


def test_a_rank_that_may_still_run_keeps_its_group_from_being_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr("slipstream.fleet.rolling.steps.TRY_AGAIN_SECONDS", 0)
    make_replicas(tmp_path, monkeypatch)
    group = '[machines.two]\n[groups.b]\nmachines = ["two"]\nspeculation = true\n'
    text = Path("fleet.toml").read_text()
    assert group in text
    text = text.replace(group, "[machines.two]\n").replace('["one"]', '["one", "two"]')
    Path("fleet.toml").write_text(text)
    made = Site(tmp_path)
    connect(monkeypatch, made.far)
    bring_up(made, capsys)
    Path("fleet.toml").write_text(text.replace("context = 512", "context = 384"))

    def lose(machine: str, words: list[str], _: bytes | None, after: bool) -> None:
        """Have the second rank take files and orders to serve, and answer nothing else."""
        if machine == "two" and words[0] in ("status", "stop") and "stop one" in made.log:
            raise UnreachableError("two cannot be reached: it does not answer", hint="ping two")

    made.far.meddle = lose
    assert run(["fleet", "roll", "a"], {}) == 3
    assert "slipstream fleet roll --resume" in capsys.readouterr().err
    assert read_rollout(made).state == "rolling"
    assert made.runs["two"].state == "ready"
    assert not any(line.startswith("serve") for line in made.log)
    made.far.meddle = None
    assert run(["fleet", "roll", "--resume"], {}) == 0
    assert made.contexts == {"one": 384, "two": 384, "three": 512}


@pytest.mark.parametrize(("verb", "after"), [("verify", True), ("stop", False), ("stop", True)])
def test_a_step_that_does_not_end_in_time_is_rolled_back(
    verb: str, after: bool, site: Site, tmp_path: Path, capsys: Capture
) -> None:
    slow = 0

    def take_too_long(machine: str, words: list[str], _: bytes | None, is_after: bool) -> None:
        nonlocal slow
        if (machine, words[0], is_after) == ("two", verb, after) and not slow:
            slow += 1
            raise SlowError("two: the command did not end within 300 s", hint="ssh two uptime")

    site.far.meddle = take_too_long
    write_replicas(tmp_path, context=384)
    assert run(["fleet", "roll"], {}) == 4
    assert f"because of b, {verb}: two: the command did not end" in capsys.readouterr().out
    assert set(site.contexts.values()) == {512}
    assert {one.state for one in site.runs.values()} == {"ready"}
    assert set(site.states.values()) == {"open"}


@pytest.mark.parametrize("words", [["roll"], ["roll", "--resume"], ["swap", "new"]])
def test_a_record_that_cannot_be_read_comes_with_the_way_out(
    words: list[str], site: Site, capsys: Capture
) -> None:
    file = f"{site.fleet.folder}/rollout.json"
    site.far.files["one", file] = b'{"schema_version": 3, "id": "2026'
    assert run(["fleet", *words], {}) == 1
    assert f"hint: if no rollout is running: ssh one rm {file}\n" in capsys.readouterr().err
    assert not any(line.startswith(("stop", "serve", "swap")) for line in site.log)
    del site.far.files["one", file]
    assert run(["fleet", *words], {}) == (1 if "--resume" in words else 0)


def test_a_group_that_does_not_run_is_not_rolled(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "stop", "b"], {}) == 0
    site.log.clear()
    assert run(["fleet", "roll"], {}) == 1
    assert "slipstream fleet up b" in capsys.readouterr().err
    assert not any(line.startswith(("stop", "serve")) for line in site.log)


@pytest.mark.parametrize(
    ("table", "line", "place"),
    [
        ("[groups.b]\n", "port = 8005\n", "10.0.0.2:8005"),
        ("[machines.two]\n", 'address = "10.0.0.22"\n', "10.0.0.22:8000"),
    ],
)
@pytest.mark.parametrize(("bad", "code"), [(set(), 0), ({("three", "serve", 384)}, 4)])
def test_ports_and_addresses_can_be_rolled_and_rolled_back(
    bad: set[tuple[str, str, int | None]],
    code: int,
    table: str,
    line: str,
    place: str,
    site: Site,
    tmp_path: Path,
) -> None:
    write_replicas(tmp_path, context=384)
    text = (tmp_path / "fleet.toml").read_text()
    assert table in text
    (tmp_path / "fleet.toml").write_text(text.replace(table, table + line))
    site.bad = bad
    assert run(["fleet", "roll"], {}) == code
    # It was opened where it had moved to before the next one was touched.
    assert "serve three 384 True" in site.log
    assert site.locate("b") == ("10.0.0.2:8000" if bad else place)
    assert all(site.is_reached(group) for group in site.fleet.groups)
    assert set(site.states.values()) == {"open"}


def test_a_fleet_whose_first_machine_only_balances_is_rolled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    made = make_replicas(tmp_path, monkeypatch)
    group = '[groups.a]\nmachines = ["one"]\nspeculation = true\n'
    text = (tmp_path / "fleet.toml").read_text()
    assert group in text
    (tmp_path / "fleet.toml").write_text(text.replace(group, ""))
    made.states.pop("a")
    bring_up(made, capsys)
    assert run(["fleet", "roll"], {}) == 0


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


@pytest.mark.parametrize("verb", ["up", "roll"])
def test_what_a_saved_plan_could_run_on_any_rank_is_named_or_nothing_is_served(
    verb: str, site: Site, capsys: Capture
) -> None:
    if verb == "up":
        assert run(["fleet", "stop"], {}) == 0
        capsys.readouterr()
    site.log.clear()
    run(["fleet", "plan", "--json"], {})
    document = json.loads(capsys.readouterr().out)
    evil = {"value": "/tmp/evil.so", "source": "default", "because": "x"}
    document["groups"][1]["ranks"][0]["plan"]["environment"]["LD_PRELOAD"] = evil
    # Whoever wrote it wrote what its machines are, too.
    document["machines"]["two"]["host"]["software"]["openmp_library"] = evil["value"]
    remote = {**evil, "value": True}
    document["groups"][2]["ranks"][0]["plan"]["settings"]["trust_remote_code"] = remote
    Path("plan.json").write_text(json.dumps(document))
    command = ["fleet", verb, "--plan", "plan.json"]
    assert run(command, {}) == 1
    error = capsys.readouterr().err
    assert "plan.json would set LD_PRELOAD, --trust-remote-code," in error
    assert "--allow LD_PRELOAD trust-remote-code" in error
    assert run([*command, "--allow", "LD_PRELOAD"], {}) == 1
    assert not any(line.startswith(("stop", "serve")) for line in site.log)
    assert run([*command, "--allow", "LD_PRELOAD", "trust-remote-code"], {}) == 0
    assert site.plans["two"].environment["LD_PRELOAD"].value == "/tmp/evil.so"
    served = {name: find_words(argv) for name, argv in site.far.commands if "serve" in argv}
    assert served["two"][4:6] == ["--allow", "LD_PRELOAD"]
    assert "--allow" not in served["one"]


@pytest.mark.parametrize(
    ("verdict", "seconds", "code", "context"),
    [
        ("as-good", 60.0, 0, 384),
        ("worse", 60.0, 4, 512),
        (None, 7300.0, 4, 512),
    ],
)
def test_the_requests_of_a_canary_decide_about_a_plan(
    verdict: SwapVerdict | None, seconds: float, code: int, context: int, site: Site, tmp_path: Path
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


def test_another_machine_that_holds_the_fleet_keeps_it(site: Site, capsys: Capture) -> None:
    site.far.lease = {"owner": "0" * 32, "holder": "ann@desk", "purpose": "roll"}
    assert run(["fleet", "swap", "new"], {}) == 1
    assert "ann@desk holds the fleet for roll" in capsys.readouterr().err
    assert drafters(site) == ["old", "old"]
