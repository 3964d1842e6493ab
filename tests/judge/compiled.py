"""What compile_kernels.py says of the kernels that it compiled."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from slipstream.records import Record


class Kernel(Record):
    """A kernel for one architecture, with the first case that launches it so."""

    capability: str
    case: str
    kernel: str
    # Why it does not compile, or needs more than a thread block may have.
    fault: str | None = None
    warps: int | None = None
    stages: int | None = None
    # Bytes of a thread block, and of a thread: what did not fit into its registers.
    shared: int | None = None
    stack: int | None = None
    registers: int | None = None
    seconds: float = 0


def read_kernels(file: Path) -> list[Kernel]:
    return [Kernel.model_validate_json(line) for line in file.read_text().splitlines()]


def summarize_kernels(kernels: Iterable[Kernel]) -> Iterator[str]:
    """Say for every architecture what was compiled, and every fault."""
    by_capability: dict[str, list[Kernel]] = defaultdict(list)
    for one in kernels:
        by_capability[one.capability].append(one)
    for capability, found in by_capability.items():
        good = sum(one.fault is None for one in found)
        most = max(found, key=lambda one: one.shared or 0)
        spilled = sum(bool(one.stack) for one in found)
        yield (
            f"{capability}: {good} of {len(found)} kernels compile and fit, with at most "
            f"{most.shared} bytes of shared memory ({most.case}); {spilled} spill registers; "
            f"{sum(one.seconds for one in found):.0f} s"
        )
        for one in found:
            if one.fault is not None:
                yield f"{capability}: {one.case}: {one.kernel}: {one.fault}"
