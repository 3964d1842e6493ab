"""Ports of a fleet and who may reach them, and the same as rules of a firewall.

Ranks of one engine open sockets at ports that the kernel chooses (Gloo, NCCL, vLLM's queues), and
none of them asks for a key: that range is for the members alone.
"""

from collections.abc import Iterator
from typing import Literal

from slipstream.fleet.plan import BalancerPlan, FleetPlan, GroupPlan, PortRule
from slipstream.fleet.planning.topology import GroupNetwork
from slipstream.fleet.record import Fleet
from slipstream.planning.spreading import MASTER_PORT, WATCH_PORT

ROCE_PORT = 4791
EPHEMERAL = (32768, 60999)


def list_group_ports(
    fleet: Fleet,
    group: GroupPlan,
    network: GroupNetwork | None,
    ephemeral: dict[str, tuple[int, int]],
) -> Iterator[PortRule]:
    """List what a group's machines open, to whom."""
    members = [rank.machine for rank in group.ranks]
    head = members[0]
    yield PortRule(
        machine=head,
        port=group.port,
        protocol="tcp",
        who=_find_callers(fleet, head),
        why="the gate, which asks for a key",
    )
    for machine in members if len(members) > 1 else ():
        first, last = ephemeral.get(machine, EPHEMERAL)
        opened: list[tuple[int, int | None, Literal["tcp", "udp"], str]] = [
            (WATCH_PORT, None, "udp", "supervisors' reports on their ranks, which are signed"),
            (first, last, "tcp", "Gloo, NCCL and vLLM's queues, at ports that the kernel chooses"),
        ]
        if machine == head:
            why = "where ranks find each other; it asks nobody who they are"
            opened.insert(0, (MASTER_PORT, None, "tcp", why))
        if network is not None and network.shape != "tcp":
            opened.append((ROCE_PORT, None, "udp", "RoCE v2"))
        others = tuple(name for name in members if name != machine)
        for port, last_port, protocol, why in opened:
            yield PortRule(
                machine=machine,
                port=port,
                last_port=last_port,
                protocol=protocol,
                who=others,
                why=why,
            )


def _find_callers(fleet: Fleet, head: str) -> tuple[str, ...] | Literal["clients"]:
    """Say who may ask a group: the load balancer if there is one; without keys nobody else."""
    if fleet.keys is None:
        return ()
    if fleet.balancer is None:
        return "clients"
    return () if fleet.balancer.machine == head else (fleet.balancer.machine,)


def list_balancer_ports(balancer: BalancerPlan | None) -> Iterator[PortRule]:
    """List what the load balancer's machine opens."""
    if balancer is not None:
        machine, port, why = balancer.machine, balancer.port, "the one address of the fleet"
        yield PortRule(machine=machine, port=port, protocol="tcp", who="clients", why=why)


def render_firewall(plan: FleetPlan, machine: str) -> str:
    """Write a machine's rules for nftables: others than those planned are dropped at these ports.

    Other ports are left as they are, and so are connections that this machine opened.
    """
    rules = [rule for rule in plan.ports if rule.machine == machine]
    table = f"slipstream_{plan.fleet.name}".replace("-", "_").replace(".", "_")
    lines = [
        f"table inet {table}",
        f"delete table inet {table}",
        f"table inet {table} {{",
        "  chain input {",
        "    type filter hook input priority 0; policy accept;",
        '    iif "lo" accept',
        "    ct state established,related accept",
    ]
    for rule in rules:
        port = f"{rule.port}-{rule.last_port}" if rule.last_port else str(rule.port)
        match = f"{rule.protocol} dport {port}"
        if rule.who == "clients":
            lines.append(f"    {match} accept")
            continue
        lines += [f"    {family} {match} accept" for family in _list_sources(plan, rule.who)]
        lines.append(f"    {match} drop")
    return "\n".join([*lines, "  }", "}"])


def _list_sources(plan: FleetPlan, machines: tuple[str, ...]) -> list[str]:
    """Return matches on the addresses from which these machines come."""
    known = sorted(address for name in machines for address in plan.list_addresses(name))
    by_family = {
        "ip saddr": [address for address in known if ":" not in address],
        "ip6 saddr": [address for address in known if ":" in address],
    }
    return [f"{match} {{ {', '.join(some)} }}" for match, some in by_family.items() if some]
