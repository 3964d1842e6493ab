"""From a fleet's file and what was seen of its machines to a `FleetPlan`; pure.

`plan_machine` makes one machine's `LaunchPlan`, as `slipstream plan` does; what several machines
add to it is decided here.
"""

from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from pydantic import JsonValue

from slipstream.checkpoints.pairing import Fault
from slipstream.fleet.front.router import decide_settings
from slipstream.fleet.matching import find_mismatches, find_network_faults
from slipstream.fleet.network import GroupNetwork, find_network
from slipstream.fleet.plan import (
    FleetPlan,
    FleetProbe,
    GroupPlan,
    MachineView,
    RankPlan,
    RoutedGroup,
    RouterPlan,
)
from slipstream.fleet.ports import MASTER_PORT, list_group_ports, list_router_ports
from slipstream.fleet.record import Fleet
from slipstream.fleet.variables import decide_variables
from slipstream.hardware import Host
from slipstream.planning.asked import read_asked
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.planning.wishes import Wishes

PlanMachine = Callable[[Host, str, Wishes], LaunchPlan]
LOOPBACK = "127.0.0.1"


def make_fleet_plan(fleet: Fleet, probe: FleetProbe, plan_machine: PlanMachine) -> FleetPlan:
    """Plan every group, rank, port and the router, and name all that does not match."""
    views, links = probe.machines, probe.links
    faults = [*probe.faults, *find_mismatches(fleet, views, links)]
    groups, ports = [], []
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
        ports += list_group_ports(fleet, planned, network, ephemeral)
        groups.append(planned)
    router = _plan_router(fleet, groups, views)
    faults += _find_key_faults(fleet)
    return FleetPlan(
        fleet=fleet,
        machines=dict(views),
        links=links,
        groups=tuple(groups),
        router=router,
        ports=(*ports, *list_router_ports(router)),
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
    wishes = _spread(fleet.find_wishes(name), group.machines, hosts[group.machines[0]])
    plans = {
        machine: plan_machine(host, fleet.model.target, wishes) for machine, host in hosts.items()
    }
    # One engine has the same settings on every rank: those that the machine with the least free
    # memory can hold. Variables are each machine's own.
    least = min(group.machines, key=lambda machine: _measure_free(hosts[machine]))
    ranks = []
    for rank, machine in enumerate(group.machines):
        plan = plans[least].model_copy(update={"environment": plans[machine].environment})
        plan = _place(fleet, name, machine, plan, views[machine].address)
        if len(group.machines) > 1:
            plan = _join(plan, rank, group.machines, network, views)
        ranks.append(RankPlan(machine=machine, rank=rank, plan=plan))
    address = views[group.machines[0]].address
    return GroupPlan(name=name, ranks=tuple(ranks), address=address, port=group.port)


def _spread(wishes: Wishes, machines: tuple[str, ...], host: Host) -> Wishes:
    """Add what makes the planner count shards over all machines, unless it was asked for."""
    if len(machines) == 1:
        return wishes
    words = ["--nnodes", str(len(machines)), "--node-rank", "0"]
    asked = read_asked(wishes).settings
    if not {"tensor_parallel", "pipeline_parallel", "data_parallel"} & asked.keys():
        size = len(machines) * max(1, len(host.accelerators))
        words += ["--tensor-parallel-size", str(size)]
    return wishes.model_copy(update={"raw": (*wishes.raw, *words)})


def _place(
    fleet: Fleet, group: str, machine: str, plan: LaunchPlan, address: str | None
) -> LaunchPlan:
    """Say where a group's engine answers: where the others reach it, if keys keep strangers out."""
    port = Choice(fleet.groups[group].port, "user", f"[groups.{group}] of the fleet's file")
    if fleet.keys is None or address is None:
        why = "no keys are named, so nobody else may reach it"
        return plan.change(host=Choice(LOOPBACK, "default", why), port=port)
    why = f"the address of {machine}, for the router and clients; its gate asks for a key"
    return plan.change(host=Choice(address, "hardware", why), port=port)


def _join(
    plan: LaunchPlan,
    rank: int,
    machines: tuple[str, ...],
    network: GroupNetwork | None,
    views: Mapping[str, MachineView],
) -> LaunchPlan:
    """Make a machine's plan one rank of an engine over several."""
    settings = plan.settings
    changed: dict[str, Any] = {
        "nodes": Choice(len(machines), "user", f"one engine over {', '.join(machines)}"),
        "node_rank": Choice(rank, "user", "its place in the group's list of machines"),
    }
    tensor = settings.tensor_parallel
    if tensor is not None and tensor.because == "given after --" and not _asked_for(plan, tensor):
        why = f"every accelerator of {len(machines)} machines holds a part of each layer"
        changed["tensor_parallel"] = Choice(tensor.value, "hardware", why)
    why = "vLLM's own processes; Ray would copy the driver's whole environment, secrets included"
    changed["executor"] = settings.executor or Choice("mp", "default", why)
    rest: dict[str, Choice[JsonValue]] = dict(settings.rest)
    if network is not None:
        head = network.addresses[machines[0]]
        rest["--master-addr"] = Choice(head, "hardware", f"{machines[0]}, over the group's link")
    rest["--master-port"] = Choice(MASTER_PORT, "default", "vLLM's own; open to members only")
    if rank:
        rest["--headless"] = Choice(True, "default", "the first rank alone answers requests")
    plan = plan.change(**changed, rest=rest)
    if network is None:
        return plan
    machine = machines[rank]
    accelerated = bool(views[machine].host.accelerators)
    plan = plan.change_variables(decide_variables(network, machine, accelerated=accelerated))
    # The planner sees one machine, and warns of others that it could not see.
    return plan.model_copy(
        update={
            "warnings": tuple(fault for fault in plan.warnings if fault.code != "nodes"),
            "refusals": tuple(fault for fault in plan.refusals if fault.code != "nodes"),
        }
    )


def _asked_for(plan: LaunchPlan, tensor: Choice[int]) -> bool:
    """Say whether the user's own words, not ours, named the size."""
    words = plan.wishes.raw
    ours = words[-2:] == ("--tensor-parallel-size", str(tensor.value))
    return not ours


def _plan_router(
    fleet: Fleet, groups: list[GroupPlan], views: Mapping[str, MachineView]
) -> RouterPlan | None:
    if fleet.router is None:
        return None
    view = views.get(fleet.router.machine)
    return RouterPlan(
        machine=fleet.router.machine,
        address=view.address if view else None,
        port=fleet.router.port,
        policy=fleet.router.policy,
        groups=tuple(
            RoutedGroup(
                group=group.name,
                machine=group.ranks[0].machine,
                address=group.address,
                port=group.port,
                speculation=group.speculation,
            )
            for group in groups
            if group.address is not None
        ),
        settings=decide_settings(fleet.router.policy),
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
    hint = 'slipstream keys new --name NAME, then [keys] file = "keys.json" in the fleet\'s file'
    if fleet.router is not None:
        what = "the router is to reach groups on other machines, and no keys are named"
        return [Fault(code="fleet-keys", verdict="refuse", message=what, hint=hint)]
    what = "no keys are named: each group answers its own machine only"
    return [Fault(code="fleet-keys", verdict="warn", message=what, hint=hint)]


def _measure_free(host: Host) -> float:
    """Return the least memory that is free on an accelerator, or in the system without one."""
    free = [one.memory_available_bytes for one in host.accelerators] or [
        host.memory.available_bytes
    ]
    return min(float("inf") if size is None else size for size in free)
