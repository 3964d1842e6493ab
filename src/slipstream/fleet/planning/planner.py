"""From a fleet's file and what was seen of its machines to a `FleetPlan`; pure.

`plan_machine` makes one machine's `LaunchPlan`, as `slipstream plan` does; what several machines
add to it is decided here.
"""

from collections.abc import Callable, Mapping
from itertools import chain

from slipstream.checkpoints.pairing import Fault
from slipstream.fleet.plan import (
    BalancerPlan,
    FleetPlan,
    FleetProbe,
    GroupPlan,
    MachineView,
    PortRule,
    RankPlan,
    list_backends,
)
from slipstream.fleet.planning.mismatches import find_mismatches, find_network_faults
from slipstream.fleet.planning.topology import (
    GroupNetwork,
    decide_lone_variables,
    decide_variables,
    find_network,
    list_ports,
    make_rule,
)
from slipstream.fleet.record import Fleet
from slipstream.hardware import Host
from slipstream.planning.group import Member
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice, EngineOptions
from slipstream.planning.settings.options import PlanOptions
from slipstream.planning.spreading import spread_plan

PlanMachine = Callable[[Host, str, PlanOptions], LaunchPlan]
LOOPBACK = "127.0.0.1"


def make_fleet_plan(fleet: Fleet, probe: FleetProbe, plan_machine: PlanMachine) -> FleetPlan:
    """Plan every group, rank, port and the load balancer, and name all that does not match."""
    views, links = probe.machines, probe.links
    faults = [*probe.faults, *find_mismatches(fleet, views, links)]
    groups, ports = list[GroupPlan](), list[PortRule]()
    ephemeral = {name: view.ephemeral_ports for name, view in views.items() if view.ephemeral_ports}
    for name, group in fleet.groups.items():
        if not {*group.machines} <= views.keys():
            continue
        network = None
        if len(group.machines) > 1:
            network = find_network(group.machines, views, links)
            faults += find_network_faults(fleet, name, network, links)
        planned = _plan_group(fleet, name, views, network, plan_machine)
        faults += _collect_faults(planned)
        ports += list_ports(fleet, planned, network, ephemeral)
        groups.append(planned)
    balancer = _plan_balancer(fleet, groups, views)
    if balancer is not None:
        why = "the one address of the fleet"
        ports.append(make_rule(balancer.machine, balancer.port, "clients", why))
    faults += _find_key_faults(fleet)
    return FleetPlan(
        fleet=fleet,
        machines=dict(views),
        links=links,
        groups=tuple(groups),
        balancer=balancer,
        ports=tuple(ports),
        faults=tuple(faults),
    )


def _plan_group(
    fleet: Fleet,
    name: str,
    views: Mapping[str, MachineView],
    network: GroupNetwork | None,
    plan_machine: PlanMachine,
) -> GroupPlan:
    group = fleet.groups[name]
    hosts = {machine: views[machine].host for machine in group.machines}
    options = spread_options(fleet.find_options(name), group.machines, hosts[group.machines[0]])
    plans = {
        machine: plan_machine(host, fleet.model.target, options) for machine, host in hosts.items()
    }
    # One engine has the same settings on every rank: those that the machine with the least free
    # memory can hold. Variables are each machine's own.
    least = min(group.machines, key=lambda machine: _measure_free(hosts[machine]))
    plan = _place(fleet, name, plans[least], views[group.machines[0]].address)
    own = [plans[machine].environment for machine in group.machines]
    if network is not None:
        ranks = _join(fleet, name, plan, network, own, views)
    else:
        alone = decide_lone_variables() if len(own) == 1 else {}
        ranks = tuple(plan.model_copy(update={"environment": {**one, **alone}}) for one in own)
    return GroupPlan(
        name=name,
        ranks=tuple(
            RankPlan(machine=machine, rank=rank, plan=one)
            for rank, (machine, one) in enumerate(zip(group.machines, ranks, strict=True))
        ),
        address=views[group.machines[0]].address,
        port=group.port,
    )


def spread_options(options: PlanOptions, machines: tuple[str, ...], host: Host) -> PlanOptions:
    """Add what makes the planner count shards over all machines, unless it was specified."""
    count, given = len(machines), options.engine
    if count == 1:
        return options
    size = None
    if not any((given.tensor_parallel, given.pipeline_parallel, given.data_parallel)):
        why = f"every accelerator of {count} machines holds a part of each layer"
        size = Choice(count * max(1, len(host.accelerators)), "hardware", why)
    shared = f"one engine over {count} machines"
    return options.specify(
        EngineOptions(
            tensor_parallel=size,
            nodes=Choice(count, "hardware", shared),
            node_rank=Choice(0, "hardware", shared),
        )
    )


def _place(fleet: Fleet, group: str, plan: LaunchPlan, address: str | None) -> LaunchPlan:
    """Say where a group's engine answers: where the others reach it, if keys keep strangers out."""
    chosen = fleet.groups[group]
    port = Choice(chosen.port, "user", f"[groups.{group}] of the fleet's file")
    if fleet.keys is None or address is None:
        why = "no keys are configured, so no other machine may reach it"
        return plan.change(host=Choice(LOOPBACK, "default", why), port=port)
    why = f"the address of {chosen.machines[0]}, for clients; its gate requires a key"
    return plan.change(host=Choice(address, "hardware", why), port=port)


def _join(
    fleet: Fleet,
    name: str,
    plan: LaunchPlan,
    network: GroupNetwork,
    environments: list[dict[str, Choice[str]]],
    views: Mapping[str, MachineView],
) -> tuple[LaunchPlan, ...]:
    """Make one machine's plan that of every rank, each with its own variables."""
    machines = fleet.groups[name].machines
    return spread_plan(
        plan.model_copy(update={"environment": {}}),
        name,
        [
            Member(
                name=machine,
                address=network.addresses[machine],
                interface=network.interfaces[machine].name,
            )
            for machine in machines
        ],
        secret_file=f"~/{fleet.folder}/group-{name}.key",
        variables=[
            own
            | decide_variables(network, machine, accelerated=bool(views[machine].host.accelerators))
            for machine, own in zip(machines, environments, strict=True)
        ],
    )


def _plan_balancer(
    fleet: Fleet, groups: list[GroupPlan], views: Mapping[str, MachineView]
) -> BalancerPlan | None:
    if fleet.balancer is None:
        return None
    view = views.get(fleet.balancer.machine)
    return BalancerPlan(
        machine=fleet.balancer.machine,
        address=view.address if view else None,
        port=fleet.balancer.port,
        policy=fleet.balancer.policy,
        groups=list_backends(groups),
    )


def _collect_faults(group: GroupPlan) -> list[Fault]:
    """Name what speaks against the ranks' plans once, with the machines that it is about."""
    found: dict[tuple[str, str], tuple[Fault, list[str]]] = {}
    for rank in group.ranks:
        for fault in chain(rank.plan.refusals, rank.plan.warnings):
            found.setdefault((fault.code, fault.message), (fault, []))[1].append(rank.machine)
    return [
        fault.model_copy(update={"message": f"{', '.join(machines)}: {fault.message}"})
        for fault, machines in found.values()
    ]


def _find_key_faults(fleet: Fleet) -> list[Fault]:
    if fleet.keys is not None:
        return []
    hint = (
        '[keys] file = "keys.json" in the fleet\'s file; for a key: slipstream keys new --name NAME'
    )
    if fleet.balancer is not None:
        what = "the load balancer must reach groups on other machines, but no keys are configured"
        return [Fault(code="fleet-keys", verdict="refuse", message=what, hint=hint)]
    what = "no keys are configured: each group serves its own machine only"
    return [Fault(code="fleet-keys", verdict="warn", message=what, hint=hint)]


def _measure_free(host: Host) -> float:
    """Return the least memory that is free on an accelerator, or in the system without one."""
    free = [one.memory_available_bytes for one in host.accelerators] or [
        host.memory.available_bytes
    ]
    return min(float("inf") if size is None else size for size in free)
