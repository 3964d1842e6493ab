"""System memory from /proc/meminfo, and a container's limits."""

import re

from slipstream.hardware.host import Memory

# A cgroup of version 1 without a limit reports one just below 2**63.
_NO_LIMIT_BYTES = 1 << 60


def parse_meminfo(text: str, *, limit_bytes: int | None) -> Memory:
    """Read the kernel's figures, which it gives in KiB and calls kB."""
    kilobytes = {
        match["key"]: int(match["value"])
        for match in re.finditer(r"^(?P<key>\w+):\s+(?P<value>\d+) kB$", text, re.MULTILINE)
    }

    def in_bytes(key: str) -> int | None:
        return kilobytes[key] * 1024 if key in kilobytes else None

    return Memory(
        total_bytes=in_bytes("MemTotal"),
        available_bytes=in_bytes("MemAvailable"),
        swap_bytes=in_bytes("SwapTotal"),
        limit_bytes=limit_bytes,
    )


def parse_cgroup_limit(text: str | None) -> int | None:
    """Read memory.max (version 2) or memory.limit_in_bytes (version 1); None is no limit."""
    if text is None or not text.strip().isdigit():
        return None
    limit = int(text)
    return None if limit >= _NO_LIMIT_BYTES else limit
