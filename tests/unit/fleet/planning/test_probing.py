"""Only ways that will be used are measured, over addresses that can be a link."""

import json
import threading

from slipstream.errors import SlipstreamError
from slipstream.fleet.far_side.connections import LinkFigures
from slipstream.fleet.machines.commands import CommandResult, Machines
from slipstream.fleet.plan import Interface, MachineView
from slipstream.fleet.planning.probing import list_pairs, list_ways, measure_links
from slipstream.fleet.record import Fleet
from tests.unit.fleet.far_machines import FarMachines, make_fleet, say, view


def interface(name: str, *addresses: str, up: bool = True, rdma: bool | None = None) -> Interface:
    return Interface(
        name=name,
        up=up,
        mtu=1500,
        speed_gbit_per_s=None,
        addresses=addresses,
        rdma_device=f"roce-{name}"[:15] if rdma is not None else None,
        rdma_active=rdma,
    )


def machine(*interfaces: Interface) -> MachineView:
    return view(1, interfaces=interfaces)


def make_groups(count: int, size: int) -> Fleet:
    names = [f"m{number}" for number in range(count * size)]
    groups = {f"g{n}": {"machines": names[n * size : (n + 1) * size]} for n in range(count)}
    return make_fleet(groups=groups, machines={name: {} for name in names})


def test_pairs_grow_with_the_groups_and_not_with_the_square_of_the_machines() -> None:
    assert len(list_pairs(make_groups(200, 1))) == 0
    assert len(list_pairs(make_groups(50, 4))) == 50 * 6


def test_rdma_comes_first_and_bridges_and_dead_ports_do_not_count() -> None:
    one = machine(
        interface("docker0", "172.17.0.1/16"),
        interface("virt", "192.168.122.1/24"),
        interface("lan", "10.0.0.1/24"),
        interface("dead", "10.2.0.1/24", up=False),
        interface("cable", "10.1.0.1/24", rdma=True),
    )
    two = machine(
        interface("docker0", "172.17.0.1/16"),
        interface("virt", "192.168.122.1/24"),
        interface("lan", "10.0.0.2/24", "fd00::2/64"),
        interface("dead", "10.2.0.2/24"),
        interface("cable", "10.1.0.2/24", rdma=True),
    )
    ways = [(way.interface_a, way.address_b) for way in list_ways("a", one, "b", two)]
    assert ways == [("cable", "10.1.0.2"), ("lan", "10.0.0.2")]


def test_machines_of_different_networks_are_tried_by_their_first_addresses() -> None:
    one, two = (machine(interface("lan", f"10.{number}.0.5/24")) for number in (1, 2))
    ways = [(way.address_a, way.address_b) for way in list_ways("a", one, "b", two)]
    assert ways == [("10.1.0.5", "10.2.0.5")]


def test_no_machine_is_measured_twice_at_a_time_and_a_way_that_carries_nothing_is_no_link() -> None:
    fleet = make_groups(1, 4)
    views = {name: view(number) for number, name in enumerate(fleet.machines, 1)}
    busy, twice, lock = set[str](), list[str](), threading.Lock()

    def reply(name: str, words: list[str], stdin: bytes | None) -> CommandResult:
        if words == ["ServeLink"]:
            return say('{"port": 4000}\n')
        other = f"m{int(json.loads(stdin or b'')['address'].rpartition('.')[2]) - 1}"
        with lock:
            twice.extend({name, other} & busy)
            busy.update((name, other))
        answer = say("", 1) if {name, other} == {"m0", "m3"} else None
        with lock:
            busy.difference_update((name, other))
        return answer or say(LinkFigures(gigabits=1, round_trip_ms=1).to_json())

    links, faults = measure_links(Machines(fleet, FarMachines(reply)), views)
    assert twice == []
    assert len(links) == 5
    assert [isinstance(fault, SlipstreamError) for fault in faults] == [True]
    assert "m0" in faults[0].message
