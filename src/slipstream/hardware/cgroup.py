"""What a container or a service may use, by its cgroup and those above it, and what it was denied.

Version 2 has all controllers in one tree, version 1 a tree each. Inside a container the tree
usually begins at its own cgroup.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slipstream.hardware.surroundings import read_text

# A cgroup of version 1 without a limit reports one just below 2**63.
_NO_LIMIT_BYTES = 1 << 60
# Pages of files are given up when memory is needed; version 1 counts children under "total_".
_RECLAIMABLE = re.compile(r"^(?:total_)?(?:active|inactive)_file (\d+)$", re.MULTILINE)

_OOM_KILLS = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """The tightest limits; None is no limit."""

    memory_bytes: int | None
    memory_left_bytes: int | None
    cpus: float | None


def read_cgroup(root: Path) -> CgroupLimits:
    limits, left, quotas = [], [], []
    for folder in _list_folders(root, ""):
        limits.append(parse_limit(read_text(folder / "memory.max")))
        left.append(_read_left(folder, limits[-1], "memory.current"))
        quotas.append(parse_quota(read_text(folder / "cpu.max")))
    for folder in _list_folders(root, "memory"):
        limits.append(parse_limit(read_text(folder / "memory.limit_in_bytes")))
        left.append(_read_left(folder, limits[-1], "memory.usage_in_bytes"))
    for folder in _list_folders(root, "cpu"):
        parts = (read_text(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
        quotas.append(parse_quota(" ".join(parts)))
    return CgroupLimits(
        memory_bytes=min((limit for limit in limits if limit is not None), default=None),
        memory_left_bytes=min((size for size in left if size is not None), default=None),
        cpus=min((quota for quota in quotas if quota is not None), default=None),
    )


def count_oom_kills(root: Path) -> int:
    """Count what the kernel killed in this cgroup because memory ran out, as far as it says."""
    for controller, name in (("", "memory.events"), ("memory", "memory.oom_control")):
        for folder in _list_folders(root, controller):
            if found := _OOM_KILLS.search(read_text(folder / name) or ""):
                return int(found[1])
    return 0


def _list_folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the cgroup of this process and those above it, as far as they are mounted."""
    mounted = root / "sys/fs/cgroup" / controller
    listed = read_text(root / "proc/self/cgroup") or ""
    named = rf"^\d+:{rf'(?:[^:]*,)?{controller}(?:,[^:]*)?' if controller else ''}:/(.*)$"
    found = re.search(named, listed, re.MULTILINE)
    below = Path(found[1]) if found and ".." not in found[1] else Path()
    yield from dict.fromkeys((mounted / below, *(mounted / one for one in below.parents), mounted))


def parse_limit(text: str | None) -> int | None:
    """Read memory.max (version 2) or memory.limit_in_bytes (version 1); None is no limit."""
    if text is None or not text.strip().isdigit():
        return None
    limit = int(text)
    return None if limit >= _NO_LIMIT_BYTES else limit


def parse_quota(text: str | None) -> float | None:
    """Read a quota and its period in microseconds as CPUs; `max` and -1 are no limit."""
    match = re.fullmatch(r"(\d+)\s+(\d+)\s*", (text or "").strip())
    return int(match[1]) / int(match[2]) if match and int(match[2]) else None


def _read_left(folder: Path, limit: int | None, name: str) -> int | None:
    """Return what is left below a limit, counting pages of files as free."""
    used = (read_text(folder / name) or "").strip()
    if limit is None or not used.isdigit():
        return None
    sizes = _RECLAIMABLE.findall(_choose_totals(read_text(folder / "memory.stat") or ""))
    return max(0, limit - max(0, int(used) - sum(map(int, sizes))))


def _choose_totals(text: str) -> str:
    """Return the lines that count children, where version 1 lists both."""
    totals = [line for line in text.splitlines() if line.startswith("total_")]
    return "\n".join(totals) or text
