"""The conditions of a measurement, and the command that repeats it."""

from slipstream.hardware import Host
from slipstream.measuring.bench import Conditions
from slipstream.planning.plan import LaunchPlan
from slipstream.reporting.pages.report import Row, Section, Table
from slipstream.reporting.text.host import render_host
from slipstream.reporting.text.plan import render_command
from slipstream.units import UNKNOWN, show_bytes

_CACHE = {
    "cold": "cold: no request finds the prefix of another",
    "as it is": "as it is: a request may find the prefix of another",
}
_TASK_CACHE = {
    "cold": "cold for each task: its turns find only its own earlier ones",
    "as it is": "as it is: a task may find the prefix of another",
}
_TOOL_CHOICE = {
    "auto": "the target chooses, as for an agent",
    "named": "each call is asked for by its tool's name",
    "none": "none asked for: the server does not parse them",
}
THINKING = {None: "as the template has it", True: "on", False: "off"}


def describe_conditions(conditions: Conditions, *more: Row) -> list[Section]:
    """Return the conditions as facts, the command, and the machine in full."""
    facts: list[Row] = [
        ("taken", f"{conditions.at:%Y-%m-%d %H:%M:%S %Z}"),
        ("model", conditions.model),
        ("versions", ", ".join(map(" ".join, conditions.versions.items())) or UNKNOWN),
        ("machine", describe_machine(conditions.host)),
        ("workload", f"{conditions.workload}, sha256 {conditions.workload_sha256}"),
        *(("left out", f"{name}: {why}") for name, why in conditions.left_out.items()),
        ("answers", f"{_describe_length(conditions)}, thinking {THINKING[conditions.thinking]}"),
        ("seed", str(conditions.seed)),
        *_describe_cache(conditions),
        *more,
    ]
    sections = [
        Section("conditions", Table((), facts, words=(0, 1))),
        Section("the command that makes it again", code=conditions.command),
    ]
    if conditions.host is not None:
        sections.append(Section("machine", code=render_host(conditions.host), in_full=True))
    return sections


def describe_plan(title: str, plan: LaunchPlan) -> Section:
    """Return the engine's command line under a plan."""
    return Section(title, code=render_command(plan.argv(), plan.variables), in_full=True)


def describe_machine(host: Host | None) -> str:
    """Return a machine in one line."""
    if host is None:
        return UNKNOWN
    names = [accelerator.name for accelerator in host.accelerators]
    parts = [host.product, *names, host.processor.model, show_bytes(host.memory.total_bytes)]
    return ", ".join(dict.fromkeys(part for part in parts if part))


def _describe_cache(conditions: Conditions) -> list[Row]:
    if conditions.tool_choice is None:
        return [("prefix cache", _CACHE[conditions.prefix_cache])]
    return [
        ("prefix cache", _TASK_CACHE[conditions.prefix_cache]),
        ("tool calls", _TOOL_CHOICE[conditions.tool_choice]),
    ]


def _describe_length(conditions: Conditions) -> str:
    if conditions.max_tokens is None:
        return "as long as the workload has them"
    return f"at most {conditions.max_tokens} tokens"
