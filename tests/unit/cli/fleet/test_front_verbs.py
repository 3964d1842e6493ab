"""`fleet init`, `keys`, `roll`, `endpoints` and the front in `up` and `stop`, without machines."""

import json
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from slipstream.cli.main import run
from slipstream.fleet.far_side.link_transfer import LinkFigures
from slipstream.fleet.front.control import FrontState, GroupState, RoutedState
from slipstream.fleet.record import Fleet, read_fleet
from slipstream.fleet.roll import Rollout
from slipstream.fleet.transport import Answer
from slipstream.fleet.trust.distribution import DeliveryList
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.verifying.certificate import Regret
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.planning import LaunchPlan
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from slipstream.serving.access.keys import make_key
from slipstream.serving.run_status import RunStatus
from tests.unit.fleet.far_machines import (
    NOW,
    FarMachines,
    connect,
    events,
    list_runs,
    run_status,
    say,
    view,
)
from tests.unit.proving_ground.test_untrained_drafter import TARGET

NUMBERS = {"one": 1, "two": 2, "three": 3}
GROUPS = {"a": "one", "b": "two", "c": "three"}
REGRET = Regret(arm="drafted", answers=4, tokens=90, best=88, ties=2, faults=0, worst=0.1)


class Site:
    """Machines that keep files, runs and a front; `bad` fail to start a plan, or to verify it."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.far = FarMachines(self.reply)
        self.runs: dict[str, RunStatus] = {}
        self.contexts: dict[str, int | None] = {}
        self.states: dict[str, GroupState] = dict.fromkeys(GROUPS, "open")
        self.bad: set[tuple[str, str, int | None]] = set()
        self.router_up, self.undrafted = True, False
        self.log: list[str] = []

    def read(self, machine: str, name: str) -> bytes | None:
        return self.far.files.get((machine, f"{self.fleet.folder}/{name}"))

    def reply(self, machine: str, words: list[str], stdin: bytes | None) -> Answer:
        if words[0] in ("sh", "test"):
            return self._use_files(machine, words)
        verb = words[1] if words[0] == "fleet" else words[0]
        method = getattr(self, f"_{verb}", None)
        answer = method(machine, words) if method else say("1.0\n" if verb == "date" else "{}")
        assert isinstance(answer, Answer)
        return answer

    def _use_files(self, machine: str, words: list[str]) -> Answer:
        files = self.far.files
        if words[0] == "test":
            return say("", 0 if (machine, words[-1]) in files else 1)
        if ".next" in words[2]:
            for name in words[4:]:
                files[machine, name] = files.pop((machine, f"{name}.next"))
            return say("")
        found = files.get((machine, words[-1]))
        return say(found or b"", 3 if found is None and "exit 3" in words[2] else 0)

    def _here(self, machine: str, words: list[str]) -> Answer:
        return say(view(NUMBERS[machine], address=f"10.0.0.{NUMBERS[machine]}").to_json())

    def _link(self, machine: str, words: list[str]) -> Answer:
        if "--there" not in words:
            return say('{"port": 4000}\n')
        return say(LinkFigures(gigabits=23.4, round_trip_ms=0.05).to_json())

    def _weights(self, machine: str, words: list[str]) -> Answer:
        document = {"name": "m", "tree": "/m", "sha256": "ab" * 32, "size_bytes": 5}
        return say(json.dumps(document))

    def _status(self, machine: str, words: list[str]) -> Answer:
        return list_runs(*([self.runs[machine]] if machine in self.runs else []))

    def _serve(self, machine: str, words: list[str]) -> Answer:
        plan = LaunchPlan.model_validate_json(self.read(machine, "plan.json") or b"")
        self.log.append(f"serve {machine} {plan.context} {'--tls' in words}")
        if (machine, "serve", plan.context) in self.bad:
            self.runs[machine] = run_status(self.fleet, "failed")
            return events("starting", "failed")
        self.runs[machine], self.contexts[machine] = run_status(self.fleet), plan.context
        return events("starting", "warming", "ready")

    def _doctor(self, machine: str, words: list[str]) -> Answer:
        return say('{"checks": [{"subject": "disk", "verdict": "ok", "message": "fine"}]}')

    def _reach(self, machine: str, words: list[str]) -> Answer:
        return say('{"reached": []}')

    def _stop(self, machine: str, words: list[str]) -> Answer:
        self.log.append(f"stop {machine}")
        self.runs[machine] = run_status(self.fleet, "stopped")
        return say("{}")

    def _verify(self, machine: str, words: list[str]) -> Answer:
        self.log.append(f"verify {machine}")
        passed = (machine, "verify", self.contexts[machine]) not in self.bad and not self.undrafted
        check = ServedCheck(
            passed=passed,
            sentence="each token is the target's own" if passed else "9 tokens are not its own",
            run="model-1",
            workload="code",
            max_tokens=64,
            regret=REGRET,
            counts=EngineCounts(drafts=0 if self.undrafted else None),
        )
        return say(check.to_json(), 0 if passed else 4)

    def _front(self, machine: str, words: list[str]) -> Answer:
        assert machine == "one"
        action = words[3]
        if action in ("open", "close"):
            self.states[words[4]] = "open" if action == "open" else "closed"
        self.log.append(" ".join(["front", *words[3:5]]).removesuffix(" --json"))
        states = tuple(
            RoutedState(group=group, state=state, requests=0)
            for group, state in self.states.items()
        )
        return say(FrontState(router_up=self.router_up, groups=states).to_json())


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Lay a model, a key and a fleet of three replicas behind a router into the working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **TARGET}
    for name, content in (("target", config), ("drafter", drafter_config(config, DrafterShape()))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(content))
    make_key(tmp_path / "keys.json", "alice", now=NOW, expires=None)
    write_fleet(tmp_path, context=512)
    made = Site(read_fleet(tmp_path / "fleet.toml"))
    connect(monkeypatch, made.far)
    return made


def write_fleet(folder: Path, *, context: int) -> None:
    groups = "".join(
        f'[machines.{machine}]\n[groups.{group}]\nmachines = ["{machine}"]\n'
        f"speculation = {'false' if group == 'c' else 'true'}\n"
        for group, machine in GROUPS.items()
    )
    (folder / "fleet.toml").write_text(
        f'name = "lab"\n[model]\ntarget = "{folder}/target"\ndrafter = "{folder}/drafter"\n'
        f"[wishes]\ncontext = {context}\n{groups}"
        '[router]\nmachine = "one"\n[keys]\nfile = "keys.json"\n'
    )


def bring_up(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["fleet", "init"], {}) == 0
    assert run(["fleet", "up"], {}) == 0
    site.log.clear()
    capsys.readouterr()


def list_names(pem: bytes) -> set[str]:
    found = x509.load_pem_x509_certificate(pem).extensions
    return {
        str(one.value) for one in found.get_extension_for_class(x509.SubjectAlternativeName).value
    }


def test_init_gives_every_machine_a_certificate_and_the_keys_and_keeps_its_own_key(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "init", "--json", "--front-name", "llm.example.org"], {}) == 0
    told = DeliveryList.model_validate_json(capsys.readouterr().out)
    assert {one.machine: one.keys for one in told.deliveries} == dict.fromkeys(NUMBERS, 1)
    for machine in NUMBERS:
        certificate = x509.load_pem_x509_certificate(site.read(machine, "tls/machine.pem") or b"")
        assert machine in certificate.subject.rfc4514_string()
        assert (
            site.read(machine, "tls/ca.pem")
            == (tmp_path / "lab-authority/authority.pem").read_bytes()
        )
        assert site.read(machine, "keys.json") == (tmp_path / "keys.json").read_bytes()
    assert {"llm.example.org", "10.0.0.1"} <= list_names(site.read("one", "tls/front.pem") or b"")
    assert site.read("two", "tls/front.pem") is None
    private = (tmp_path / "lab-authority" / "authority.key").read_bytes()
    assert private not in site.far.files.values()


def test_init_again_changes_nothing_until_a_certificate_has_to_be_renewed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "init", "--front-name", "llm.example.org"], {}) == 0
    before = dict(site.far.files)
    assert run(["fleet", "init"], {}) == 0
    assert site.far.files == before
    site.far.files["two", f"{site.fleet.folder}/tls/machine.pem"] = b"damaged"
    capsys.readouterr()
    assert run(["fleet", "init"], {}) == 0
    shown = capsys.readouterr().out
    assert "two    new certificate: it has no certificate of this authority; 1 keys" in shown
    changed = {name for name, content in site.far.files.items() if before[name] != content}
    assert {name.rpartition("/")[2] for _, name in changed} == {"machine.pem", "machine.pem.key"}


def test_a_machine_gets_no_name_of_another_by_showing_its_certificate(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "init", "--front-name", "llm.example.org"], {}) == 0
    files, folder = site.far.files, f"{site.fleet.folder}/tls"
    files["two", f"{folder}/machine.pem"] = files["one", f"{folder}/front.pem"]
    files["one", f"{folder}/front.pem"] = files["three", f"{folder}/machine.pem"]
    assert run(["fleet", "init"], {}) == 0
    names = {
        machine: list_names(files[machine, f"{folder}/{file}"])
        for machine, file in (("two", "machine.pem"), ("one", "front.pem"))
    }
    assert not names["two"] & {"one", "three", "llm.example.org", "10.0.0.1"}
    assert not names["one"] & {"two", "three"}
    assert {"two"} <= names["two"]
    assert {"one", "10.0.0.1"} <= names["one"]


def test_up_without_certificates_starts_nothing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "up"], {}) == 1
    told = capsys.readouterr().err
    assert "one, three, two: no certificate of the fleet's authority" in told
    assert "slipstream fleet init" in told
    assert not any(line.startswith("serve") for line in site.log)


def test_up_starts_gates_that_want_certificates_and_then_the_front(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["fleet", "init"], {}) == 0
    site.log.clear()
    assert run(["fleet", "up"], {}) == 0
    assert sorted(site.log[:3]) == [
        "serve one 512 True",
        "serve three 512 True",
        "serve two 512 True",
    ]
    assert site.log[3:] == ["front install", "front keys", "front start"]
    assert b"frontend clients" in (site.read("one", "front/front.cfg") or b"")
    assert b"vllm-router" in (site.read("one", "front/supervisord.conf") or b"")


def test_stop_closes_groups_first_and_ends_the_front_last(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    assert run(["fleet", "stop"], {}) == 0
    stopped = [at for at, line in enumerate(site.log) if line.startswith("stop")]
    closed = [site.log.index(f"front close {group}") for group in GROUPS]
    assert max(closed) < min(stopped)
    assert site.log[-1] == "front stop"


def test_keys_go_to_every_gate_and_the_front(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    make_key(tmp_path / "keys.json", "bob", now=NOW, expires=None)
    assert run(["fleet", "keys"], {}) == 0
    assert capsys.readouterr().out.split() == [
        "one",
        "2",
        "keys",
        "two",
        "2",
        "keys",
        "three",
        "2",
        "keys",
    ]
    assert {site.read(machine, "keys.json") for machine in NUMBERS} == {
        (tmp_path / "keys.json").read_bytes()
    }
    assert site.log == ["front keys"]


def test_roll_gives_one_group_after_the_other_the_new_plan(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    write_fleet(tmp_path, context=384)
    assert run(["fleet", "roll", "--json"], {}) == 0
    rollout = Rollout.model_validate_json(capsys.readouterr().out)
    assert rollout.state == "done"
    assert set(site.contexts.values()) == {384}
    steps = [line for line in site.log if line != "front state"]
    assert steps[:6] == [
        "front close a",
        "stop one",
        "serve one 384 True",
        "verify one",
        "front open a",
        "front close b",
    ]
    # A plain group has no drafts to verify.
    assert "verify three" not in steps
    assert [one.verified for one in rollout.groups] == [
        *(["each token is the target's own"] * 2),
        None,
    ]
    assert set(site.states.values()) == {"open"}
    kept = Rollout.model_validate_json(site.read("one", "rollout.json") or b"")
    assert kept == rollout


@pytest.mark.parametrize("fault", ["serve", "verify"])
def test_a_roll_that_fails_goes_back_to_the_old_plan_everywhere(
    fault: str, site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    write_fleet(tmp_path, context=384)
    site.bad = {("two", fault, 384)}
    assert run(["fleet", "roll"], {}) == 4
    told = capsys.readouterr().out
    assert "went back after" in told
    assert f"because of b, {'start' if fault == 'serve' else 'verify'}: " in told
    assert set(site.contexts.values()) == {512}
    assert set(site.states.values()) == {"open"}
    assert not any(line.startswith("serve three") for line in site.log)


def test_an_engine_that_drafts_nothing_at_this_load_is_no_reason_to_go_back(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    write_fleet(tmp_path, context=384)
    site.undrafted = True
    assert run(["fleet", "roll"], {}) == 0
    assert set(site.contexts.values()) == {384}


def test_a_roll_that_another_desk_left_is_gone_on_with(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    write_fleet(tmp_path, context=384)
    site.bad = {("two", "serve", 384), ("two", "serve", 512)}
    assert run(["fleet", "roll"], {}) == 3
    assert "stuck" in capsys.readouterr().out
    assert site.states == {"a": "open", "b": "closed", "c": "open"}
    assert run(["fleet", "roll"], {}) == 1
    assert "slipstream fleet roll --resume" in capsys.readouterr().err
    site.bad.clear()
    assert run(["fleet", "roll", "--resume"], {}) == 4
    assert "went back" in capsys.readouterr().out
    assert set(site.contexts.values()) == {512}
    assert set(site.states.values()) == {"open"}
    assert run(["fleet", "roll", "--resume"], {}) == 1


def test_the_last_group_that_takes_requests_is_not_closed(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    site.states = {"a": "open", "b": "down", "c": "closed"}
    assert run(["fleet", "roll", "a"], {}) == 4
    assert "no other group takes requests while a is closed" in capsys.readouterr().out
    assert not any(line.startswith(("stop", "serve")) for line in site.log)


def test_doctor_finds_a_group_that_was_left_closed_and_a_router_that_is_down(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    site.states["b"], site.router_up = "closed", False
    assert run(["fleet", "doctor"], {}) == 1
    told = capsys.readouterr().out
    assert "it sends b no requests: a rollout was left, or goes on" in told
    assert "slipstream fleet roll --resume" in told
    assert "it balances by itself: the router is down" in told


def test_endpoints_are_the_open_groups_in_the_form_that_llm_d_reads(
    site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up(site, capsys)
    site.states["b"] = "closed"
    assert run(["fleet", "endpoints", "--out", "endpoints.yaml"], {}) == 0
    listed = yaml.safe_load((tmp_path / "endpoints.yaml").read_text())["endpoints"]
    assert [(one["name"], one["address"], one["port"]) for one in listed] == [
        ("a", "127.0.0.1", "8310"),
        ("c", "127.0.0.1", "8312"),
    ]
    assert listed[1]["labels"]["slipstream/speculation"] == "off"
    assert run(["fleet", "endpoints", "--follow"], {}) == 2
