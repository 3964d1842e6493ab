"""The verbs of a fleet as a user types them, with machines that are not there."""

import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.fleet.machines.commands import CommandResult
from slipstream.fleet.plan import FleetPlan, FleetProbe
from slipstream.fleet.record import read_fleet
from slipstream.fleet.running.starting import name_plan
from slipstream.fleet.running.status import FleetStatus
from tests.unit.cli.fleet.site import HASH, Site, write_models
from tests.unit.fleet.far_machines import connect, events, find_words, run_status, say, view

CLEAR = "\x1b[2J"
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Lay a model, keys and a fleet of three machines in two groups into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_models(tmp_path)
    (tmp_path / "fleet.toml").write_text(f"""
name = "lab"
[model]
target = "{tmp_path}/target"
drafter = "{tmp_path}/drafter"
[machines.one]
[machines.two]
[machines.three]
[groups.a]
machines = ["one", "two"]
[groups.b]
machines = ["three"]
speculation = false
[keys]
file = "keys.json"
""")
    made = Site(tmp_path)
    connect(monkeypatch, made.far)
    return made


def test_probe_looks_at_every_machine_and_measures_links_inside_groups(
    site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "probe", "--json"], {}) == 0
    probe = FleetProbe.model_validate_json(capsys.readouterr().out)
    assert list(probe.machines) == ["one", "two", "three"]
    assert probe.machines["one"].clock_offset_seconds is not None
    (link,) = probe.links
    assert (link.a, link.b, link.kind, link.gigabits) == ("one", "two", "tcp", 23.4)
    assert (link.interface_a, link.address_b, link.mtu_a) == ("eth0", "10.0.0.2", 1500)


def test_a_machine_that_is_down_is_a_fault_and_the_others_are_seen(
    site: Site, capsys: Capture
) -> None:
    site.far.down = {"three"}
    assert run(["fleet", "plan", "--json"], {}) == 1
    plan = FleetPlan.model_validate_json(capsys.readouterr().out)
    assert [group.name for group in plan.groups] == ["a"]
    (fault,) = plan.refusals
    assert (fault.code, fault.message.split()[0]) == ("fleet-machine", "three")


def test_plan_needs_no_machine_with_a_saved_probe(site: Site, capsys: Capture) -> None:
    run(["fleet", "probe", "--json"], {})
    Path("probe.json").write_text(capsys.readouterr().out)
    site.far.down = {"one", "two", "three"}
    assert run(["fleet", "plan", "--probe", "probe.json"], {}) == 0
    shown = capsys.readouterr().out
    for part in ("group a on one, two, at 10.0.0.1:8000", "--tensor-parallel-size 2", "29501/tcp"):
        assert part in shown
    assert "rank 1, two" in shown


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (say(CLEAR + "no json"), "did not answer with a MachineView"),
        (say("{" * 100_000), "did not answer with a MachineView"),
        (say("x" * (5 << 20)), "answered with 5242880 bytes"),
        (say(view(1).to_json().replace('"eth0"', f'"{CLEAR!a}"')), "did not answer with"),
        (say(view(1).to_json().replace("10.0.0.1/24", "10.0.0.1; id")), "did not answer with"),
        (say(view(1).to_json().replace('"vllm 0.32.0"', '"vllm\\u001b[2J"')), "did not answer"),
        (say("", 1, f"bad {CLEAR} verb".encode()), "bad \ufffd[2J verb"),
        (say("", 127), "slipstream is not installed"),
    ],
)
def test_what_a_machine_prints_is_checked_and_never_shown_as_it_is(
    answer: CommandResult, said: str, site: Site, capsys: Capture
) -> None:
    site.answers["DescribeMachine"] = answer
    assert run(["fleet", "probe"], {}) == 1
    shown = capsys.readouterr()
    assert said in shown.out
    assert "\x1b" not in shown.out + shown.err
    assert len(shown.out) < 10_000


def test_up_sends_every_rank_its_plan_and_starts_all_of_them(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "up", "--json"], {}) == 0
    assert FleetStatus.model_validate_json(capsys.readouterr().out).is_ready
    far, folder = site.far, site.fleet.folder
    assert sorted(far.list_asked("serve")) == ["one", "three", "two"]
    for machine in site.fleet.machines:
        names = {"fleet.toml", "keys.json", name_plan(site.plans[machine])}
        names |= {"group-a.key"} if machine != "three" else set()
        sent = {path for name, path in far.files if name == machine}
        assert sent == {f"{folder}/{name}" for name in names}
    assert site.read("one", "group-a.key") == site.read("two", "group-a.key")
    follower = site.plans["two"]
    assert follower.group is not None
    assert (follower.group.rank, follower.environment["VLLM_HOST_IP"].value) == (1, "10.0.0.2")
    assert follower.group.secret_file == f"~/{folder}/group-a.key"
    served = next(argv for _, argv in far.commands if find_words(argv)[:1] == ["serve"])
    assert f"SLIPSTREAM_KEYS=~/{folder}/keys.json" in served


def test_up_leaves_what_runs_alone_and_tells_who_failed(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "up", "b"], {}) == 0
    site.far.commands.clear()
    site.answers["serve"] = events("starting", "failed")
    assert run(["fleet", "up"], {}) == 3
    assert sorted(site.far.list_asked("serve")) == ["one", "two"]
    shown = capsys.readouterr().err
    assert "one did not become ready: failed: now failed" in shown
    assert "two did not become ready" in shown
    assert "slipstream fleet logs one" in shown


def test_weights_go_from_the_machine_that_has_them_to_those_that_do_not(
    site: Site, capsys: Capture
) -> None:
    have = {"two"}

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words[:1] == ["ssh"]:
            return say("", 255)
        if words[:1] == ["tar"]:
            return say(b"the model")
        if words[:1] == ["sh"] and stdin == b"the model":
            have.add(machine)
            return say("")
        if words[0] == "ModelRequest" and machine not in have:
            return say("", 1, b"not here")
        return site.reply(machine, words, stdin)

    site.far.reply = reply
    assert run(["fleet", "up"], {}) == 0
    givers = [machine for machine, argv in site.far.commands if argv[0] == "tar"]
    assert have == {"one", "two", "three"}
    assert givers[0] == "two"
    assert "copying" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "most_bytes", "left"),
    [
        ((".bashrc", "target-2/config.json"), None, ["target", "config.json"]),
        # What is hostile or cut off replaces nothing.
        (("target/../.profile",), None, []),
        ((), 700, []),
    ],
)
def test_of_what_a_machine_sends_the_whole_model_is_left_or_nothing(
    more: tuple[str, ...], most_bytes: int | None, left: list[str], site: Site, tmp_path: Path
) -> None:
    home, sent = tmp_path / "home", io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for name in ("target/config.json", *more):
            file = tarfile.TarInfo(name)
            file.size = 400
            archive.addfile(file, io.BytesIO(b"x" * 400))
    content = sent.getvalue()[:most_bytes]

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words[:1] == ["ssh"]:
            return say("", 255)
        if words[:1] == ["tar"]:
            return say(content)
        if words[:1] == ["sh"] and stdin == content:
            done = subprocess.run(words, input=stdin, capture_output=True, check=False)
            return say("", done.returncode)
        if words[0] == "LocateModel":
            return say(json.dumps({"tree": str(home / "target")}))
        if words[0] == "ModelRequest" and machine == "one" and not home.exists():
            return say("", 1, b"not here")
        return site.reply(machine, words, stdin)

    site.far.reply = reply
    run(["fleet", "up"], {})
    assert [path.name for path in home.rglob("*")] == left


def test_a_copy_with_another_hash_starts_nothing(site: Site, capsys: Capture) -> None:
    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        answer = site.reply(machine, words, stdin)
        if words[0] == "ModelRequest" and machine == "two":
            return say(answer.stdout.replace(HASH.encode(), b"cd" * 32))
        return answer

    site.far.reply = reply
    assert run(["fleet", "up"], {}) == 1
    assert "differ: one abababababab, two cdcdcdcdcdcd" in capsys.readouterr().err
    assert site.far.list_asked("serve") == []


@pytest.mark.parametrize("verb", ["up", "stop"])
def test_a_fleet_that_another_machine_holds_is_left_alone(
    verb: str, site: Site, capsys: Capture
) -> None:
    site.far.lease = {"owner": "f" * 32, "holder": "eve@desk-2", "purpose": "roll"}
    site.runs["one"] = run_status(site.fleet)
    assert run(["fleet", verb], {}) == 1
    assert "eve@desk-2 holds the fleet for roll" in capsys.readouterr().err
    assert site.far.list_asked("serve") == site.far.list_asked("stop") == []
    assert site.far.files == {}


def test_stop_ends_the_rank_that_answers_before_those_that_follow(
    site: Site, capsys: Capture
) -> None:
    site.runs = {name: run_status(site.fleet, id=f"run-{name}") for name in site.fleet.machines}
    assert run(["fleet", "stop", "a", "--now"], {}) == 0
    assert site.far.list_asked("stop") == ["one", "two"]
    command = next(argv for _, argv in site.far.commands if find_words(argv)[:1] == ["stop"])
    assert find_words(command) == ["stop", "--json", "run-one", "--now"]
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["a", "down"]


@pytest.mark.parametrize(("lost", "stopped"), [("three", []), ("two", ["one"])])
def test_a_machine_that_cannot_be_reached_is_not_stopped(
    lost: str, stopped: list[str], site: Site, capsys: Capture
) -> None:
    assert run(["fleet", "up"], {}) == 0
    site.far.down = {lost}
    capsys.readouterr()
    assert run(["fleet", "stop", "b" if lost == "three" else "a"], {}) == 1
    assert f"{lost} may still run" in capsys.readouterr().err
    assert site.far.list_asked("stop") == stopped


def test_status_tells_groups_that_answer_from_those_that_do_not(
    site: Site, capsys: Capture
) -> None:
    site.runs = {
        "one": run_status(site.fleet, message=f"said {CLEAR}"),
        "two": run_status(site.fleet, "failed"),
        "three": run_status(site.fleet, plan_file="/home/me/plan.json", id="anothers"),
    }
    assert run(["fleet", "status"], {}) == 1
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [
        ["a", "failed"],
        ["b", "down"],
    ]
    assert "anothers" not in shown
    assert "\x1b" not in shown


def test_logs_of_all_machines_come_with_their_names_and_escaped(
    site: Site, capsys: Capture
) -> None:
    site.runs = {name: run_status(site.fleet) for name in ("one", "three")}
    site.answers["logs"] = say(f"10%\r100%\nbad {CLEAR}\n")
    assert run(["fleet", "logs"], {}) == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "one   | 100%",
        "one   | bad \ufffd[2J",
        "three | 100%",
        "three | bad \ufffd[2J",
    ]


def test_doctor_finds_a_port_that_is_open_to_a_machine_that_is_no_member(
    site: Site, capsys: Capture
) -> None:
    site.runs = {name: run_status(site.fleet) for name in site.fleet.machines}

    def reply(machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words[0] == "ReachRequest":
            targets = json.loads(stdin or b"")["targets"]
            return say(json.dumps({"reached": ["open"] * len(targets)}))
        return site.reply(machine, words, stdin)

    site.far.reply = reply
    assert run(["fleet", "doctor"], {}) == 1
    shown = capsys.readouterr().out
    assert "three: port 29501 of one is open to three, and should not be" in shown
    assert "hint: slipstream fleet plan --firewall" in shown
    assert "open to two" not in shown


def test_top_adds_up_what_groups_do(site: Site, capsys: Capture) -> None:
    site.runs = {name: run_status(site.fleet) for name in site.fleet.machines}
    document = {"at": "2026-11-16T12:00:00Z", "status": json.loads(site.runs["one"].to_json())}
    document |= {"steering": None, "engine": None, "traffic": None}
    document |= {"counts": {"pid": 1}, "processes": [], "events": []}
    site.answers["top"] = say(json.dumps(document))
    assert run(["fleet", "top", "--once"], {}) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("2 of 2 groups ready  0 tokens/s")
    assert shown[3].split()[:4] == ["a", "one", "+1", "ready"]


def test_init_writes_a_file_that_plan_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fleet", "init", "me@Spark-1.local", "me@10.0.0.2:2022", "[fd00::1]:22"]
    words += ["[fe80::1%eth0]", "--model", "owner/model"]
    assert run([*words, "--", "spark-3"], {}) == 2
    assert run([*words, "--together"], {}) == 0
    fleet = read_fleet(tmp_path / "fleet.toml")
    machines = ("spark-1.local", "10.0.0.2", "fd00--1", "fe80--1-eth0")
    assert fleet.groups["all"].machines == machines
    assert [fleet.find_login(machine) for machine in machines[1:]] == [
        ("me@10.0.0.2", "2022"),
        ("fd00::1", "22"),
        ("fe80::1%eth0", None),
    ]
    assert run(words, {}) == 2
    assert "fleet.toml already exists" in capsys.readouterr().err


def test_an_unknown_verb_or_group_comes_with_the_nearest(site: Site, capsys: Capture) -> None:
    assert run(["fleet", "plann"], {}) == 2
    assert "hint: slipstream fleet plan" in capsys.readouterr().err
    assert run(["fleet", "up", "aa"], {}) == 2
    assert "did you mean a?" in capsys.readouterr().err
    assert run(["fleet"], {}) == 0
    assert "verbs:" in capsys.readouterr().out
