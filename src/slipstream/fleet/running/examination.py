"""What is wrong with a fleet: each machine's own examination, its runs, its links and its ports."""

from collections.abc import Iterator
from typing import Literal

from slipstream.checkpoints.pairing import Fault
from slipstream.errors import SlipstreamError
from slipstream.fleet.balancer.deploying import ask_balancer
from slipstream.fleet.far_side.connections import (
    MOST_TARGETS,
    Reach,
    ReachList,
    ReachRequest,
    Target,
)
from slipstream.fleet.machines.commands import Machines, ask_all, escape, read_answer
from slipstream.fleet.plan import FleetPlan, PortRule
from slipstream.fleet.running.status import RENEW_BEFORE, FleetStatus
from slipstream.records import Record
from slipstream.serving.support.checks import Check, CheckVerdict
from slipstream.serving.support.examination import Examination

DOCTOR_SECONDS = 60


class MachineCheck(Record):
    machine: str | None
    check: Check


class FleetExamination(Record):
    schema_version: Literal[1] = 1
    fleet: str
    found: tuple[MachineCheck, ...]
    passed: int

    def count(self, verdict: str) -> int:
        return sum(one.check.verdict == verdict for one in self.found)


def examine_fleet(plan: FleetPlan, status: FleetStatus, far: Machines) -> FleetExamination:
    """Examine every machine concurrently, then compare runs and ports with the plan."""
    checks = [
        *(_describe_fault(fault) for fault in plan.faults),
        *_examine_machines(plan, far),
        *_list_run_checks(status),
        *_list_certificate_checks(status),
        *_check_ports(plan, far),
        *_check_balancer(plan, far),
    ]
    found = tuple(one for one in checks if one.check.verdict != "ok")
    return FleetExamination(fleet=plan.fleet.name, found=found, passed=len(checks) - len(found))


def _describe_fault(fault: Fault) -> MachineCheck:
    verdict: CheckVerdict = "fault" if fault.verdict == "refuse" else "warning"
    return _find(None, fault.code, fault.message, fault.hint, verdict)


def _examine_machines(plan: FleetPlan, far: Machines) -> Iterator[MachineCheck]:
    def examine(machine: str) -> Examination:
        answer = far.call(machine, ["doctor", "--json"], timeout=DOCTOR_SECONDS)
        return read_answer(machine, answer, Examination)

    for machine, answer in ask_all(plan.machines, examine).items():
        if isinstance(answer, SlipstreamError):
            yield _find(machine, "doctor", answer.message, answer.hint)
            continue
        for check in answer.checks:
            yield MachineCheck(machine=machine, check=_escape(check, machine))


def _escape(check: Check, machine: str) -> Check:
    """Make a far machine's words safe to show; what it hints at is typed there."""
    return Check(
        subject=escape(check.subject, 60),
        verdict=check.verdict,
        message=escape(check.message),
        details=tuple(escape(line) for line in check.details[:10]),
        hint=f"on {machine}: {escape(check.hint)}" if check.hint else None,
    )


def _list_run_checks(status: FleetStatus) -> Iterator[MachineCheck]:
    for group in status.groups:
        subject, what = f"group {group.name}", f"it is {group.state}"
        if group.state in ("ready", "starting"):
            yield _find(None, subject, what)
        elif group.state == "down":
            yield _find(None, subject, what, "slipstream fleet up", "warning")
        else:
            yield _find(None, subject, what, "slipstream fleet status")
    for one in status.machines:
        if one.run is not None and one.run.state in ("failed", "supervisor gone"):
            message = escape(one.run.message or "")
            hint = f"slipstream fleet logs --events {one.machine}"
            yield _find(one.machine, "run", f"{one.run.state}: {message}", hint)


def _list_certificate_checks(status: FleetStatus) -> Iterator[MachineCheck]:
    for one in status.machines:
        if (ends := one.certificate_ends) is None:
            continue
        left, hint = (
            ends - status.at,
            "slipstream fleet up, on the machine with the fleet's authority",
        )
        what = f"its certificate expires on {ends:%Y-%m-%d}, in {left.days} days"
        soon: CheckVerdict = "fault" if left.total_seconds() <= 0 else "warning"
        found = _find(one.machine, "certificate", what, hint, soon)
        yield found if left < RENEW_BEFORE else _find(one.machine, "certificate", what)


def _check_balancer(plan: FleetPlan, far: Machines) -> Iterator[MachineCheck]:
    """Look for a load balancer that does not answer, and for groups that it was left closed to."""
    if plan.balancer is None:
        return
    machine, subject = plan.balancer.machine, "load balancer"
    try:
        state = ask_balancer(far)
    except SlipstreamError as fault:
        yield _find(machine, subject, fault.message, fault.hint)
        return
    yield _find(machine, subject, "it responds")
    if state.starts_at_boot is False:
        hint = far.fleet.hint_ssh(
            machine, "sudo loginctl enable-linger '$USER'; slipstream fleet up"
        )
        yield _find(machine, subject, "it does not start after a reboot", hint, "warning")
    for group in (one.group for one in state.groups if one.state == "closed"):
        what = f"it sends {group} no requests: a rollout is running or was interrupted"
        yield _find(machine, subject, what, "slipstream fleet roll --resume")


def _check_ports(plan: FleetPlan, far: Machines) -> Iterator[MachineCheck]:
    """Try from every machine the ports that it is not to reach, and those that it is."""
    wanted = {name: dict(_list_targets(plan, name)) for name in plan.machines}

    def reach(machine: str) -> ReachList:
        request = ReachRequest(targets=tuple(wanted[machine])[:MOST_TARGETS])
        return far.ask(machine, request, ReachList, timeout=DOCTOR_SECONDS)

    for machine, answer in ask_all([name for name in wanted if wanted[name]], reach).items():
        if isinstance(answer, SlipstreamError):
            yield _find(machine, "ports", answer.message, answer.hint)
            continue
        for rule, found in zip(wanted[machine].values(), answer.reached, strict=False):
            yield _evaluate(machine, rule, found)


def _list_targets(plan: FleetPlan, machine: str) -> Iterator[tuple[Target, PortRule]]:
    """Yield the planned TCP ports of the other machines, at each of their addresses.

    Of a range only its owner knows which are in use, so ranges are left to the rule itself.
    """
    for rule in plan.ports:
        if rule.machine == machine or rule.protocol != "tcp" or rule.last_port is not None:
            continue
        for address in plan.list_addresses(rule.machine):
            yield Target(address=address, port=rule.port), rule


def _evaluate(machine: str, rule: PortRule, reach: Reach) -> MachineCheck:
    allowed = rule.callers == "clients" or machine in rule.callers
    where = f"port {rule.port} of {rule.machine}"
    if reach == "open" and not allowed:
        hint = "slipstream fleet plan --firewall"
        return _find(machine, "ports", f"{where} is open to {machine}, and should not be", hint)
    if reach == "closed" and allowed:
        hint = f"on {rule.machine}: nft list ruleset"
        return _find(machine, "ports", f"{where} cannot be reached from {machine}", hint)
    return _find(machine, "ports", f"{where}: {reach}")


def _find(
    machine: str | None,
    subject: str,
    message: str,
    hint: str | None = None,
    verdict: CheckVerdict | None = None,
) -> MachineCheck:
    """Return a check: a fault if there is something to do about it, unless said otherwise."""
    found: CheckVerdict = verdict or ("fault" if hint else "ok")
    check = Check(subject=subject, verdict=found, message=message, hint=hint)
    return MachineCheck(machine=machine, check=check)
