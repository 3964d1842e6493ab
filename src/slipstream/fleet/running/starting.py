"""Starting and stopping a fleet's groups: files first, then every rank at a time, watched to ready.

Each machine serves under its own supervisor, and the ranks of a group watch each other: once they
run, nothing here is needed any more.
"""

import hashlib
import queue
import secrets
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError, UnreachableError
from slipstream.fleet.machines.commands import Machines, Show, Stream, ask_all, escape
from slipstream.fleet.plan import FleetPlan, GroupPlan
from slipstream.fleet.record import PLANS
from slipstream.fleet.running.status import FleetStatus
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.powers import list_powers
from slipstream.serving.access.keys import read_keys
from slipstream.serving.run import Event

KEYS_NAME = "keys.json"
STOP_SECONDS = 300
SECRET_BYTES = 32


def list_files(
    plan: FleetPlan, machine: str, group_secrets: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return what a machine needs to serve its part of the fleet."""
    files = dict[str, bytes]()
    if (rank := plan.find_rank(machine)) is not None:
        files[name_plan(rank.plan)] = rank.plan.to_json().encode()
        if plan.fleet.keys is not None:
            files[KEYS_NAME] = render_keys(plan.fleet.keys.file)
    group = plan.fleet.find_group(machine) or ""
    if group in group_secrets:
        files[f"group-{group}.key"] = group_secrets[group]
    return files


def name_plan(plan: LaunchPlan) -> str:
    return f"{PLANS}/{hashlib.sha256(plan.to_json().encode()).hexdigest()[:16]}.json"


def start_groups(
    plan: FleetPlan, names: Iterable[str], far: Machines, show: Show
) -> dict[str, SlipstreamError]:
    """Start groups, all their ranks at a time, and return why machines did not get ready."""
    groups = [group for group in plan.groups if group.name in {*names}]
    contents = {
        group.name: secrets.token_hex(SECRET_BYTES).encode() + b"\n"
        for group in groups
        if len(group.ranks) > 1
    }

    def prepare(machine: str) -> None:
        show(machine, "preparing", "files are sent")
        for name, content in list_files(plan, machine, contents).items():
            far.send(machine, content, name)

    # A rank without its files would keep the others of its group waiting.
    machines = [rank.machine for group in groups for rank in group.ranks]
    faults = _find_faults(ask_all(machines, prepare))
    lacking = {far.fleet.find_group(machine) for machine in faults}
    able = [rank.machine for group in groups if group.name not in lacking for rank in group.ranks]
    # All of them at a time: a rank that waits for its turn keeps its group waiting.
    served = ask_all(able, lambda machine: _serve(far, plan, machine, show), workers=len(able))
    return faults | _find_faults(served)


def stop_groups(
    far: Machines, names: Iterable[str], status: FleetStatus, *, now: bool, show: Show
) -> dict[str, SlipstreamError]:
    """Stop groups: the rank that answers drains first, then the others of its group follow."""
    chosen = [group for name, group in far.fleet.groups.items() if name in {*names}]

    def stop(machine: str) -> None:
        found = status.find_machine(machine)
        if found.fault is not None:
            hint = found.hint or "slipstream fleet doctor"
            raise UnreachableError(f"{machine} may still run: {found.fault}", hint=hint)
        run = found.run
        if run is None or run.state in ("stopped", "failed"):
            return
        show(machine, "stopping", run.id)
        words = ["stop", "--json", run.id, *(["--now"] if now else [])]
        answer = far.call(machine, words, timeout=STOP_SECONDS)
        # A rank that follows may have ended with its head meanwhile.
        if answer.code and b"is over already" not in answer.stderr:
            raise EngineError(
                f"{machine}: {run.id} did not stop: {answer.complaint}",
                hint=f"slipstream fleet logs --events {machine}",
            )
        show(machine, "stopped", escape(run.id))

    faults = _find_faults(ask_all([group.machines[0] for group in chosen], stop))
    # One that may still answer keeps its followers.
    ended = [group for group in chosen if group.machines[0] not in faults]
    followers = [machine for group in ended for machine in group.machines[1:]]
    return faults | _find_faults(ask_all(followers, stop))


def require_startable(plan: FleetPlan, names: Iterable[str]) -> tuple[GroupPlan, ...]:
    """Return the groups of these names; a plan that is refused is not started."""
    if plan.refusals:
        raise InvalidInputError(
            f"the fleet's plan is refused: {plan.refusals[0].message}",
            details=tuple(fault.message for fault in plan.refusals[1:]),
            hint=plan.refusals[0].hint,
        )
    found = {group.name: group for group in plan.groups}
    if unknown := [name for name in names if name not in found]:
        raise InvalidInputError(
            f"there is no group {unknown[0]}", hint=f"one of {', '.join(found)}"
        )
    return tuple(found[name] for name in names)


def _serve(far: Machines, plan: FleetPlan, machine: str, show: Show) -> None:
    """Have a machine serve its plan, and follow it until it is ready."""
    fleet, rank = far.fleet, plan.find_rank(machine)
    assert rank is not None
    keys = [f"SLIPSTREAM_KEYS=~/{fleet.folder}/{KEYS_NAME}"] if fleet.keys else []
    words = ["serve", f"{fleet.folder}/{name_plan(rank.plan)}", "--detach", "--json"]
    powers = list_powers(rank.plan, None)
    words += ["--allow", *(one.removeprefix("--") for one in powers)] if powers else []
    # Of a machine that answers requests, only the load balancer may ask.
    heads = {group.machines[0] for group in fleet.groups.values()}
    words += ["--tls", f"{fleet.folder}/tls"] if fleet.balancer and machine in heads else []
    stream = far.start(machine, words, variables=keys)
    last: Event | None = None
    try:
        for event in _read_events(stream.lines()):
            last = event
            show(machine, event.state, escape(event.message, 120))
    finally:
        code = stream.close()
    if last is None or last.state != "ready":
        reason = f"{last.state}: {escape(last.message)}" if last else f"exit code {code}"
        raise EngineError(
            f"{machine} did not become ready: {reason}", hint=f"slipstream fleet logs {machine}"
        )


def _read_events(lines: Iterator[bytes]) -> Iterator[Event]:
    for line in lines:
        with suppress(ValidationError):
            yield Event.model_validate_json(line)


def render_keys(file: Path) -> bytes:
    """Return the fleet's keys as a machine keeps them, a line each; there has to be one."""
    if not (keys := read_keys(file)):
        raise InvalidInputError(
            f"there are no keys in {file}",
            hint=f"SLIPSTREAM_KEYS={file} slipstream keys new --name NAME",
        )
    return "".join(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys).encode()


def _find_faults(answers: dict[str, SlipstreamError | None]) -> dict[str, SlipstreamError]:
    return {name: one for name, one in answers.items() if isinstance(one, SlipstreamError)}


LONGEST_LINE = 4000
# Machines that say more than is read wait; so does the memory of this one.
MOST_LINES = 10_000
_Line = tuple[str, str] | None


def follow_logs(
    far: Machines, runs: Mapping[str, str], words: Sequence[str]
) -> Generator[tuple[str, str], None, None]:
    """Yield lines of `slipstream logs` of each machine's run as they come, escaped."""
    lines: queue.Queue[_Line] = queue.Queue(MOST_LINES)
    streams = list[Stream]()
    try:
        for machine, run in runs.items():
            try:
                stream = far.start(machine, ["logs", *words, run])
            except SlipstreamError as fault:
                yield machine, fault.message
                continue
            streams.append(stream)
            threading.Thread(target=_read, args=(machine, stream, lines), daemon=True).start()
        left = len(streams)
        while left:
            if (line := lines.get()) is None:
                left -= 1
            else:
                yield line
    finally:
        for stream in streams:
            stream.close()


def _read(machine: str, stream: Stream, lines: "queue.Queue[_Line]") -> None:
    try:
        for line in stream.lines():
            # A bar is redrawn many times before its line ends: its last form counts.
            text = line.decode(errors="replace").rstrip("\r\n").rpartition("\r")[2]
            lines.put((machine, escape(text, LONGEST_LINE)))
    except ValueError:  # It was closed meanwhile.
        pass
    except SlipstreamError as fault:
        lines.put((machine, fault.message))
    finally:
        lines.put(None)
