"""Whether other processes used this machine while it was measured.

Two engines that are compared on a machine that also does something else are not compared: the
threads of one wait for each other at every layer, so the core that is taken sets the pace. The
watch reads /proc for what other processes used and what a hypervisor took, and times a small fixed
computation, which also finds what /proc does not show: a CPU quota or a lower clock.

Only the CPUs that this process may run on are counted.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import NamedTuple

from slipstream.hardware import Host
from slipstream.records import Record

# The daemons of a quiet machine stay below a tenth; an engine that uses every core loses at least
# the share that others take, and 5 % is what a verdict calls even.
MOST_OTHER_SHARE = 0.10
# Beside an accelerator the engine needs few of the cores.
MOST_OTHER_SHARE_WITH_ACCELERATOR = 0.50
MOST_STEAL_SHARE = 0.05
# An idle virtual machine took up to 2.4 times as long from one second to the next, by what others
# did on the same core: against that only repetition helps. More is a lower clock or a quota.
MOST_SLOWDOWN = 2.5
# Ticks of 10 ms: over a shorter time the shares are too coarse to be held against a limit.
LEAST_SECONDS = 0.5
QUIET_SECONDS = 2.0
QUIET_WITHIN_SECONDS = 30.0
COMPUTATION_ROUNDS = 60_000
COMPUTATION_REPEATS = 3

_PROC = Path("/proc")
_IDLE, _WAITING, _STEAL, _COUNTED = 3, 4, 7, 8


class MachineLoad(Record):
    """The use of the machine by others; shares are of the time of all `cores`.

    `slowdown` is the time of a fixed computation over the least that was seen; `busiest` names the
    other process that computed most. Above `most_other_share` nothing can be concluded.
    """

    cores: int
    seconds: float
    other_cpu_share: float
    steal_share: float
    slowdown: float
    busiest: str | None = None
    most_other_share: float = MOST_OTHER_SHARE

    @property
    def is_busy(self) -> bool:
        return bool(self.describe())

    @property
    def disturbance(self) -> float:
        """Return how far the worst of the shares is above its limit, as a ratio."""
        return max(
            self.other_cpu_share / self.most_other_share,
            self.steal_share / MOST_STEAL_SHARE,
            (self.slowdown - 1) / (MOST_SLOWDOWN - 1),
        )

    def describe(self, *, named: bool = True) -> str:
        """Return what disturbed, or nothing if the machine was quiet; without names on request."""
        if self.seconds < LEAST_SECONDS:
            return ""
        parts = []
        if self.other_cpu_share > self.most_other_share:
            used = f"{self.other_cpu_share * self.cores:.1f} of {self.cores} cores"
            name = f", most of it {self.busiest}" if named and self.busiest else ""
            parts.append(f"other processes used {used}{name}")
        if self.steal_share > MOST_STEAL_SHARE:
            parts.append(f"the hypervisor took {self.steal_share:.0%} of the cores' time")
        if self.slowdown > MOST_SLOWDOWN and not parts:
            parts.append(f"a fixed computation took {self.slowdown:.1f} times its usual time")
        return " and ".join(parts)


class _Process(NamedTuple):
    name: str
    parent: int
    session: int
    ticks: int
    reaped_ticks: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The figures of /proc at one moment."""

    at: float
    computation_seconds: float
    cores: int
    busy_ticks: int
    steal_ticks: int
    all_ticks: int
    processes: Mapping[tuple[int, int], _Process]


@dataclass(slots=True)
class MachineWatch:
    """Compares a machine before and after a measurement; `proc` is its /proc."""

    proc: Path = _PROC
    cpus: frozenset[int] | None = field(default_factory=lambda: find_cpus())
    root: int = field(default_factory=os.getpid)
    most_other_share: float = MOST_OTHER_SHARE
    compute: Callable[[], float] = field(default_factory=lambda: time_computation)
    clock: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep
    _fastest: float = inf

    def begin(self) -> Snapshot | None:
        """Return the figures before a measurement; None where the machine cannot be watched."""
        return self._look(self._time()) if (self.proc / "stat").exists() else None

    def end(self, before: Snapshot | None, sessions: Collection[int] = ()) -> MachineLoad | None:
        """Return what others used since `begin`; `sessions` are those of engines."""
        after = None if before is None else self._look(0.0)
        if before is None or after is None:
            return None
        slowest = max(before.computation_seconds, self._time())
        whole = max(1, after.all_ticks - before.all_ticks)
        own = self._find_own(before, sessions) | self._find_own(after, sessions)
        used = _count_own(after, own) - _count_own(before, own)
        others = max(0, after.busy_ticks - before.busy_ticks - used)
        return MachineLoad(
            cores=after.cores,
            seconds=after.at - before.at,
            other_cpu_share=min(1.0, others / whole),
            steal_share=max(0, after.steal_ticks - before.steal_ticks) / whole,
            slowdown=slowest / self._fastest,
            busiest=_find_busiest(before, after, own),
            most_other_share=self.most_other_share,
        )

    def wait_until_quiet(self, within_seconds: float = QUIET_WITHIN_SECONDS) -> bool:
        """Wait until nothing else computes, for a while at most; return whether that came."""
        until = self.clock() + within_seconds
        while True:
            before = self.begin()
            self.wait(QUIET_SECONDS)
            found = self.end(before)
            if found is None or not found.is_busy:
                return True
            if self.clock() >= until:
                return False

    def _time(self) -> float:
        seconds = self.compute()
        self._fastest = min(self._fastest, seconds)
        return seconds

    def _look(self, computation_seconds: float) -> Snapshot | None:
        rows = _parse_cpus(_read(self.proc / "stat"), self.cpus)
        if not rows:
            return None
        everything = sum(map(sum, rows))
        idle = sum(row[_IDLE] + row[_WAITING] for row in rows)
        steal = sum(row[_STEAL] for row in rows)
        return Snapshot(
            at=self.clock(),
            computation_seconds=computation_seconds,
            cores=len(rows),
            busy_ticks=everything - idle - steal,
            steal_ticks=steal,
            all_ticks=everything,
            processes=dict(
                found
                for path in self.proc.glob("[0-9]*/stat")
                if (found := _parse_process(_read(path))) is not None
            ),
        )

    def _find_own(self, snapshot: Snapshot, sessions: Collection[int]) -> set[tuple[int, int]]:
        """Return this process, its children and the engines' sessions."""
        processes = snapshot.processes.items()
        own = {key for key, one in processes if key[0] == self.root or one.session in sessions}
        found = own
        while found:
            pids = {pid for pid, _ in found}
            found = {key for key, one in processes if one.parent in pids and key not in own}
            own = own | found
        return own


def make_watch(host: Host | None) -> MachineWatch:
    """Return a watch for this machine, with limits for where its engines compute."""
    limit = MOST_OTHER_SHARE_WITH_ACCELERATOR if host and host.accelerators else MOST_OTHER_SHARE
    return MachineWatch(most_other_share=limit)


def time_computation() -> float:
    """Return the time of a small computation: the least of a few runs of about 15 ms."""
    return min(_compute() for _ in range(COMPUTATION_REPEATS))


def find_cpus() -> frozenset[int] | None:
    """Return the CPUs that this process may run on, None where the system does not say."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def _read(path: Path) -> str:
    """Return a file's text, empty if it is gone: processes end while they are listed."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _compute() -> float:
    began = time.perf_counter()
    value = 1
    for _ in range(COMPUTATION_ROUNDS):
        value = (value * 1103515245 + 12345) & 0x7FFFFFFF
    return time.perf_counter() - began


def _parse_cpus(text: str, wanted: frozenset[int] | None) -> list[tuple[int, ...]]:
    """Read each CPU's ticks; a guest's are counted with the user's already."""
    rows = []
    for line in text.splitlines():
        name, *ticks = line.split() or [""]
        number = name.removeprefix("cpu")
        if not number.isdigit() or not name.startswith("cpu") or len(ticks) < _COUNTED:
            continue
        if wanted is None or int(number) in wanted:
            rows.append(tuple(map(int, ticks[:_COUNTED])))
    return rows


def _parse_process(text: str) -> tuple[tuple[int, int], _Process] | None:
    """Read a process's line; its name is in parentheses and may hold any sign, an escape, too."""
    head, found, rest = text.rpartition(")")
    fields = rest.split()
    if not found or len(fields) < 20:
        return None
    pid, _, name = head.partition(" (")
    process = _Process(
        name="".join(sign if sign.isprintable() else "?" for sign in name),
        parent=int(fields[1]),
        session=int(fields[3]),
        ticks=int(fields[11]) + int(fields[12]),
        reaped_ticks=int(fields[13]) + int(fields[14]),
    )
    return (int(pid), int(fields[19])), process


def _count_own(snapshot: Snapshot, own: set[tuple[int, int]]) -> int:
    """Count ticks with those of children that ended: a parent keeps them."""
    living = (snapshot.processes[key] for key in own if key in snapshot.processes)
    return sum(one.ticks + one.reaped_ticks for one in living)


def _find_busiest(before: Snapshot, after: Snapshot, own: set[tuple[int, int]]) -> str | None:
    used: Counter[str] = Counter()
    for key, process in after.processes.items():
        if key not in own:
            earlier = before.processes.get(key)
            used[process.name] += process.ticks - (earlier.ticks if earlier else 0)
    return next((name for name, ticks in used.most_common(1) if ticks > 0), None)
