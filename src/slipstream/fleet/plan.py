"""`FleetPlan`: a plan for every rank of every group, their links, and what does not match."""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_interface
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from slipstream.checkpoints.pairing import Fault
from slipstream.fleet.record import Fleet, IpAddress, Policy, Port
from slipstream.hardware import Host
from slipstream.planning.plan import Difference, LaunchPlan, diff_plans
from slipstream.records import Record

LinkKind = Literal["roce", "tcp"]
# Of what a far machine says, only such text is shown as it is.
SHOWN = r"^[ -~]{1,80}$"
# At most what a machine may say of itself: it is read from far machines.
MOST_INTERFACES = 256
IpInterface = Annotated[str, AfterValidator(lambda text: str(ip_interface(text)))]


class Interface(Record):
    """A network interface of a machine, with the RDMA device behind it if there is one."""

    name: str = Field(pattern=r"^[A-Za-z0-9._@:-]{1,15}$")
    up: bool | None
    mtu: int | None
    speed_gbit_per_s: float | None
    addresses: tuple[IpInterface, ...] = Field(max_length=64)
    rdma_device: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,63}$")
    rdma_active: bool | None = None
    # The index of the RoCE v2 entry for an IPv4 address in the device's table.
    gid_index: int | None = None


class MachineView(Record):
    """A machine as it was seen over SSH; None is what could not be told."""

    schema_version: Literal[1] = 1
    host: Host
    slipstream: str | None = Field(pattern=SHOWN)
    engine: str | None = Field(pattern=SHOWN)
    clock_offset_seconds: float | None = None
    address: IpAddress | None = None
    interfaces: tuple[Interface, ...] = Field(default=(), max_length=MOST_INTERFACES)
    # The ports that the kernel gives to whoever asks for any.
    ephemeral_ports: tuple[Port, Port] | None = None
    weights: dict[str, str] | None = None


class Link(Record):
    """A way between two machines that was measured; None is a figure that could not be had."""

    a: str
    b: str
    interface_a: str
    interface_b: str
    address_a: IpAddress
    address_b: IpAddress
    kind: LinkKind
    gigabits: float | None
    round_trip_ms: float | None
    mtu_a: int | None
    mtu_b: int | None


class FleetProbe(Record):
    """All that was seen of the machines: what a plan is made from."""

    schema_version: Literal[1] = 1
    machines: dict[str, MachineView]
    links: tuple[Link, ...] = ()
    # Why a machine could not be looked at.
    faults: tuple[Fault, ...] = ()

    @model_validator(mode="after")
    def _require_known_ends(self) -> "FleetProbe":
        for link in self.links:
            for machine, name in ((link.a, link.interface_a), (link.b, link.interface_b)):
                view = self.machines.get(machine)
                if view is None or name not in {one.name for one in view.interfaces}:
                    raise ValueError(f"{machine} has no interface {name}")
        return self


class RankPlan(Record):
    """One machine's part of a group's engine."""

    machine: str
    rank: int
    plan: LaunchPlan


class GroupPlan(Record):
    """One engine: its ranks, and where the first of them answers."""

    name: str
    ranks: tuple[RankPlan, ...]
    address: IpAddress | None
    port: Port

    @property
    def speculation(self) -> bool:
        return self.ranks[0].plan.speculation is not None


class Backend(Record):
    group: str
    machine: str
    address: IpAddress
    port: Port
    speculation: bool


class BalancerPlan(Record):
    machine: str
    address: IpAddress | None
    port: Port
    policy: Policy
    groups: tuple[Backend, ...]


def list_backends(groups: Iterable[GroupPlan]) -> tuple[Backend, ...]:
    return tuple(
        Backend(
            group=group.name,
            machine=group.ranks[0].machine,
            address=group.address,
            port=group.port,
            speculation=group.speculation,
        )
        for group in groups
        if group.address is not None
    )


class PortRule(Record):
    """Who may open a connection to a port, or a range of them, of a machine."""

    machine: str
    port: Port
    last_port: Port | None = None
    protocol: Literal["tcp", "udp"]
    callers: tuple[str, ...] | Literal["clients"]
    why: str


class FleetPlan(Record):
    """How a whole fleet is served, or why not to."""

    schema_version: Literal[3] = 3
    fleet: Fleet
    machines: dict[str, MachineView]
    links: tuple[Link, ...]
    groups: tuple[GroupPlan, ...]
    balancer: BalancerPlan | None
    ports: tuple[PortRule, ...]
    faults: tuple[Fault, ...]

    @property
    def refusals(self) -> tuple[Fault, ...]:
        return tuple(fault for fault in self.faults if fault.verdict == "refuse")

    def find_group(self, name: str) -> GroupPlan | None:
        return next((group for group in self.groups if group.name == name), None)

    def replace_groups(self, groups: Mapping[str, GroupPlan]) -> "FleetPlan":
        """Return the plan with these groups as they are here, at the load balancer, too."""
        mixed = tuple(groups.get(group.name, group) for group in self.groups)
        balancer = self.balancer
        if balancer is not None:
            balancer = balancer.model_copy(update={"groups": list_backends(mixed)})
        return self.model_copy(update={"groups": mixed, "balancer": balancer})

    def find_rank(self, machine: str) -> RankPlan | None:
        ranks = (rank for group in self.groups for rank in group.ranks)
        return next((rank for rank in ranks if rank.machine == machine), None)

    def list_addresses(self, machine: str) -> list[str]:
        view = self.machines.get(machine)
        found = {view.address} if view and view.address else set[str]()
        for link in self.links:
            found |= {link.address_a} if link.a == machine else set()
            found |= {link.address_b} if link.b == machine else set()
        return sorted(found)


def diff_fleet_plans(left: FleetPlan, right: FleetPlan) -> Iterator[Difference]:
    """Yield the disagreements machine by machine, then of links, ports and the load balancer."""
    for machine in dict.fromkeys((*left.fleet.machines, *right.fleet.machines)):
        ours, theirs = left.find_rank(machine), right.find_rank(machine)
        if ours is not None and theirs is not None:
            for one in diff_plans(ours.plan, theirs.plan):
                yield one.model_copy(update={"flag": f"{machine} {one.flag}"})
        elif ours is not theirs:
            states = ["in a group" if side else None for side in (ours, theirs)]
            yield Difference(flag=machine, left=states[0], right=states[1], because="")
    sides = [_list_parts(plan) for plan in (left, right)]
    for name in dict.fromkeys((*sides[0], *sides[1])):
        here, there = (side.get(name) for side in sides)
        if here != there:
            yield Difference(flag=name, left=here, right=there, because="")


def _list_parts(plan: FleetPlan) -> dict[str, str]:
    """Return what a plan has beside the ranks, each part by a name that tells it from others."""
    parts: dict[str, Record] = {
        f"link {one.a} {one.b} {one.interface_a}": one for one in plan.links
    }
    parts |= {f"port {one.machine} {one.port} {one.protocol}": one for one in plan.ports}
    parts |= {"balancer": plan.balancer} if plan.balancer else {}
    return {name: part.to_json() for name, part in parts.items()}
