"""`Examination`: problems of this machine, its engine and its runs, each with a hint.

A check that finds nothing says so in one line; everything that it finds is a line of its own.
Nothing heavy is imported and no program is run: it answers within a second.
"""

import shlex
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Literal

from slipstream.engines import vllm
from slipstream.engines.vllm_tables import VERSION, VERSIONS
from slipstream.hardware import Host, find_obstacle
from slipstream.hardware.host import Disk
from slipstream.hardware.surroundings import read_disk
from slipstream.records import Record
from slipstream.serving.kept_logs import LogPlace
from slipstream.serving.run import Run, RunFolder, is_alive
from slipstream.serving.run_status import find_shown_state, read_latest
from slipstream.serving.supervision.causes.diagnosis import Finding, diagnose_file
from slipstream.serving.supervision.engine_process import (
    name_end,
    names_error,
    read_reasons,
)
from slipstream.serving.supervision.engine_session import list_session
from slipstream.serving.supervision.watching.watchdog import (
    LEAST_AVAILABLE_BYTES,
    WATCHED_BELOW_BYTES,
)
from slipstream.serving.support.advisories import (
    OLD_AFTER,
    find_advisories,
    load_advisories,
)
from slipstream.serving.support.checks import (
    Check,
    CheckVerdict,
    Site,
    check_certificates,
    check_listeners,
    check_modes,
    fault,
    fine,
    warn,
)
from slipstream.steering.flight import Flight, read_flight
from slipstream.units import show_bytes, version_tuple
from slipstream.user_folders import slipstream_cache

SCARCE_DISK_BYTES = 20 << 30
LEAST_DISK_BYTES = 1 << 30
PRIVATE = "keys and runs are private, and other users cannot write to caches"
SUPERVISED = "runs, all with their supervisor"
UNREACHED = "no unprotected engine is reachable from other machines"


class Diagnosis(Record):
    """What a log says about the end of an engine; its last lines, if nothing in it is known."""

    schema_version: Literal[1] = 1
    log: str
    # Why the supervisor gave the run up, None if it did not.
    given_up: str | None = None
    findings: tuple[Finding, ...]
    last_lines: tuple[str, ...] = ()
    # Of the engine that ended last, None if it kept none.
    flight: Flight | None = None

    @property
    def is_fault(self) -> bool:
        known = any(finding.cause not in ("request", "slow") for finding in self.findings)
        return known or self.given_up is not None

    @property
    def is_unknown(self) -> bool:
        """Whether the log names an error that no signature knows."""
        return not self.findings and any(map(names_error, self.last_lines))


class Examination(Record):
    """Every check, and the diagnosis of the newest run if it failed."""

    schema_version: Literal[1] = 1
    checks: tuple[Check, ...]
    diagnosis: Diagnosis | None = None

    def count(self, verdict: CheckVerdict) -> int:
        return sum(check.verdict == verdict for check in self.checks)


def examine(site: Site) -> Examination:
    diagnosis = _diagnose_newest(site)
    cache = _read_disk(slipstream_cache(site.environment), site)
    checks = (
        _check_machine(site.host),
        _check_engine(site.host),
        *_check_advisories(site),
        *_or_fine(_check_memory(site.host), "memory", _describe_memory(site.host)),
        *_check_load(site),
        *_or_fine(_check_disk(site), "disk", _describe_disk(cache)),
        *_or_fine(check_modes(site), "files", PRIVATE),
        *_or_fine(check_listeners(site), "network", UNREACHED),
        *check_certificates(site),
        *_or_fine(_check_stale(site), "runs", f"{len(site.runs)} {SUPERVISED}"),
        *_check_live(site),
        _check_newest(site, diagnosis),
    )
    return Examination(checks=checks, diagnosis=diagnosis)


def diagnose_log(
    log: Path, *, exit_code: int | None = None, healthy: LogPlace | None = None
) -> Diagnosis:
    """Diagnose a log file: its known failures, or how the engine ended and its last lines."""
    findings = diagnose_file(log, exit_code=exit_code, healthy=healthy, notices=True)
    ending = () if exit_code is None else (f"the engine {name_end(exit_code)}",)
    return Diagnosis(
        log=str(log),
        findings=findings,
        last_lines=() if findings else (*ending, *read_reasons(log, healthy)),
    )


def diagnose_run(folder: RunFolder) -> Diagnosis:
    """Diagnose a run, by its last event if its engine logged nothing."""
    run = read_latest(folder)
    last = tuple(event.message for event in folder.read_events()[-1:])
    given_up = last[0] if run.state == "failed" and last else None
    if (log := folder.engine_log).exists():
        found = diagnose_log(log, exit_code=run.exit_code, healthy=run.healthy_log)
        also = {"flight": _find_flight(folder, run), "given_up": given_up}
        return found.model_copy(update=also)
    return Diagnosis(log=str(log), given_up=given_up, findings=(), last_lines=last)


def _find_flight(folder: RunFolder, run: Run) -> Flight | None:
    is_up = run.engine is not None and is_alive(run.engine)
    return read_flight(folder.earlier_flight if is_up else folder.flight)


def _or_fine(found: Iterable[Check], subject: str, message: str) -> tuple[Check, ...]:
    return tuple(found) or (fine(subject, message),)


def _check_machine(host: Host) -> Check:
    """Check for an accelerator, unless the installed engine is for CPUs."""
    if (obstacle := find_obstacle(host)) is not None:
        return fault("machine", obstacle.message, obstacle.hint, host.remarks)
    names = [accelerator.name for accelerator in host.accelerators]
    engine = host.software.engine
    if not names and host.remarks and (engine is None or engine.distribution == "vllm"):
        hint = "nvidia-smi; on a machine without a GPU this is expected"
        return warn("machine", "no accelerator was found", hint, host.remarks)
    message = ", ".join(names) or host.processor.model or host.processor.architecture
    return fine("machine", message, host.remarks)


def _check_engine(host: Host) -> Check:
    """Compare the installed engine with the version that plans are made for."""
    engine = host.software.engine
    version = engine.version if engine else VERSION
    name = f"{engine.distribution} {version}" if engine else "vLLM"
    if (obstacle := vllm.find_engine_obstacle(host)) is not None:
        known = tuple(f"{one.id}: {one.danger}" for one in find_advisories(version))
        return fault("engine", obstacle.message, obstacle.hint, known)
    if foreign := vllm.find_foreign_builds():
        message = (
            f"{' and '.join(foreign)} for CUDA beside a torch for CPUs: {name} is not imported"
        )
        return fault("engine", message, f"pip uninstall {' '.join(foreign)}")
    if version_tuple(version)[:2] > version_tuple(VERSIONS[-1])[:2]:
        message = f"{name} is newer than {VERSIONS[-1]}, the newest version that plans are made for"
        return warn("engine", message, vllm.write_install(host))
    return fine("engine", f"{name}, no advisory in the list of {load_advisories().compiled}")


def _check_advisories(site: Site) -> Iterator[Check]:
    """Report the advisories that OSV returned, or that the shipped list is old."""
    lookup, compiled, subject = site.lookup, load_advisories().compiled, "advisories"
    if lookup is None:
        age = site.now.date() - compiled
        if age > OLD_AFTER:
            message = f"the list of advisories is {age.days} days old, of {compiled}"
            hint = "pip install --upgrade slipstream, then slipstream doctor --advisories"
            yield warn(subject, message, hint)
    elif lookup.failure is not None:
        message = f"lookup failed: nothing newer than {compiled} is known"
        hint = "where https://api.osv.dev can be reached: slipstream doctor --advisories"
        yield warn(subject, message, hint, (lookup.failure,))
    elif lookup.advisories:
        packages = sorted({one.package for one in lookup.advisories})
        details = tuple(
            f"{one.package} {one.version}: {one.id}: {one.summary}" for one in lookup.advisories
        )
        message = f"OSV lists {len(lookup.advisories)} for the installed packages"
        hint = f"pip install --upgrade {' '.join(packages)}, as far as vLLM allows"
        yield fault(subject, message, hint, details)
    else:
        yield fine(subject, f"OSV lists none for the {lookup.queried} installed packages")


def _check_memory(host: Host) -> Iterator[Check]:
    """Compare unified memory, which the engine shares, with the limits of its guard."""
    available = host.memory.available_bytes
    if available is None or not _is_unified(host) or available >= WATCHED_BELOW_BYTES:
        return
    memory, hint = _describe_memory(host), "ps -eo pid,rss,args --sort=-rss | head"
    if available < LEAST_AVAILABLE_BYTES:
        yield fault("memory", f"{memory}: an engine is stopped before the machine freezes", hint)
    else:
        effect = "an engine that quickly takes more is stopped before the machine freezes"
        yield warn("memory", f"{memory}: {effect}", hint)


def _describe_memory(host: Host) -> str:
    memory, kind = host.memory, "unified memory" if _is_unified(host) else "memory"
    swap = show_bytes(memory.swap_bytes) if memory.swap_bytes else "no"
    total, available = show_bytes(memory.total_bytes), show_bytes(memory.available_bytes)
    return f"{available} of {total} {kind} available, {swap} swap"


def _is_unified(host: Host) -> bool:
    return any(accelerator.memory_kind == "unified" for accelerator in host.accelerators)


def _check_load(site: Site) -> Iterator[Check]:
    """Report what other processes than the runs' engines compute."""
    load = site.load
    if load is None:
        return
    # A program's name is a detail: those are left out of a bug report.
    if busy := load.describe(named=False):
        message = f"{busy}: engines run slower, and figures measured now are unreliable"
        if load.other_cpu_share > load.most_other_share:
            details = (f"most of it {load.busiest}",) if load.busiest else ()
            yield warn("load", message, "top -b -n 1 -o %CPU | head -n 17", details)
        else:
            yield warn("load", message, "measure later, or on a machine that is not shared")
    else:
        used = f"{load.other_cpu_share * load.cores:.1f} of {load.cores} cores"
        yield fine("load", f"other processes use {used}")


def _check_disk(site: Site) -> Iterator[Check]:
    for path, least in (
        (slipstream_cache(site.environment), SCARCE_DISK_BYTES),
        (site.runs_root, LEAST_DISK_BYTES),
    ):
        disk = _read_disk(path, site)
        if disk.free_bytes is not None and disk.free_bytes < least:
            report = fault if disk.free_bytes < LEAST_DISK_BYTES else warn
            yield report("disk", _describe_disk(disk), f"df -h {disk.path}")


def _read_disk(path: Path, site: Site) -> Disk:
    return read_disk(path, home=Path(site.environment.get("HOME") or Path.home()))


def _describe_disk(disk: Disk) -> str:
    return f"{show_bytes(disk.free_bytes)} free at {disk.path}"


def _check_stale(site: Site) -> Iterator[Check]:
    """Check for runs whose supervisor was killed, and for engines left behind."""
    over = []
    for folder, run in site.runs:
        if find_shown_state(run, site.proc) != "supervisor gone":
            continue
        if run.engine is not None and list_session(run.engine, site.proc):
            message = f"{run.id} has lost its supervisor, and its engine still runs"
            yield fault("runs", message, f"slipstream stop {run.id}")
        else:
            over.append(folder.path)
    if over:
        message, hint = (
            f"killed runs that are still on disk: {len(over)}",
            shlex.join(map(str, over)),
        )
        yield warn("runs", message, f"rm -r {hint}", tuple(path.name for path in over))


def _check_live(site: Site) -> Iterator[Check]:
    """Report what has become worse, and what is not as planned, in the runs that live."""
    for folder, run in site.runs:
        if not is_alive(run.supervisor, site.proc):
            continue
        hint = f"slipstream logs --events {run.id}"
        if run.state == "warming" and run.healthy_log is not None:
            newest = reversed(folder.read_events())
            since = list(takewhile(lambda event: event.state == "warming", newest))
            why = tuple(event.message for event in since[-1:])
            yield warn("ready", f"{run.id} is not ready any more", hint, why)
        if run.drifts:
            details = tuple(drift.describe() for drift in run.drifts)
            where = f"{hint}, and docs/steering.md"
            yield warn("drift", f"{run.id} performs worse than before", where, details)
        if run.notes:
            yield warn("notes", f"{run.id} is not as planned", hint, tuple(run.notes.values()))


def _diagnose_newest(site: Site) -> Diagnosis | None:
    if site.runs and find_shown_state(site.runs[0][1], site.proc) in ("failed", "supervisor gone"):
        return diagnose_run(site.runs[0][0])
    return None


def _check_newest(site: Site, diagnosis: Diagnosis | None) -> Check:
    if not site.runs:
        return fine("last run", "no runs yet")
    folder, run = site.runs[0]
    state = find_shown_state(run, site.proc)
    if diagnosis is None:
        return fine("last run", f"{run.id} is {state}")
    what = "" if folder.engine_log.exists() else "--events "
    message, hint = f"{run.id}: {state}", f"slipstream logs {what}{run.id}"
    details = diagnosis.last_lines
    if diagnosis.findings:
        first = diagnosis.findings[0]
        message, hint, details = f"{message}: {first.meaning}", first.remedy, (first.line,)
    return fault("last run", message, hint, details)
