"""Limits of containers and services, in both versions of the kernel's cgroups."""

from pathlib import Path

import pytest

from slipstream.hardware.cgroup import (
    CgroupLimits,
    count_oom_kills,
    parse_limit,
    parse_quota,
    read_cgroup,
)

GIB = 1 << 30
STAT = f"anon 5\nfile {3 * GIB}\ninactive_file {GIB}\nactive_file {GIB}\nshmem {GIB}\n"
OLDER = f"active_file 1\ninactive_file 1\ntotal_active_file {GIB}\ntotal_inactive_file {GIB}\n"
USED = {"memory.max": str(8 * GIB), "memory.current": str(7 * GIB), "memory.stat": STAT}


def lay_out(root: Path, files: dict[str, str], membership: str = "0::/\n") -> Path:
    for name, text in {"proc/self/cgroup": membership, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def under(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"sys/fs/cgroup/{folder}{name}": text for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "membership", "limits"),
    [
        ({}, "0::/\n", CgroupLimits(None, None, None)),
        (under("", {"memory.max": "max\n", "cpu.max": "max 100000\n"}), "0::/\n", None),
        (under("", {"cpu.max": "200000 100000\n"}), "0::/\n", CgroupLimits(None, None, 2.0)),
        # Two GiB of the seven in use are pages of files.
        (under("", USED), "0::/\n", CgroupLimits(8 * GIB, 3 * GIB, None)),
        # The tightest of a service's cgroup and those above it counts.
        (
            {
                **under("a.slice/", {"cpu.max": "150000 100000", "memory.max": str(4 * GIB)}),
                **under("a.slice/b.service/", {"cpu.max": "800000 100000", "memory.max": "max"}),
            },
            "0::/a.slice/b.service\n",
            CgroupLimits(4 * GIB, None, 1.5),
        ),
        # What is named is not mounted here: the tree begins at the container's own cgroup.
        (under("", USED), "0::/../kubepods/pod1\n", CgroupLimits(8 * GIB, 3 * GIB, None)),
        (
            {
                **under("memory/", {"memory.limit_in_bytes": str(8 * GIB), "memory.stat": OLDER}),
                **under("memory/", {"memory.usage_in_bytes": str(7 * GIB)}),
                **under("cpu/", {"cpu.cfs_quota_us": "50000\n", "cpu.cfs_period_us": "100000\n"}),
            },
            "4:memory:/docker/3f\n3:cpu,cpuacct:/docker/3f\n",
            CgroupLimits(8 * GIB, 3 * GIB, 0.5),
        ),
        (
            under("cpu/", {"cpu.cfs_quota_us": "-1\n", "cpu.cfs_period_us": "100000\n"}),
            "3:cpu,cpuacct:/\n",
            None,
        ),
    ],
)
def test_the_tightest_limits_are_read(
    files: dict[str, str], membership: str, limits: CgroupLimits | None, tmp_path: Path
) -> None:
    found = read_cgroup(lay_out(tmp_path, files, membership))
    assert found == (limits or CgroupLimits(None, None, None))


EVENTS = "low 0\nhigh 0\nmax 9\noom 4\noom_kill 3\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("files", "membership", "kills"),
    [
        ({}, "0::/\n", 0),
        (under("", {"memory.events": EVENTS}), "0::/\n", 3),
        # Of its own cgroup, and not of what lies beside it.
        (
            {
                **under("a.slice/", {"memory.events": EVENTS}),
                **under("a.slice/b.service/", {"memory.events": "oom_kill 1\n"}),
            },
            "0::/a.slice/b.service\n",
            1,
        ),
        (
            under("memory/a/", {"memory.oom_control": "oom_kill_disable 0\noom_kill 2\n"}),
            "4:memory:/a\n0::/\n",
            2,
        ),
    ],
)
def test_what_the_kernel_killed_for_memory_is_counted(
    files: dict[str, str], membership: str, kills: int, tmp_path: Path
) -> None:
    assert count_oom_kills(lay_out(tmp_path, files, membership)) == kills


@pytest.mark.parametrize(
    ("text", "limit"),
    [("4294967296\n", 4 * GIB), ("max\n", None), ("9223372036854771712\n", None), (None, None)],
)
def test_a_limit_is_read_from_both_versions(text: str | None, limit: int | None) -> None:
    assert parse_limit(text) == limit


@pytest.mark.parametrize("text", [None, "", "max 100000", "-1 100000", "100000 0", "100000"])
def test_what_is_no_quota_is_none(text: str | None) -> None:
    assert parse_quota(text) is None
