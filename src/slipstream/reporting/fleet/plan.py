"""A fleet as text: what was seen of it, its plan, and its rules for a firewall."""

from collections.abc import Callable, Iterable

from slipstream.fleet.plan import FleetPlan, FleetProbe, GroupPlan, Link, MachineView, PortRule
from slipstream.fleet.planning.topology import render_firewall
from slipstream.hardware import name_kind
from slipstream.planning.plan import Decision
from slipstream.reporting.report import Table, align, align_table, show, tabulate
from slipstream.reporting.text.model import render_faults
from slipstream.reporting.text.plan import render_command, tabulate_decisions
from slipstream.units import UNKNOWN


def render_probe(probe: FleetProbe) -> str:
    """Show every machine and every measured link."""
    parts = [_list_machines(probe.machines.items()), _list_links(probe.links)]
    parts.append(render_faults(probe.faults))
    return "\n\n".join("\n".join(part) for part in parts if part)


def render_fleet_plan(plan: FleetPlan, *, explain: bool, firewall: bool) -> str:
    """Show the plan of a fleet; ranks of a group differ in few settings, which are listed."""
    parts = [
        [f"fleet {plan.fleet.name}: {plan.fleet.model.target}"],
        _list_machines(plan.machines.items()),
        _list_links(plan.links),
        *(_describe_group(group, explain=explain) for group in plan.groups),
        _describe_balancer(plan),
        _list_ports(plan.ports),
        *(_show_firewall(plan) if firewall else []),
        render_faults(plan.faults),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _list_machines(machines: Iterable[tuple[str, MachineView]]) -> list[str]:
    header = ("machine", "kind", "address", "engine", "slipstream", "clock")
    rows = []
    for name, view in machines:
        offset = view.clock_offset_seconds
        rows.append(
            (
                name,
                f"{len(view.host.accelerators) or 1} x {name_kind(view.host) or UNKNOWN}",
                view.address or UNKNOWN,
                view.engine or "none",
                view.slipstream or "none",
                UNKNOWN if offset is None else f"{offset:+.2f} s",
            )
        )
    return align_table(Table(header, rows, words=range(6)))


def _list_links(links: Iterable[Link]) -> list[str]:
    def show_mtu(link: Link) -> str:
        one, other = link.mtu_a, link.mtu_b
        return f"{one or UNKNOWN}" if one == other else f"{one} and {other}"

    columns: dict[str, Callable[[Link], str]] = {
        "link": lambda one: f"{one.a} {one.b}",
        "interfaces": lambda one: f"{one.interface_a} {one.interface_b}",
        "kind": lambda one: one.kind,
        "gbit/s": lambda one: show(one.gigabits),
        "round trip": lambda one: show(one.round_trip_ms, 3, "ms"),
        "mtu": show_mtu,
    }
    return align_table(tabulate(links, columns, words=range(6)))


def _describe_group(group: GroupPlan, *, explain: bool) -> list[str]:
    first = group.ranks[0]
    machines = ", ".join(rank.machine for rank in group.ranks)
    host = first.plan.settings.host
    lines = [f"group {group.name} on {machines}, at {host.value if host else UNKNOWN}:{group.port}"]
    shared = [one for one in _list_decisions(group, 0) if _is_shared(group, one)]
    if explain:
        lines += align_table(tabulate_decisions(shared), indent="  ")
    else:
        variables = tuple(one for one in first.plan.variables if one in shared)
        command = render_command(first.plan.argv(), variables)
        lines += [f"  {line}" for line in command.splitlines()]
    for index, rank in enumerate(group.ranks if len(group.ranks) > 1 else ()):
        own = [one for one in _list_decisions(group, index) if not _is_shared(group, one)]
        rows = [
            (one.flag, one.value or "set", *((one.source, one.because) if explain else ()))
            for one in own
        ]
        lines += [f"  rank {rank.rank}, {rank.machine}", *align(rows, indent="    ")]
    return lines


def _list_decisions(group: GroupPlan, index: int) -> list[Decision]:
    plan = group.ranks[index].plan
    return [*plan.variables, *plan.decisions]


def _is_shared(group: GroupPlan, decision: Decision) -> bool:
    """Say whether every rank has a setting with the same value."""
    found = [rank.plan.find(decision.flag) for rank in group.ranks]
    return all(one is not None and one.value == decision.value for one in found)


def _describe_balancer(plan: FleetPlan) -> list[str]:
    if (balancer := plan.balancer) is None:
        return []
    where = f"{balancer.address or UNKNOWN}:{balancer.port}"
    behind = [
        f"  {one.group} at {one.address}:{one.port}, {'drafted' if one.speculation else 'plain'}"
        for one in balancer.groups
    ]
    return [f"load balancer on {balancer.machine}, at {where}, policy {balancer.policy}", *behind]


def _list_ports(ports: Iterable[PortRule]) -> list[str]:
    rows = [
        (
            rule.machine,
            f"{rule.port}{f'-{rule.last_port}' if rule.last_port else ''}/{rule.protocol}",
            rule.callers if isinstance(rule.callers, str) else ", ".join(rule.callers) or "itself",
            rule.why,
        )
        for rule in ports
    ]
    return align_table(Table(("machine", "port", "open to", "for"), rows, words=range(4)))


def _show_firewall(plan: FleetPlan) -> list[list[str]]:
    shown = []
    for machine in dict.fromkeys(rule.machine for rule in plan.ports):
        path = f"/etc/nftables.d/slipstream-{plan.fleet.name}.nft"
        head = f"# {machine}: as root, into {path}, then nft -f {path}"
        shown.append([head, render_firewall(plan, machine)])
    return shown
