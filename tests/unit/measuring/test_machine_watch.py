"""What others do on a machine while it is measured: from texts of /proc, and by a real process."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.hardware import load_host
from slipstream.measuring.machine_watch import (
    MOST_OTHER_SHARE,
    MOST_OTHER_SHARE_WITH_ACCELERATOR,
    MachineLoad,
    MachineWatch,
    find_cpus,
    make_watch,
    time_computation,
)

ROOT, ENGINE, STRANGER = 100, 300, 900


def write_cpus(proc: Path, *rows: tuple[int, int, int]) -> None:
    """Write each CPU's user, idle and steal ticks."""
    lines = [
        f"cpu{at} {user} 0 0 {idle} 0 0 0 {steal} 0 0"
        for at, (user, idle, steal) in enumerate(rows)
    ]
    proc.mkdir(exist_ok=True)
    (proc / "stat").write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "ctxt 5"]))


def write_process(
    proc: Path,
    pid: int,
    ticks: int,
    *,
    parent: int = 1,
    session: int = 1,
    reaped: int = 0,
    name: str = "python",
) -> None:
    rest = f"S {parent} {pid} {session} 0 -1 0 0 0 0 0 {ticks} 0 {reaped} 0 20 0 1 0 {pid + 7} 0 0"
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {rest}")


class Times:
    """A clock of five seconds a look, and a computation whose times are given."""

    def __init__(self, *computations: float) -> None:
        self.now, self.computations = 0.0, list(computations)

    def clock(self) -> float:
        self.now += 5
        return self.now

    def compute(self) -> float:
        return self.computations.pop(0) if self.computations else 0.01


def make(proc: Path, *computations: float, cpus: frozenset[int] | None = None) -> MachineWatch:
    times = Times(*computations)
    return MachineWatch(
        proc=proc,
        cpus=cpus,
        root=ROOT,
        compute=times.compute,
        clock=times.clock,
        wait=lambda _: None,
    )


def watch_until(
    watch: MachineWatch, proc: Path, *rows: tuple[int, int, int], sessions: tuple[int, ...] = ()
) -> MachineLoad:
    """Watch until each CPU has these ticks."""
    before = watch.begin()
    write_cpus(proc, *rows)
    found = watch.end(before, sessions)
    assert found is not None
    return found


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Lay out a machine of two CPUs: we, our child, an engine's session, a stranger."""
    proc = tmp_path / "proc"
    write_cpus(proc, (1000, 5000, 0), (1000, 5000, 0))
    write_process(proc, ROOT, 50, reaped=10)
    write_process(proc, 101, 20, parent=ROOT)
    write_process(proc, 301, 400, parent=ENGINE, session=ENGINE)
    write_process(proc, STRANGER, 70, name="ff (mpeg)")
    return proc


def test_what_we_and_the_engine_use_is_not_others(proc: Path) -> None:
    watch = make(proc)
    before = watch.begin()
    # 1000 ticks of two CPUs: 100 ours, 500 the engine's, 180 of somebody, the rest idle.
    write_cpus(proc, (1400, 5100, 0), (1380, 5120, 0))
    write_process(proc, ROOT, 70, reaped=60)
    (proc / "101" / "stat").unlink()
    write_process(proc, 102, 50, parent=ROOT)
    write_process(proc, 301, 900, parent=ENGINE, session=ENGINE)
    write_process(proc, STRANGER, 230, name="ff (mpeg)")
    found = watch.end(before, [ENGINE])
    assert found is not None
    assert (found.cores, found.seconds, found.busiest) == (2, 5, "ff (mpeg)")
    assert found.other_cpu_share == pytest.approx(180 / 1000)
    assert found.describe() == "other processes used 0.4 of 2 cores, most of it ff (mpeg)"
    unknown = watch.end(before)
    assert unknown is not None
    assert unknown.other_cpu_share == pytest.approx(680 / 1000)


def test_only_our_cpus_count(proc: Path) -> None:
    watch = make(proc, cpus=frozenset({1}))
    found = watch_until(watch, proc, (2000, 5000, 0), (1000, 6000, 0))
    assert (found.cores, found.other_cpu_share, found.is_busy) == (1, 0, False)


def test_a_hypervisor_that_takes_the_cores_is_named(proc: Path) -> None:
    found = watch_until(make(proc), proc, (1000, 5400, 100), (1000, 5500, 0))
    assert found.describe() == "the hypervisor took 10% of the cores' time"


def test_a_slower_computation_finds_what_proc_does_not_show(proc: Path) -> None:
    watch = make(proc, 0.01, 0.03, 0.012, 0.011)
    slow = watch_until(watch, proc, (1000, 5500, 0), (1000, 5500, 0))
    assert slow.describe() == "a fixed computation took 3.0 times its usual time"
    assert not watch_until(watch, proc, (1000, 5500, 0), (1000, 5500, 0)).is_busy


def test_a_moment_is_too_short_to_say_anything() -> None:
    load = MachineLoad(cores=2, seconds=0.1, other_cpu_share=0.5, steal_share=0, slowdown=1)
    assert not load.is_busy


def test_a_machine_that_cannot_be_watched_is_not_called_quiet(tmp_path: Path) -> None:
    watch = make(tmp_path / "nothing")
    assert watch.begin() is None
    assert watch.end(watch.begin()) is None


@pytest.mark.parametrize(("busy_rounds", "quiet"), [(1, True), (9, False)])
def test_quiet_is_waited_for_and_given_up(proc: Path, busy_rounds: int, quiet: bool) -> None:
    user, idle = 1000, 5000
    rounds = 0

    def pass_time(_: float) -> None:
        nonlocal user, idle, rounds
        rounds += 1
        if rounds <= busy_rounds:
            user += 500
        else:
            idle += 500
        write_cpus(proc, (user, idle, 0), (1000, 5000 + 500 * rounds, 0))

    watch = make(proc)
    watch.wait = pass_time
    assert watch.wait_until_quiet(30) is quiet
    assert rounds == 2


def test_beside_an_accelerator_others_may_use_more() -> None:
    assert make_watch(load_host("gb10")).most_other_share == MOST_OTHER_SHARE_WITH_ACCELERATOR
    assert make_watch(load_host("cpu-server")).most_other_share == MOST_OTHER_SHARE
    assert make_watch(None).most_other_share == MOST_OTHER_SHARE


def read_cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="reads /proc")
def test_a_real_stranger_is_seen_and_a_real_child_is_not() -> None:
    spin = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
    cpus = find_cpus()
    with subprocess.Popen([sys.executable, "-c", spin]) as child:
        try:
            # To a watch that belongs to nobody here, the child is a stranger.
            stranger, own = MachineWatch(root=-1), MachineWatch()
            before_stranger, before_own = stranger.begin(), own.begin()
            began, used = time.monotonic(), read_cpu_seconds(child.pid)
            while read_cpu_seconds(child.pid) < used + 0.8:
                time.sleep(0.1)
            seen, unseen = stranger.end(before_stranger), own.end(before_own)
            share = (read_cpu_seconds(child.pid) - used) / (time.monotonic() - began)
        finally:
            child.kill()
    assert seen is not None
    assert unseen is not None
    assert seen.cores == len(cpus or ())
    # Beside others the child gets a part of a core, and each reading is good to a few ticks.
    assert seen.other_cpu_share * seen.cores - unseen.other_cpu_share * unseen.cores > share / 2
    assert 0 < time_computation() < 5
    assert os.getpid() == own.root


def test_a_process_cannot_write_to_the_terminal_by_its_name(proc: Path) -> None:
    watch = make(proc)
    write_process(proc, STRANGER, 0, name="evil\x1b[2J")
    before = watch.begin()
    write_process(proc, STRANGER, 500, name="evil\x1b[2J")
    found = watch.end(before)
    assert found is not None
    assert found.busiest == "evil?[2J"
