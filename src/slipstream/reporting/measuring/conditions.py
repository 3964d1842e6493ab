"""The conditions of a measurement, the command that repeats it, and what else the machine did."""

from collections import Counter
from collections.abc import Sequence

from slipstream.hardware import Host
from slipstream.measuring.bench import Conditions
from slipstream.measuring.machine_watch import MachineLoad
from slipstream.planning.plan import LaunchPlan
from slipstream.reporting.report import Row, Section, Table
from slipstream.reporting.text.host import render_host
from slipstream.reporting.text.plan import render_command
from slipstream.units import UNKNOWN, show_bytes

_CACHE = {
    "cold": "cold: no request uses the prefix of another",
    "shared": "shared: a request may use the prefix of another",
}
_TASK_CACHE = {
    "cold": "cold for each task: its turns use only its own earlier ones",
    "shared": "shared: a task may use the prefix of another",
}
_TOOL_CHOICE = {
    "auto": "the target chooses, as for an agent",
    "named": "each call is requested by its tool's name",
    "none": "none requested: the server does not parse them",
}
THINKING = {None: "as the chat template sets it", True: "on", False: "off"}


def describe_conditions(conditions: Conditions, *more: Row) -> list[Section]:
    """Return the conditions as facts, the command, and the machine in full."""
    tools, most = conditions.tool_choice, conditions.max_tokens
    length = "as the workload sets them" if most is None else f"at most {most} tokens"
    facts: list[Row] = [
        ("date", f"{conditions.at:%Y-%m-%d %H:%M:%S %Z}"),
        ("model", conditions.model),
        ("versions", ", ".join(map(" ".join, conditions.versions.items())) or UNKNOWN),
        ("machine", _describe_machine(conditions.host)),
        ("workload", f"{conditions.workload}, sha256 {conditions.workload_sha256}"),
        *(
            ("left out", f"{count}: {why}")
            for why, count in Counter(conditions.left_out.values()).items()
        ),
        ("answers", f"{length}, thinking {THINKING[conditions.thinking]}"),
        ("seed", str(conditions.seed)),
        ("prefix cache", (_CACHE if tools is None else _TASK_CACHE)[conditions.prefix_cache]),
        *([] if tools is None else [("tool calls", _TOOL_CHOICE[tools])]),
        *more,
    ]
    sections = [
        Section("conditions", Table((), facts, words=(0, 1))),
        Section("the command to repeat it", code=conditions.command),
    ]
    if conditions.host is not None:
        sections.append(Section("machine", code=render_host(conditions.host), in_full=True))
    return sections


def describe_plan(title: str, plan: LaunchPlan) -> Section:
    """Return the engine's command line under a plan."""
    return Section(title, code=render_command(plan.argv(), plan.variables), in_full=True)


def _describe_machine(host: Host | None) -> str:
    if host is None:
        return UNKNOWN
    names = [accelerator.name for accelerator in host.accelerators]
    parts = [host.product, *names, host.processor.model, show_bytes(host.memory.total_bytes)]
    return ", ".join(dict.fromkeys(part for part in parts if part))


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
        (name, *[UNKNOWN] * 4, "")
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
