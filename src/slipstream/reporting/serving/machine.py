"""Other use of a machine while it was measured, as a line or a table."""

from collections.abc import Sequence

from slipstream.hardware.machine_watch import MachineLoad
from slipstream.reporting.pages.report import Section, Table
from slipstream.units import UNKNOWN


def show_machine_load(load: MachineLoad | None) -> str:
    """Return in one line whether the machine was quiet."""
    if load is None:
        return "not watched"
    if load.is_busy:
        return f"busy: {load.describe()}"
    return f"quiet: other processes used {_show_cores(load)} cores"


def describe_machine_loads(loads: Sequence[tuple[str, MachineLoad | None]]) -> list[Section]:
    """Return the load of each part as a table; on the terminal only if one was disturbed."""
    if all(load is None for _, load in loads):
        return []
    header = ("measured", "other processes", "hypervisor", "slowdown", "busiest other", "")
    rows = [
        (name, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, "")
        if load is None
        else (
            name,
            f"{_show_cores(load)} cores",
            f"{load.steal_share:.0%}",
            f"{load.slowdown:.2f}",
            load.busiest or "none",
            "busy" if load.is_busy else "quiet",
        )
        for name, load in loads
    ]
    quiet = not any(load is not None and load.is_busy for _, load in loads)
    title = "what else the machine did"
    return [Section(title, Table(header, rows, words=(0, 4, 5)), in_full=quiet)]


def _show_cores(load: MachineLoad) -> str:
    return f"{load.other_cpu_share * load.cores:.2f} of {load.cores}"
