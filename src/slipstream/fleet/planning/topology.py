"""Which measured links a group's ranks use, the variables that say so, and the ports to open.

Sockets (Gloo, NCCL's bootstrap, vLLM's queues) need one interface per machine over which every
other member is reached. RDMA needs less: in a ring of cables each machine reaches its neighbours
only, and NCCL is told so. Sources of the variables: vLLM 0.32 for its own; NCCL's documentation;
what eugr's and sparkrun's scripts set for linked DGX Sparks (docs/fleet.md compares them).

Ranks open sockets at ports that the kernel chooses (Gloo, NCCL, vLLM's queues), and none of them
asks for a key: that range is for the members alone.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_interface
from itertools import combinations
from typing import Any, Literal

from slipstream.fleet.plan import FleetPlan, GroupPlan, Interface, Link, MachineView, PortRule
from slipstream.fleet.record import Fleet
from slipstream.planning.settings import Choice
from slipstream.planning.spreading import MASTER_PORT, WATCH_PORT

Shape = Literal["direct", "switched", "ring", "tcp"]
RING_ALGORITHM_FROM = 4
_RING = {
    "NCCL_NET_PLUGIN": ("none", "NCCL's own RDMA code handles subnets, a plug-in may not"),
    "NCCL_IB_SUBNET_AWARE_ROUTING": ("1", "each cable is a subnet of its own, without a switch"),
    "NCCL_IB_MERGE_NICS": ("0", "the ports of a machine lead to different machines"),
}


@dataclass(frozen=True, slots=True)
class GroupNetwork:
    """The interface and address of each member, and its RDMA devices if there are any."""

    shape: Shape
    links: tuple[Link, ...]
    interfaces: Mapping[str, Interface]
    addresses: Mapping[str, str]
    devices: Mapping[str, tuple[Interface, ...]] = field(default_factory=dict)

    @property
    def slowest_gigabits(self) -> float | None:
        known = [link.gigabits for link in self.links if link.gigabits is not None]
        return min(known, default=None)


def find_network(
    members: tuple[str, ...], views: Mapping[str, MachineView], links: tuple[Link, ...]
) -> GroupNetwork | None:
    """Choose the links of a group; None if no network has a link between every two members."""
    own = [link for link in links if {link.a, link.b} <= {*members}]
    complete = _find_complete(members, views, own)
    if not complete:
        return None
    complete.sort(key=_rank)
    sockets = complete[0]
    ends = {link.a: (link.interface_a, link.address_a) for link in reversed(sockets)}
    ends |= {link.b: (link.interface_b, link.address_b) for link in reversed(sockets)}
    rails = [network for network in complete if all(link.kind == "roce" for link in network)]
    cables = [link for link in own if link.kind == "roce"]
    shape: Shape = "tcp"
    used = tuple(sockets)
    if rails:
        shape = "direct" if len(members) == 2 else "switched"
        used = tuple(link for network in rails for link in network)
    elif is_ring(members, cables):
        shape, used = "ring", tuple(cables)
    return GroupNetwork(
        shape=shape,
        links=used,
        interfaces={name: find_interface(views[name], ends[name][0]) for name in members},
        addresses={name: ends[name][1] for name in members},
        devices={name: _find_devices(name, views[name], used) for name in members}
        if shape != "tcp"
        else {},
    )


def is_ring(members: tuple[str, ...], cables: list[Link]) -> bool:
    """Say whether every member is linked to the next, and the last to the first."""
    pairs = {frozenset((link.a, link.b)) for link in cables}
    around = zip(members, (*members[1:], members[0]), strict=True)
    return len(members) > 2 and all(frozenset(pair) in pairs for pair in around)


def order_ring(members: tuple[str, ...], cables: list[Link]) -> tuple[str, ...] | None:
    """Return the members in an order in which they are a ring, the first of them first."""
    pairs = {frozenset((link.a, link.b)) for link in cables}
    order = [members[0]]
    while len(order) < len(members):
        left = [name for name in members if name not in order]
        following = [name for name in left if frozenset((order[-1], name)) in pairs]
        if not following:
            return None
        order.append(following[0])
    return tuple(order) if is_ring(tuple(order), cables) else None


def find_interface(view: MachineView, name: str) -> Interface:
    return next(interface for interface in view.interfaces if interface.name == name)


def _find_complete(
    members: tuple[str, ...], views: Mapping[str, MachineView], links: list[Link]
) -> list[list[Link]]:
    networks: dict[str, list[Link]] = {}
    for link in links:
        networks.setdefault(_name_network(views[link.a], link), []).append(link)
    wanted = {frozenset(pair) for pair in combinations(members, 2)}
    return [
        network
        for network in networks.values()
        if {frozenset((link.a, link.b)) for link in network} == wanted
    ]


def _name_network(view: MachineView, link: Link) -> str:
    ends = [ip_interface(one) for one in find_interface(view, link.interface_a).addresses]
    own = next((end for end in ends if str(end.ip) == link.address_a), ip_interface(link.address_a))
    # A way between two networks is one by itself.
    return str(own.network) if ip_interface(link.address_b).ip in own.network else "routed"


def _rank(network: list[Link]) -> tuple[bool, float]:
    """Sort RDMA before TCP, then by what the slowest link carries."""
    slowest = min(link.gigabits or 0 for link in network)
    return not all(link.kind == "roce" for link in network), -slowest


def _find_devices(
    machine: str, view: MachineView, links: tuple[Link, ...]
) -> tuple[Interface, ...]:
    names = {link.interface_a for link in links if link.a == machine}
    names |= {link.interface_b for link in links if link.b == machine}
    return tuple(interface for interface in view.interfaces if interface.name in names)


def decide_lone_variables() -> dict[str, Choice[str]]:
    """Choose the variables of a group on one machine: its processes meet on loopback.

    vLLM would bind their sockets, which ask for no key, to the address of the default route.
    """
    why = "all its processes are on this machine, and no other may reach their sockets"
    return {
        "VLLM_HOST_IP": Choice("127.0.0.1", "hardware", why),
        "GLOO_SOCKET_IFNAME": Choice("lo", "hardware", why),
    }


def decide_variables(
    network: GroupNetwork, machine: str, *, accelerated: bool
) -> dict[str, Choice[str]]:
    """Choose NCCL's variables for a rank; vLLM's own and Gloo's are `planning.spreading`'s."""
    if not accelerated:
        return {}
    name = network.interfaces[machine].name
    why = "NCCL's bootstrap; = means the exact name, not a prefix"
    chosen = {"NCCL_SOCKET_IFNAME": Choice(f"={name}", "hardware", why)}
    if network.shape == "tcp":
        why = "no RDMA between all members was found, so NCCL must not try it"
        return chosen | {"NCCL_NET": Choice("Socket", "hardware", why)}
    return chosen | _decide_rdma(network, machine)


def _decide_rdma(network: GroupNetwork, machine: str) -> dict[str, Choice[str]]:
    devices = network.devices[machine]
    names = ",".join(device.rdma_device or "" for device in devices)
    chosen = {
        "NCCL_NET": Choice("IB", "hardware", "fail instead of silently falling back to TCP"),
        "NCCL_IB_HCA": Choice(
            f"={names}", "hardware", "the devices whose links were measured; others have no cable"
        ),
        "NCCL_IGNORE_CPU_AFFINITY": Choice(
            "1", "default", "NCCL's threads may use any core (eugr, sparkrun)"
        ),
    }
    if network.shape == "ring":
        chosen |= {name: Choice(value, "hardware", why) for name, (value, why) in _RING.items()}
        if len(network.interfaces) >= RING_ALGORITHM_FROM:
            chosen["NCCL_ALGO"] = Choice(
                "Ring",
                "hardware",
                "other algorithms connect machines that have no cable between them",
            )
        return chosen
    chosen["NCCL_CROSS_NIC"] = Choice(
        "1", "default", "both halves of a port lead to the same machine (sparkrun)"
    )
    indices = {device.gid_index for device in devices}
    if len(indices) == 1 and (index := indices.pop()) is not None:
        chosen["NCCL_IB_GID_INDEX"] = Choice(
            str(index), "hardware", "the RoCE v2 entry of these devices' IPv4 addresses"
        )
    return chosen


ROCE_PORT = 4791
EPHEMERAL = (32768, 60999)
Callers = tuple[str, ...] | Literal["clients"]


def list_ports(
    fleet: Fleet,
    group: GroupPlan,
    network: GroupNetwork | None,
    ephemeral: dict[str, tuple[int, int]],
) -> Iterator[PortRule]:
    members = [rank.machine for rank in group.ranks]
    head = members[0]
    callers = _find_callers(fleet, head)
    yield make_rule(head, group.port, callers, "the gate, which requires a key")
    for machine in members if len(members) > 1 else ():
        others = tuple(name for name in members if name != machine)
        if machine == head:
            why = "where ranks connect; without authentication"
            yield make_rule(machine, MASTER_PORT, others, why)
        why = "supervisors' reports on their ranks, signed"
        yield make_rule(machine, WATCH_PORT, others, why, protocol="udp")
        first, last = ephemeral.get(machine, EPHEMERAL)
        why = "Gloo, NCCL and vLLM's queues, at ports that the kernel chooses"
        yield make_rule(machine, first, others, why, last_port=last)
        if network is not None and network.shape != "tcp":
            yield make_rule(machine, ROCE_PORT, others, "RoCE v2", protocol="udp")


def make_rule(machine: str, port: int, callers: Callers, why: str, **more: Any) -> PortRule:
    """Return who may reach a TCP port, or with `more` another."""
    return PortRule.model_validate(
        {
            "machine": machine,
            "port": port,
            "protocol": "tcp",
            "callers": callers,
            "why": why,
            **more,
        }
    )


def _find_callers(fleet: Fleet, head: str) -> Callers:
    """Say who may ask a group: the load balancer if there is one; without keys nobody else."""
    if fleet.keys is None:
        return ()
    if fleet.balancer is None:
        return "clients"
    return () if fleet.balancer.machine == head else (fleet.balancer.machine,)


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
        if rule.callers == "clients":
            lines.append(f"    {match} accept")
            continue
        lines += [f"    {family} {match} accept" for family in _list_sources(plan, rule.callers)]
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
