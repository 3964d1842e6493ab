"""Machines of a fleet that keep files, runs, drafters and a load balancer, as the real ones do."""

import json
from datetime import timedelta
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.errors import ExitCode
from slipstream.fleet.balancer.control import BackendState, BackendStatus, BalancerStatus
from slipstream.fleet.far_side.connections import LinkFigures
from slipstream.fleet.far_side.evaluation import RunVerdict
from slipstream.fleet.machines.commands import CommandResult
from slipstream.fleet.record import Fleet, read_fleet
from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.verifying.certificate import Regret
from slipstream.measuring.verifying.served_check import ServedCheck
from slipstream.planning import LaunchPlan
from slipstream.serving.access.keys import make_key
from slipstream.serving.run_status import RunStatus
from slipstream.serving.swaps import ServedDrafter, Swap, SwapTrial
from tests.unit.cli.pairs import write_pair
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

GREETING = b"Welcome to {NAME}\n\n* 3 updates\n"
NUMBERS = {"one": 1, "two": 2, "three": 3}
HASH = "ab" * 32
REGRET = Regret(arm="drafted", answers=4, tokens=90, best=88, ties=2, faults=0, worst=0.1)


class Site:
    """Machines, which greet whoever logs in.

    `bad` fail to start a plan of some context, to verify it, or refuse to look (`check`).

    `worse` are drafters that requests show to be worse, and `refused` those that no engine takes.
    """

    def __init__(self, folder: Path) -> None:
        self.fleet: Fleet = read_fleet(folder / "fleet.toml")
        self.far = FarMachines(self.reply)
        self.runs: dict[str, RunStatus] = {}
        # What every machine's run was started with.
        self.plans: dict[str, LaunchPlan] = {}
        # The file with which the load balancer was started.
        self.balancing = b""
        self.states: dict[str, BackendState] = dict.fromkeys(self.fleet.groups, "open")
        self.bad: set[tuple[str, str, int | None]] = set()
        self.undrafted = False
        self.worse, self.refused = set[str](), set[tuple[str, str]]()
        self.verdicts: dict[str, RunVerdict] = {}
        # What some verb or request is answered with, whoever is asked.
        self.answers: dict[str, CommandResult] = {}
        self.log: list[str] = []

    def read(self, machine: str, name: str) -> bytes | None:
        return self.far.files.get((machine, f"{self.fleet.folder}/{name}"))

    @property
    def contexts(self) -> dict[str, int | None]:
        return {machine: plan.context for machine, plan in self.plans.items()}

    def locate(self, group: str) -> str | None:
        """Return where a group answers, None if it does not."""
        head = self.fleet.groups[group].machines[0]
        if head not in self.runs or self.runs[head].state != "ready":
            return None
        host, port = self.plans[head].settings.host, self.plans[head].settings.port
        return f"{host.value}:{port.value}" if host and port else None

    def is_reached(self, group: str) -> bool:
        """Say whether the load balancer looks for a group where it answers."""
        return f" server {group} {self.locate(group)} ".encode() in self.balancing

    def list_drafters(self) -> dict[str, str]:
        return {name: self.find_drafter(name).name for name in self.runs if name != "three"}

    def find_drafter(self, machine: str) -> ServedDrafter:
        """Return what drafts; the one of the fleet's file is called old, others by their folder."""
        if self.runs[machine].drafters:
            return self.runs[machine].drafters[-1]
        folder = Path(self.plans[machine].drafter or "")
        return ServedDrafter(name=folder.name.replace("drafter", "old"), folder=folder, since=NOW)

    def reply(self, machine: str, words: list[str], stdin: bytes | None) -> CommandResult:
        verb = words[0]
        if verb in self.answers:
            return self.answers[verb]
        request = json.loads(stdin) if stdin and verb[0].isupper() else {}
        method = getattr(self, f"_{verb.lower()}", None)
        answer = method(machine, words, request) if method else say("1.0\n")
        assert isinstance(answer, CommandResult)
        return CommandResult(answer.code, GREETING + answer.stdout, answer.stderr)

    def _sh(self, machine: str, words: list[str], _: object) -> CommandResult:
        files = self.far.files
        if ".next" in words[2]:
            for name in words[4:]:
                files[machine, name] = files.pop((machine, f"{name}.next"))
            return say("")
        path, mark = words[-2:]
        if (found := files.get((machine, path))) is None:
            return say("", 3)
        return say(f"{mark}\n".encode() + found)

    def _describemachine(self, machine: str, *_: object) -> CommandResult:
        number = NUMBERS[machine]
        seen = view(number, address=f"10.0.0.{number}")
        # One of them has an address for clients besides.
        more = seen.interfaces[0].model_copy(update={"name": "eth1", "addresses": ("10.1.0.1/24",)})
        interfaces = (*seen.interfaces, *([more] if machine == "one" else []))
        return say(seen.model_copy(update={"interfaces": interfaces}).to_json())

    def _servelink(self, *_: object) -> CommandResult:
        return say('{"port": 4000}\n')

    def _measurelink(self, *_: object) -> CommandResult:
        return say(LinkFigures(gigabits=23.4, round_trip_ms=0.05).to_json())

    def _modelrequest(self, *_: object) -> CommandResult:
        return say(json.dumps({"name": "m", "tree": "/m", "sha256": HASH, "size_bytes": 5}))

    def _locatemodel(self, *_: object) -> CommandResult:
        return say('{"tree": "/models/target"}')

    def _reachrequest(self, *_: object) -> CommandResult:
        return say('{"reached": []}')

    def _evaluaterun(self, machine: str, *_: object) -> CommandResult:
        return say(self.verdicts[machine].to_json())

    def _balancerrequest(
        self, machine: str, _: list[str], request: dict[str, str]
    ) -> CommandResult:
        assert self.fleet.balancer is not None
        assert machine == self.fleet.balancer.machine
        action, group = request["action"], request.get("group")
        if group is not None:
            self.states[group] = "open" if action == "open" else "closed"
        if action in ("start", "reload"):
            self.balancing = self.read(machine, "balancer/haproxy.cfg") or b""
        if action == "stop":
            self.balancing = b""
        self.log.append(" ".join(["balancer", action, *([group] if group else [])]))
        states = tuple(
            BackendStatus(
                group=name,
                state="down" if state == "open" and not self.is_reached(name) else state,
                requests=0,
            )
            for name, state in self.states.items()
        )
        return say(BalancerStatus(groups=states).to_json())

    def _status(self, machine: str, *_: object) -> CommandResult:
        return list_runs(*([self.runs[machine]] if machine in self.runs else []))

    def _doctor(self, *_: object) -> CommandResult:
        return say('{"checks": [{"subject": "disk", "verdict": "ok", "message": "fine"}]}')

    def _serve(self, machine: str, words: list[str], _: object) -> CommandResult:
        plan = LaunchPlan.model_validate_json(self.far.files[machine, words[1]])
        self.log.append(f"serve {machine} {plan.context} {'--tls' in words}")
        before = self.runs.get(machine)
        assert before is None or before.state in ("stopped", "failed"), f"{machine} serves already"
        identity = f"run-{machine}"
        file = f"/home/me/{words[1]}"
        self.plans[machine] = plan
        if (machine, "serve", plan.context) in self.bad:
            self.runs[machine] = run_status(self.fleet, "failed", id=identity, plan_file=file)
            return events("starting", "failed")
        self.runs[machine] = run_status(self.fleet, id=identity, plan_file=file)
        return events("starting", "warming", "ready")

    def _stop(self, machine: str, *_: object) -> CommandResult:
        self.log.append(f"stop {machine}")
        self.runs[machine] = self.runs[machine].model_copy(update={"state": "stopped"})
        return say("{}")

    def _verify(self, machine: str, *_: object) -> CommandResult:
        self.log.append(f"verify {machine}")
        if (machine, "check", self.contexts[machine]) in self.bad:
            return say("", ExitCode.EXPECTED_FAILURE, b"error: it does not serve")
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

    def _swap(self, machine: str, words: list[str], _: object) -> CommandResult:
        """Swap as a supervisor does: a trial is written down before the drafter is loaded."""
        served, before = self.runs[machine], self.find_drafter(machine)
        name = served.drafters[-2].name if "--back" in words else words[2]
        self.log.append(f"swap {machine} {name}")
        if served.state != "ready":
            return say("", ExitCode.EXPECTED_FAILURE, b"error: it does not run")
        if (machine, name) in self.refused:
            said = {"error": {"message": "swap-shape: it has \x1b other layers", "hint": "look"}}
            return say("", ExitCode.EXPECTED_FAILURE, json.dumps(said).encode())
        order = words[words.index("--order") + 1] if "--order" in words else "1"
        trial = served.trial
        if trial is not None and trial.state == "running":
            trial = trial.model_copy(update={"state": "rolled back", "message": "by order"})
        if "--trial" in words:
            trial = SwapTrial(
                order=order,
                drafter=name,
                folder=Path(f"/{name}"),
                before=before,
                began_at=NOW,
                until=NOW + timedelta(hours=float(words[words.index("--trial") + 1])),
            )
        self.runs[machine] = served.model_copy(update={"trial": trial})
        self._load(machine, name)
        swap = Swap(
            order=order,
            at=NOW,
            outcome="swapped",
            message=f"{name} drafts",
            drafter=name,
            serves=name,
        )
        return say(swap.to_json())

    def _load(self, machine: str, name: str) -> None:
        served = self.runs[machine]
        added = ServedDrafter(name=name, folder=Path(f"/{name}"), since=NOW)
        drafters = (*(served.drafters or (self.find_drafter(machine),)), added)
        self.runs[machine] = served.model_copy(update={"drafters": drafters})

    def end_lonely_ranks(self) -> None:
        """Let time pass in groups: what one rank left, the others leave by themselves."""
        for group in self.fleet.groups.values():
            ranks = {one: self.runs[one] for one in group.machines if one in self.runs}
            ready = [one for one in ranks if ranks[one].state == "ready"]
            for machine in ready if len(ready) < len(group.machines) else ():
                self.runs[machine] = ranks[machine].model_copy(update={"state": "failed"})

    def end_trials(self, *_: object) -> None:
        """Let time pass on the machines: requests decide every trial, without anybody's help."""
        for machine, served in list(self.runs.items()):
            if served.trial is not None and served.trial.state == "running":
                is_worse = served.trial.drafter in self.worse
                state = "rolled back" if is_worse else "passed"
                changed = {"state": state, "message": "worse" if is_worse else "as good"}
                trial = served.trial.model_copy(update=changed)
                self.runs[machine] = served.model_copy(update={"trial": trial})
                if is_worse:
                    self._load(machine, served.trial.before.name)


def write_models(folder: Path) -> None:
    """Write a target, a drafter and a key, as much of them as a plan reads."""
    write_pair(folder)
    make_key(folder / "keys.json", "alice", now=NOW, expires=None)


def write_replicas(folder: Path, *, context: int) -> None:
    """Write a fleet of three replicas behind a load balancer; one of them does not draft."""
    groups = "".join(
        f'[machines.{machine}]\n[groups.{group}]\nmachines = ["{machine}"]\n'
        f"speculation = {'false' if group == 'c' else 'true'}\n"
        for group, machine in zip("abc", NUMBERS, strict=True)
    )
    (folder / "fleet.toml").write_text(
        f'name = "lab"\n[model]\ntarget = "{folder}/target"\ndrafter = "{folder}/drafter"\n'
        f"[options]\ncontext = {context}\n{groups}"
        '[balancer]\nmachine = "one"\n[keys]\nfile = "keys.json"\n'
    )


def make_replicas(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Make the machines of that fleet, in a folder that becomes the working one."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write_models(folder)
    write_replicas(folder, context=512)
    site = Site(folder)
    connect(monkeypatch, site.far)
    return site


def bring_up(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Start all of it."""
    assert run(["fleet", "init"], {}) == 0
    assert run(["fleet", "up"], {}) == 0
    site.log.clear()
    capsys.readouterr()
