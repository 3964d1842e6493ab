"""Lists of CPUs in the kernel's notation, such as `0-3,8`."""

import re
from collections.abc import Iterable

_LIST = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def parse_cpu_list(text: str) -> tuple[int, ...] | None:
    """Read a list such as `0-3,8`; None if it is not one."""
    if not _LIST.fullmatch(text.strip()):
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
