"""What is wrong with a fleet: each machine's own examination, its runs, its links and its ports."""

from collections.abc import Iterator
from typing import Literal

from slipstream.errors import SlipstreamError
from slipstream.fleet.far_commands import call, read_answer
from slipstream.fleet.far_side.reach import MOST_TARGETS, Reached, ReachList
from slipstream.fleet.front.deploying import read_front
from slipstream.fleet.plan import FleetPlan, PortRule
from slipstream.fleet.status import FleetStatus
from slipstream.fleet.transport import Transport, ask_all, escape
from slipstream.records import Record
from slipstream.serving.support.checks import Check
from slipstream.serving.support.examination import Examination

DOCTOR_SECONDS = 60


class MachineCheck(Record):
    """A check of one machine, or of the whole fleet."""

    machine: str | None
    check: Check


class FleetExamination(Record):
    """Every check that found something, and how many found nothing."""

    schema_version: Literal[1] = 1
    fleet: str
    found: tuple[MachineCheck, ...]
    passed: int

    def count(self, verdict: str) -> int:
        """Count the checks that ended so."""
        return sum(one.check.verdict == verdict for one in self.found)


def examine_fleet(plan: FleetPlan, status: FleetStatus, transport: Transport) -> FleetExamination:
    """Examine every machine concurrently, then hold runs and ports against the plan."""
    checks = [
        *_list_plan_checks(plan),
        *_examine_machines(plan, transport),
        *_list_run_checks(status),
        *_check_ports(plan, transport),
        *_check_front(plan, transport),
    ]
    found = tuple(one for one in checks if one.check.verdict != "ok")
    return FleetExamination(fleet=plan.fleet.name, found=found, passed=len(checks) - len(found))


def _list_plan_checks(plan: FleetPlan) -> Iterator[MachineCheck]:
    for fault in plan.faults:
        verdict: Literal["fault", "warning"] = "fault" if fault.verdict == "refuse" else "warning"
        yield MachineCheck(
            machine=None,
            check=Check(
                subject=fault.code, verdict=verdict, message=fault.message, hint=fault.hint
            ),
        )


def _examine_machines(plan: FleetPlan, transport: Transport) -> Iterator[MachineCheck]:
    fleet = plan.fleet

    def examine(machine: str) -> Examination:
        answer = call(fleet, transport, machine, ["doctor", "--json"], timeout=DOCTOR_SECONDS)
        return read_answer(machine, answer, Examination)

    for machine, answer in ask_all(plan.machines, examine).items():
        if isinstance(answer, SlipstreamError):
            yield _find(machine, "doctor", answer.message, answer.hint)
            continue
        for check in answer.checks:
            yield MachineCheck(machine=machine, check=_escape(check, fleet.name_ssh(machine)))


def _escape(check: Check, name: str) -> Check:
    """Make a far machine's words safe to show; what it hints at is typed there."""
    return Check(
        subject=escape(check.subject, 60),
        verdict=check.verdict,
        message=escape(check.message),
        details=tuple(escape(line) for line in check.details[:10]),
        hint=f"on {name}: {escape(check.hint)}" if check.hint else None,
    )


def _list_run_checks(status: FleetStatus) -> Iterator[MachineCheck]:
    for group in status.groups:
        if group.state in ("ready", "starting"):
            yield MachineCheck(
                machine=None,
                check=Check(subject=f"group {group.name}", verdict="ok", message=group.state),
            )
            continue
        down = group.state == "down"
        yield MachineCheck(
            machine=None,
            check=Check(
                subject=f"group {group.name}",
                verdict="warning" if down else "fault",
                message=f"it is {group.state}",
                hint="slipstream fleet up" if down else "slipstream fleet status",
            ),
        )
    for one in status.machines:
        if one.run is not None and one.run.state in ("failed", "supervisor gone"):
            said = escape(one.run.message or "")
            hint = f"slipstream fleet logs --events {one.machine}"
            yield _find(one.machine, "run", f"{one.run.state}: {said}", hint)


def _check_front(plan: FleetPlan, transport: Transport) -> Iterator[MachineCheck]:
    """Look for a front that does not answer, and for groups that it was left closed to."""
    if plan.router is None:
        return
    machine = plan.router.machine
    try:
        state = read_front(plan.fleet, transport)
    except SlipstreamError as fault:
        yield _find(machine, "front", fault.message, fault.hint)
        return
    for group in (one.group for one in state.groups if one.state == "closed"):
        what = f"it sends {group} no requests: a rollout was left, or goes on"
        yield _find(machine, "front", what, "slipstream fleet roll --resume")
    message = "it answers" if state.router_up else "it balances by itself: the router is down"
    check = Check(
        subject="front",
        verdict="ok" if state.router_up else "warning",
        message=message,
        hint=None if state.router_up else f"on {machine}: tail the fleet's front/router.log",
    )
    yield MachineCheck(machine=machine, check=check)


def _check_ports(plan: FleetPlan, transport: Transport) -> Iterator[MachineCheck]:
    """Try from every machine the ports that it is not to reach, and those that it is."""
    wanted = {name: dict(_list_targets(plan, name)) for name in plan.machines}

    def reach(machine: str) -> ReachList:
        words = ["fleet", "reach", "--json", *list(wanted[machine])[:MOST_TARGETS]]
        answer = call(plan.fleet, transport, machine, words, timeout=DOCTOR_SECONDS)
        return read_answer(machine, answer, ReachList)

    for machine, answer in ask_all([name for name in wanted if wanted[name]], reach).items():
        if isinstance(answer, SlipstreamError):
            yield _find(machine, "ports", answer.message, answer.hint)
            continue
        for one in answer.reached:
            rule = wanted[machine].get(_name_target(one.address, one.port))
            if rule is not None:
                yield _judge(machine, rule, one)


def _list_targets(plan: FleetPlan, machine: str) -> Iterator[tuple[str, PortRule]]:
    """Yield the planned TCP ports of the other machines, at each of their addresses.

    Of a range only its owner knows which are in use, so ranges are left to the rule itself.
    """
    for rule in plan.ports:
        if rule.machine == machine or rule.protocol != "tcp" or rule.last_port is not None:
            continue
        for address in plan.list_addresses(rule.machine):
            yield _name_target(address, rule.port), rule


def _judge(machine: str, rule: PortRule, one: Reached) -> MachineCheck:
    allowed = rule.who == "clients" or machine in rule.who
    where = f"port {rule.port} of {rule.machine}"
    if one.reach == "open" and not allowed:
        hint = "slipstream fleet plan --firewall"
        return _find(machine, "ports", f"{where} is open to {machine}, and not meant to be", hint)
    if one.reach == "closed" and allowed:
        hint = f"on {rule.machine}: nft list ruleset"
        return _find(machine, "ports", f"{where} cannot be reached from {machine}", hint)
    return MachineCheck(
        machine=machine, check=Check(subject="ports", verdict="ok", message=f"{where}: {one.reach}")
    )


def _name_target(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _find(machine: str | None, subject: str, message: str, hint: str) -> MachineCheck:
    check = Check(subject=subject, verdict="fault", message=message, hint=hint)
    return MachineCheck(machine=machine, check=check)
