"""A whole machine is portrayed through its surface, and the description round-trips."""

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from slipstream.hardware import Host, ProbeSources, read_host, this_machine
from slipstream.hardware.probe import run_program
from tests.unit.hardware.fake_nvml import GB10, FakeNvml

NOW = datetime(2026, 11, 15, tzinfo=UTC)


def make_spark(root: Path) -> ProbeSources:
    files = {
        "proc/cpuinfo": "processor\t: 0\nFeatures\t: asimd\nCPU implementer\t: 0x41\n"
        "CPU part\t: 0xd85\n",
        "proc/meminfo": "MemTotal: 127600748 kB\nMemAvailable: 118566368 kB\n",
        "proc/1/cgroup": "0::/init.scope\n",
        "sys/devices/system/node/online": "0\n",
        "sys/fs/cgroup/memory.max": "max\n",
        "etc/os-release": 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\n',
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return ProbeSources(
        environment={"HOME": str(root)},
        now=NOW,
        root=root,
        prefix=root / "venv",
        system="linux",
        architecture="aarch64",
        kernel="6.17.0",
        usable_threads=20,
        nvml=FakeNvml([GB10]),
        run=lambda _: None,
    )


def test_a_spark_shares_its_memory_with_its_accelerator(tmp_path: Path) -> None:
    host = read_host(make_spark(tmp_path))
    (accelerator,) = host.accelerators
    assert accelerator.memory_kind == "unified"
    assert accelerator.memory_available_bytes == host.memory.available_bytes
    assert host.memory.available_bytes == 118566368 * 1024
    assert host.memory.limit_bytes is None
    assert host.software.system == "Ubuntu 24.04.3 LTS"
    assert host.container == "none"
    assert host.taken_at == NOW


def test_the_cpus_of_a_cpuset_are_listed(tmp_path: Path) -> None:
    surface = replace(make_spark(tmp_path), usable_threads=8, usable_cpus=tuple(range(8, 16)))
    assert read_host(surface).processor.cpus == tuple(range(8, 16))
    unlisted = replace(surface, usable_cpus=None)
    assert read_host(unlisted).processor.cpus == tuple(range(8))


def test_a_limit_of_the_older_cgroup_is_found_too(tmp_path: Path) -> None:
    surface = make_spark(tmp_path)
    (tmp_path / "sys/fs/cgroup/memory.max").unlink()
    older = tmp_path / "sys/fs/cgroup/memory/memory.limit_in_bytes"
    older.parent.mkdir()
    older.write_text("1073741824\n")
    assert read_host(surface).memory.limit_bytes == 1 << 30


def test_a_containers_quota_and_use_are_read(tmp_path: Path) -> None:
    surface = make_spark(tmp_path)
    folder = tmp_path / "sys/fs/cgroup"
    for name, text in {
        "cpu.max": "250000 100000\n",
        "memory.max": f"{8 << 30}\n",
        "memory.current": f"{7 << 30}\n",
        "memory.stat": f"inactive_file {1 << 30}\n",
    }.items():
        (folder / name).write_text(text)
    host = read_host(surface)
    assert host.processor.quota_cpus == 2.5
    assert host.processor.cpus == (0, 1)
    assert (host.memory.limit_bytes, host.memory.available_bytes) == (8 << 30, 2 << 30)


@pytest.mark.parametrize(("marked", "name"), [(False, "py?[2J"), (True, None)])
def test_a_process_on_the_gpu_is_named_unless_its_id_may_be_of_another_namespace(
    marked: bool, name: str | None, tmp_path: Path
) -> None:
    surface = make_spark(tmp_path)
    (tmp_path / "proc/4711").mkdir()
    (tmp_path / "proc/4711/comm").write_text("py\x1b[2J\n")
    if marked:
        (tmp_path / ".dockerenv").touch()
    process = SimpleNamespace(pid=4711, usedGpuMemory=29 << 30)
    nvml = FakeNvml([GB10 | {"ComputeRunningProcesses": [process]}])
    (user,) = read_host(replace(surface, nvml=nvml)).accelerators[0].users
    assert (user.pid, user.name, user.size_bytes) == (4711, name, 29 << 30)


def test_an_unread_accelerator_is_remarked_on_and_intels_openmp_found(tmp_path: Path) -> None:
    surface = replace(make_spark(tmp_path), nvml=FakeNvml([]))
    host = read_host(surface)
    assert (host.remarks, host.software.openmp_library) == ((), None)
    library = surface.prefix / "lib" / "libiomp5.so"
    for file in (tmp_path / "dev" / "kfd", library):
        file.parent.mkdir(parents=True)
        file.touch()
    host = read_host(surface)
    assert host.unread_gpu
    assert "AMD" in host.remarks[0]
    assert host.software.openmp_library == str(library)


@pytest.mark.parametrize(("system", "name"), [("darwin", "darwin"), ("plan9", "other")])
def test_another_system_is_named_and_little_of_it_known(
    system: str, name: str, tmp_path: Path
) -> None:
    surface = replace(make_spark(tmp_path / "unused"), root=tmp_path / "bare", nvml=FakeNvml([]))
    host = read_host(replace(surface, system=system))
    assert (host.platform, host.processor.model, host.memory.total_bytes) == (name, None, None)
    assert (host.container, host.accelerators) == (None, ())


def test_this_very_machine_round_trips(tmp_path: Path) -> None:
    host = read_host(this_machine({"HOME": str(tmp_path)}, NOW))
    assert Host.model_validate_json(host.to_json()) == host
    assert host.software.python == ".".join(map(str, sys.version_info[:3]))
    assert host.memory.total_bytes is not None
    assert host.processor.usable_cpus == tuple(sorted(os.sched_getaffinity(0)))


def test_a_program_that_is_missing_or_fails_gives_nothing() -> None:
    assert run_program(("no-such-program",)) is None
    assert run_program((sys.executable, "-c", "raise SystemExit(1)")) is None
    assert run_program((sys.executable, "-c", "print('hello')")) == "hello\n"
