"""The CPU from /proc/cpuinfo and system memory from /proc/meminfo.

Lists of CPUs are in the kernel's notation, such as `0-3,8`.
"""

import re
from collections.abc import Iterable

from slipstream.hardware.host import Memory, Processor

_CPU_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")

INTERESTING_X86 = {"avx2", "avx512f", "avx512bw", "avx512vl", "avx512_vnni", "avx512_bf16"}
INTERESTING_X86 |= {"avx512_fp16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8"}
INTERESTING_ARM = {"asimd", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16", "svei8mm"}

ARM_CORES = {
    # Arm's implementer code 0x41 with its part numbers, as its technical manuals list them.
    ("0x41", "0xd40"): "Neoverse-V1",
    ("0x41", "0xd4f"): "Neoverse-V2",
    ("0x41", "0xd83"): "Neoverse-V3AE",
    ("0x41", "0xd85"): "Cortex-X925",
    ("0x41", "0xd87"): "Cortex-A725",
}


def parse_cpuinfo(
    text: str,
    *,
    architecture: str,
    usable_threads: int | None,
    numa_nodes: int | None,
    usable_cpus: tuple[int, ...] | None = None,
    quota_cpus: float | None = None,
) -> Processor:
    """Read what the kernel says of the processors; ARM names only implementer and part."""
    blocks = [dict(_pairs(block)) for block in text.strip().split("\n\n") if block.strip()]
    processors = [block for block in blocks if "processor" in block]
    first = processors[0] if processors else {}
    features = set((first.get("flags") or first.get("Features") or "").split())
    return Processor(
        model=first.get("model name") or _name_arm(processors),
        architecture=architecture,
        cores=_count_cores(processors),
        usable_threads=usable_threads,
        numa_nodes=numa_nodes,
        features=tuple(sorted(features & (INTERESTING_X86 | INTERESTING_ARM))),
        usable_cpus=usable_cpus,
        quota_cpus=quota_cpus,
    )


def _pairs(block: str) -> list[tuple[str, str]]:
    lines = (line.partition(":") for line in block.splitlines() if ":" in line)
    return [(key.strip(), value.strip()) for key, _, value in lines]


def _count_cores(processors: list[dict[str, str]]) -> int | None:
    """Count distinct (package, core) pairs; ARM kernels list none, and have no hyper-threads."""
    pairs = {(block.get("physical id"), block.get("core id")) for block in processors}
    if any(None in pair for pair in pairs):
        return len(processors) or None
    return len(pairs) or None


def _name_arm(processors: list[dict[str, str]]) -> str | None:
    """Return the kinds of core on the chip, such as `10x Cortex-X925 + 10x Cortex-A725`."""
    kinds = [(block.get("CPU implementer"), block.get("CPU part")) for block in processors]
    if not kinds or None in kinds[0]:
        return None
    names = [ARM_CORES.get((str(maker), str(part)), f"{maker}:{part}") for maker, part in kinds]
    return " + ".join(f"{names.count(name)}x {name}" for name in dict.fromkeys(names))


def parse_cpu_list(text: str) -> tuple[int, ...] | None:
    """Read a list such as `0-3,8`; None if it is not one."""
    if not _CPU_LIST.fullmatch(text.strip()):
        return None
    ranges = (part.partition("-") for part in text.strip().split(","))
    return tuple(
        cpu for first, _, last in ranges for cpu in range(int(first), int(last or first) + 1)
    )


def show_cpu_list(cpus: Iterable[int]) -> str:
    """Write CPUs as ranges, in ascending order."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][-1] + 1:
            ranges[-1][1:] = [cpu]
        else:
            ranges.append([cpu])
    return ",".join("-".join(map(str, ends)) for ends in ranges)


def parse_meminfo(text: str, *, limit_bytes: int | None, left_bytes: int | None = None) -> Memory:
    """Read the kernel's figures, which it gives in KiB and calls kB.

    `left_bytes` is what a container has left of its limit.
    """
    found = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE)
    sizes = {key: int(kilobytes) * 1024 for key, kilobytes in found}
    available = [size for size in (sizes.get("MemAvailable"), left_bytes) if size is not None]
    return Memory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=min(available, default=None),
        swap_bytes=sizes.get("SwapTotal"),
        limit_bytes=limit_bytes,
    )
