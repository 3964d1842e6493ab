"""The verbs of a fleet as a user types them, with machines that are not there."""

import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.fleet.far_side.link_transfer import LinkFigures
from slipstream.fleet.plan import FleetPlan, FleetProbe
from slipstream.fleet.record import Fleet, read_fleet
from slipstream.fleet.status import FleetStatus
from slipstream.fleet.transport import Answer
from slipstream.planning import LaunchPlan
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.serving.run_status import RunStatus
from tests.unit.fleet.far_machines import (
    FarMachines,
    connect,
    events,
    find_words,
    list_runs,
    run_status,
    say,
    view,
)
from tests.unit.proving_ground.test_untrained_drafter import TARGET

CLEAR = "\x1b[2J"


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    """Lay a model, keys and a fleet of three machines in two groups into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    (tmp_path / "keys.json").write_text("{}\n")
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
    return read_fleet(tmp_path / "fleet.toml")


NUMBERS = {"one": 1, "two": 2, "three": 3}
HASH = "ab" * 32


def make_reply(
    fleet: Fleet, runs: dict[str, RunStatus] | None = None, **others: Answer
) -> Callable[[str, list[str], bytes | None], Answer]:
    """Answer as healthy machines do; `others` are answers by the verb."""
    known = {} if runs is None else runs

    def reply(machine: str, words: list[str], _: bytes | None) -> Answer:
        verb = words[1] if words[0] == "fleet" else words[0]
        if verb in others:
            return others[verb]
        if verb == "here":
            return say(view(NUMBERS[machine], address=f"10.0.0.{NUMBERS[machine]}").to_json())
        if verb == "link" and "--there" not in words:
            return say('{"port": 4000}\n')
        if verb == "link":
            return say(LinkFigures(gigabits=23.4, round_trip_ms=0.05).to_json())
        if verb == "status":
            return list_runs(*([known[machine]] if machine in known else []))
        if verb == "weights":
            document = {"name": "m", "tree": "/models/target", "sha256": HASH, "size_bytes": 5}
            return say(json.dumps(document))
        if verb == "serve":
            known[machine] = run_status(fleet, id=f"run-{machine}")
            return events("starting", "warming", "ready")
        if verb == "stop":
            known[machine] = run_status(fleet, "stopped", id=f"run-{machine}")
        return say("1.0\n" if verb == "date" else "{}")

    return reply


def test_probe_looks_at_every_machine_and_measures_links_inside_groups(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = FarMachines(make_reply(fleet))
    connect(monkeypatch, machines)
    assert run(["fleet", "probe", "--json"], {}) == 0
    probe = FleetProbe.model_validate_json(capsys.readouterr().out)
    assert list(probe.machines) == ["one", "two", "three"]
    (link,) = probe.links
    assert (link.a, link.b, link.kind, link.gigabits) == ("one", "two", "tcp", 23.4)
    assert (link.interface_a, link.address_b, link.mtu_a) == ("eth0", "10.0.0.2", 1500)


def test_a_machine_that_is_down_is_a_fault_and_the_others_are_seen(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, FarMachines(make_reply(fleet), down={"three"}))
    assert run(["fleet", "plan", "--json"], {}) == 1
    plan = FleetPlan.model_validate_json(capsys.readouterr().out)
    assert [group.name for group in plan.groups] == ["a"]
    assert [fault.message for fault in plan.refusals] == [
        "three cannot be reached: it does not answer"
    ]


def test_plan_needs_no_machine_with_a_saved_probe(
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    connect(monkeypatch, FarMachines(make_reply(fleet)))
    run(["fleet", "probe", "--json"], {})
    (tmp_path / "probe.json").write_text(capsys.readouterr().out)
    connect(monkeypatch, FarMachines(make_reply(fleet), down={"one", "two", "three"}))
    assert run(["fleet", "plan", "--probe", "probe.json"], {}) == 0
    shown = capsys.readouterr().out
    assert "group a on one, two, at 10.0.0.1:8000" in shown
    assert "--tensor-parallel-size 2" in shown
    assert "29501/tcp" in shown
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
    answer: Answer,
    said: str,
    fleet: Fleet,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect(monkeypatch, FarMachines(make_reply(fleet, here=answer)))
    assert run(["fleet", "probe"], {}) == 1
    shown = capsys.readouterr()
    assert said in shown.out
    assert "\x1b" not in shown.out + shown.err
    assert len(shown.out) < 10_000


def test_what_a_login_prints_before_an_answer_is_passed_over(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = make_reply(fleet)

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
        answer = healthy(machine, words, stdin)
        return say(b"Welcome to {NAME}\n\n* 3 updates\n" + answer.stdout)

    connect(monkeypatch, FarMachines(reply))
    assert run(["fleet", "probe", "--json"], {}) == 0
    probe = FleetProbe.model_validate_json(capsys.readouterr().out)
    assert [link.gigabits for link in probe.links] == [23.4]
    assert probe.machines["one"].clock_offset_seconds is not None


def test_up_sends_every_rank_its_plan_and_starts_all_of_them(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    machines = FarMachines(make_reply(fleet))
    connect(monkeypatch, machines)
    assert run(["fleet", "up", "--json"], {}) == 0
    status = FleetStatus.model_validate_json(capsys.readouterr().out)
    assert status.is_ready
    assert sorted(machines.list_asked("serve")) == ["one", "three", "two"]
    names: dict[str, list[str]] = {machine: [] for machine in fleet.machines}
    for machine, path in machines.files:
        assert path.startswith(f"{fleet.folder}/")
        names[machine].append(Path(path).name)
    shared = ["fleet.toml", "fleet-plan.json", "plan.json", "keys.json"]
    assert names == {
        "one": [*shared, "group-a.key"],
        "two": [*shared, "group-a.key"],
        "three": shared,
    }
    secrets = {machines.files[name, f"{fleet.folder}/group-a.key"] for name in ("one", "two")}
    assert len(secrets) == 1
    follower = LaunchPlan.model_validate_json(machines.files["two", f"{fleet.folder}/plan.json"])
    assert follower.group is not None
    assert (follower.group.rank, follower.environment["VLLM_HOST_IP"].value) == (1, "10.0.0.2")
    assert follower.group.secret_file == f"~/{fleet.folder}/group-a.key"
    served = [argv for _, argv in machines.commands if find_words(argv)[:1] == ["serve"]]
    assert f"SLIPSTREAM_KEYS=~/{fleet.folder}/keys.json" in served[0]


def test_up_leaves_what_runs_alone_and_tells_who_failed(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {"three": run_status(fleet)}
    reply = make_reply(fleet, running, serve=events("starting", "failed"))
    machines = FarMachines(reply)
    connect(monkeypatch, machines)
    assert run(["fleet", "up"], {}) == 3
    assert sorted(machines.list_asked("serve")) == ["one", "two"]
    shown = capsys.readouterr()
    assert "one did not get ready: failed: now failed" in shown.err
    assert "two did not get ready" in shown.err
    assert "slipstream fleet logs one" in shown.err


def test_weights_go_from_the_machine_that_has_them_to_those_that_do_not(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = make_reply(fleet)
    have = {"two"}

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
        if words[:1] == ["ssh"]:
            return say("", 255)
        if words[:1] == ["tar"]:
            return say(b"the model")
        if words[:1] == ["sh"] and stdin == b"the model":
            have.add(machine)
            return say("")
        if words[:2] == ["fleet", "weights"] and "--where" in words:
            return say('{"tree": "/models/target"}')
        if words[:2] == ["fleet", "weights"] and machine not in have:
            return say("", 1, b"not here")
        return healthy(machine, words, stdin)

    machines = FarMachines(reply)
    connect(monkeypatch, machines)
    assert run(["fleet", "up"], {}) == 0
    givers = [machine for machine, argv in machines.commands if argv[0] == "tar"]
    assert have == {"one", "two", "three"}
    assert givers[0] == "two"
    assert "copying" in capsys.readouterr().err


def test_a_machine_that_sends_more_than_the_model_leaves_nothing_else(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    healthy = make_reply(fleet)
    home = tmp_path / "home"
    sent = io.BytesIO()
    with tarfile.open(fileobj=sent, mode="w") as archive:
        for name in (".bashrc", "target/config.json", "target-2/config.json", "target/../.profile"):
            archive.addfile(tarfile.TarInfo(name))

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
        if words[:1] == ["ssh"]:
            return say("", 255)
        if words[:1] == ["tar"]:
            return say(sent.getvalue())
        if words[:1] == ["sh"] and stdin == sent.getvalue():
            done = subprocess.run(words, input=stdin, capture_output=True, check=False)
            return say("", done.returncode)
        if words[:2] == ["fleet", "weights"] and "--where" in words:
            return say(json.dumps({"tree": str(home / "target")}))
        if words[:2] == ["fleet", "weights"] and machine == "one" and not home.exists():
            return say("", 1, b"not here")
        return healthy(machine, words, stdin)

    connect(monkeypatch, FarMachines(reply))
    run(["fleet", "up"], {})
    assert [path.name for path in home.rglob("*")] == ["target", "config.json"]


def test_a_copy_with_another_hash_starts_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = make_reply(fleet)

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
        if words[:2] == ["fleet", "weights"] and machine == "two":
            document = {"name": "m", "tree": "/m", "sha256": "cd" * 32, "size_bytes": 5}
            return say(json.dumps(document))
        return healthy(machine, words, stdin)

    machines = FarMachines(reply)
    connect(monkeypatch, machines)
    assert run(["fleet", "up"], {}) == 1
    assert "differ: one abababababab, two cdcdcdcdcdcd" in capsys.readouterr().err
    assert machines.list_asked("serve") == []


@pytest.mark.parametrize("verb", ["up", "stop"])
def test_a_fleet_that_another_desk_holds_is_left_alone(
    verb: str, fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = {"owner": "f" * 32, "who": "eve@desk-2", "purpose": "roll"}
    machines = FarMachines(make_reply(fleet, {"one": run_status(fleet)}), lease=held)
    connect(monkeypatch, machines)
    assert run(["fleet", verb], {}) == 1
    assert "eve@desk-2 holds the fleet for roll" in capsys.readouterr().err
    assert machines.list_asked("serve") == machines.list_asked("stop") == []
    assert machines.files == {}


def test_stop_ends_the_rank_that_answers_before_those_that_follow(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: run_status(fleet, id=f"run-{name}") for name in fleet.machines}
    machines = FarMachines(make_reply(fleet, runs))
    connect(monkeypatch, machines)
    assert run(["fleet", "stop", "a", "--now"], {}) == 0
    assert machines.list_asked("stop") == ["one", "two"]
    command = next(argv for _, argv in machines.commands if find_words(argv)[:1] == ["stop"])
    assert find_words(command) == ["stop", "--json", "run-one", "--now"]
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["a", "down"]


def test_status_tells_groups_that_answer_from_those_that_do_not(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = run_status(fleet, plan_file="/home/me/plan.json", id="anothers")
    runs = {"one": run_status(fleet, message=f"said {CLEAR}"), "two": run_status(fleet, "failed")}
    machines = FarMachines(make_reply(fleet, {**runs, "three": other}))
    connect(monkeypatch, machines)
    assert run(["fleet", "status"], {}) == 1
    shown = capsys.readouterr().out
    assert [line.split()[:2] for line in shown.splitlines()[1:3]] == [
        ["a", "failed"],
        ["b", "down"],
    ]
    assert "anothers" not in shown
    assert "\x1b" not in shown


def test_logs_of_all_machines_come_with_their_names_and_escaped(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: run_status(fleet) for name in ("one", "three")}
    reply = make_reply(fleet, runs, logs=say(f"10%\r100%\nbad {CLEAR}\n"))
    connect(monkeypatch, FarMachines(reply))
    assert run(["fleet", "logs"], {}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        "one   | 100%",
        "one   | bad \ufffd[2J",
        "three | 100%",
        "three | bad \ufffd[2J",
    ]


def test_doctor_finds_a_port_that_is_open_to_a_machine_that_is_no_member(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    healthy = make_reply(fleet, {name: run_status(fleet) for name in fleet.machines})

    def reply(machine: str, words: list[str], stdin: bytes | None) -> Answer:
        if words[:2] == ["fleet", "reach"]:
            ports = [word.rpartition(":") for word in words[3:]]
            reached = [{"address": a, "port": p, "reach": "open"} for a, _, p in ports]
            return say(json.dumps({"reached": reached}))
        if words[0] == "doctor":
            return say('{"checks": [{"subject": "disk", "verdict": "ok", "message": "fine"}]}')
        return healthy(machine, words, stdin)

    connect(monkeypatch, FarMachines(reply))
    assert run(["fleet", "doctor"], {}) == 1
    shown = capsys.readouterr().out
    assert "three: port 29501 of one is open to three, and not meant to be" in shown
    assert "hint: slipstream fleet plan --firewall" in shown
    assert "open to two" not in shown


def test_top_adds_up_what_groups_do(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = {name: run_status(fleet) for name in fleet.machines}
    document = {"at": "2026-11-16T12:00:00Z", "status": json.loads(runs["one"].to_json())}
    document |= {"steering": None, "engine": None, "traffic": None}
    document |= {"counts": {"pid": 1}, "processes": [], "events": []}
    connect(monkeypatch, FarMachines(make_reply(fleet, runs, top=say(json.dumps(document)))))
    assert run(["fleet", "top", "--once"], {}) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].endswith("2 of 2 groups ready  0 tokens/s")
    assert shown[3].split()[:4] == ["a", "one", "+1", "ready"]


def test_init_writes_a_file_that_plan_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["fleet", "init", "me@Spark-1.local", "me@10.0.0.2:2022", "--model", "owner/model"]
    assert run([*words, "--together"], {}) == 0
    fleet = read_fleet(tmp_path / "fleet.toml")
    assert fleet.groups["all"].machines == ("spark-1.local", "10.0.0.2")
    assert fleet.name_ssh("10.0.0.2") == "me@10.0.0.2:2022"
    assert run(words, {}) == 2
    assert "there is a fleet.toml already" in capsys.readouterr().err


def test_an_unknown_verb_or_group_comes_with_the_nearest(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, FarMachines(make_reply(fleet)))
    assert run(["fleet", "plann"], {}) == 2
    assert "hint: slipstream fleet plan" in capsys.readouterr().err
    assert run(["fleet", "up", "aa"], {}) == 2
    assert "did you mean a?" in capsys.readouterr().err
    assert run(["fleet"], {}) == 0
    assert "verbs:" in capsys.readouterr().out
