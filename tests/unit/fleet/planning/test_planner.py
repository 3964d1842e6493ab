"""A fleet's plan gives every rank its own variables, and names what does not match."""

import re
from pathlib import Path
from typing import Any

import pytest

from slipstream.fleet.plan import (
    FleetPlan,
    FleetProbe,
    Link,
    MachineView,
    RankPlan,
    diff_fleet_plans,
)
from slipstream.fleet.planning.planner import make_fleet_plan
from slipstream.fleet.planning.topology import render_firewall
from slipstream.fleet.record import Fleet, read_fleet
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan, PlanOptions
from slipstream.records import read_record
from tests.unit.fleet.far_machines import make_fleet, view
from tests.unit.planning.bare_plans import bare_plan

DOCS = Path(__file__).parents[4] / "docs" / "fleet"


def plan_machine(host: Host, target: str, options: PlanOptions) -> LaunchPlan:
    environment = {"CORES": str(host.processor.cores)}
    given = {name: choice for name, choice in options.engine if choice is not None}
    plan = bare_plan(environment=environment).change(**given)
    changes = {"target": target, "options": options, "machine": host.product}
    return plan.model_copy(update=changes)


def load(name: str) -> tuple[Fleet, FleetProbe]:
    probe = read_record(DOCS / f"{name}-probe.json", FleetProbe, hint="")
    return read_fleet(DOCS / f"{name}.toml"), probe


def plan_sparks(name: str, **changes: Any) -> FleetPlan:
    fleet, probe = load(name)
    return make_fleet_plan(fleet.model_copy(update=changes), probe, plan_machine)


def link(**changes: Any) -> Link:
    ends: dict[str, Any] = {"a": "one", "b": "two", "interface_a": "eth0", "interface_b": "eth0"}
    ends |= {"address_a": "10.0.0.1", "address_b": "10.0.0.2", "mtu_a": 1500, "mtu_b": 1500}
    return Link(**(ends | {"kind": "tcp", "gigabits": 25.0, "round_trip_ms": 0.1} | changes))


def plan_two(
    *links: Link, one: MachineView | None = None, two: MachineView | None = None, **changes: Any
) -> FleetPlan:
    views = {"one": one or view(1, address="10.0.0.1"), "two": two or view(2, address="10.0.0.2")}
    probe = FleetProbe(machines=views, links=links or (link(),))
    return make_fleet_plan(make_fleet(**changes), probe, plan_machine)


def read_variables(rank: RankPlan) -> dict[str, str]:
    return {name: choice.value for name, choice in rank.plan.environment.items()}


def list_codes(plan: FleetPlan) -> dict[str, str]:
    return {fault.code: fault.verdict for fault in plan.faults}


def test_two_sparks_with_a_cable_use_both_halves_of_the_port() -> None:
    plan = plan_sparks("two-sparks")
    head, follower = plan.groups[0].ranks
    assert read_variables(head) == {
        "CORES": "20",
        "VLLM_HOST_IP": "192.168.177.11",
        "GLOO_SOCKET_IFNAME": "enp1s0f1np1",
        "NCCL_SOCKET_IFNAME": "=enp1s0f1np1",
        "NCCL_NET": "IB",
        "NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1",
        "NCCL_IGNORE_CPU_AFFINITY": "1",
        "NCCL_CROSS_NIC": "1",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert read_variables(follower) == {**read_variables(head), "VLLM_HOST_IP": "192.168.177.12"}
    for rank in (head, follower):
        words = " ".join(rank.plan.argv())
        assert f"--tensor-parallel-size 2 --nnodes 2 --node-rank {rank.rank}" in words
        assert "--master-addr 192.168.177.11 --master-port 29501" in words
    assert "--headless" in follower.plan.argv()
    assert list_codes(plan) == {"fleet-keys": "warn"}


def test_machines_whose_cables_are_in_different_ports_get_different_variables() -> None:
    fleet, probe = load("two-sparks")
    text = probe.machines["spark-2"].to_json()
    swapped = text.replace("f1np1", "f9np9").replace("f0np0", "f1np1").replace("f9np9", "f0np0")
    swapped = swapped.replace('s0f1"', 's0f9"').replace('s0f0"', 's0f1"')
    other = MachineView.model_validate_json(swapped.replace('s0f9"', 's0f0"'))
    links = [
        one.model_copy(update={"interface_b": one.interface_b.replace("f1np1", "f0np0")})
        for one in probe.links
    ]
    probe = probe.model_copy(
        update={"machines": {**probe.machines, "spark-2": other}, "links": tuple(links)}
    )
    head, follower = make_fleet_plan(fleet, probe, plan_machine).groups[0].ranks
    assert read_variables(head)["NCCL_IB_HCA"] == "=rocep1s0f1,roceP2p1s0f1"
    assert read_variables(follower)["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert read_variables(follower)["GLOO_SOCKET_IFNAME"] == "enp1s0f0np0"


def test_four_sparks_in_a_ring_coordinate_over_the_network_that_all_share() -> None:
    plan = plan_sparks("four-sparks")
    chosen = read_variables(plan.groups[0].ranks[2])
    assert chosen["GLOO_SOCKET_IFNAME"] == "enP7s7"
    assert chosen["VLLM_HOST_IP"] == "192.0.2.13"
    assert chosen["NCCL_IB_HCA"].count("roce") == 4
    ring = ("NCCL_NET_PLUGIN", "NCCL_IB_SUBNET_AWARE_ROUTING", "NCCL_IB_MERGE_NICS", "NCCL_ALGO")
    assert [chosen[name] for name in ring] == ["none", "1", "0", "Ring"]
    assert "NCCL_IB_GID_INDEX" not in chosen


def test_ranks_out_of_the_rings_order_are_named_in_the_right_one() -> None:
    groups = {"glm": {"machines": ("spark-1", "spark-3", "spark-2", "spark-4")}}
    fleet, probe = load("four-sparks")
    fleet = Fleet.model_validate({**fleet.model_dump(), "groups": groups})
    plan = make_fleet_plan(fleet, probe, plan_machine)
    fault = next(one for one in plan.faults if one.code == "fleet-ring")
    assert fault.hint == ('machines = ["spark-1", "spark-2", "spark-3", "spark-4"] in [groups.glm]')
    assert read_variables(plan.groups[0].ranks[0])["NCCL_NET"] == "Socket"


def test_without_accelerators_only_gloo_and_vllm_are_told() -> None:
    plan = plan_two()
    names = {"CORES", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"}
    assert read_variables(plan.groups[0].ranks[1]).keys() == names
    assert list_codes(plan) == {"fleet-keys": "warn"}
    assert FleetPlan.model_validate_json(plan.to_json()) == plan


def test_one_engine_has_the_settings_that_its_smallest_machine_can_hold() -> None:
    small = view(2, address="10.0.0.2")
    memory = small.host.memory.model_copy(update={"available_bytes": 1 << 30})
    changes = {"memory": memory, "product": "small"}
    small = small.model_copy(update={"host": small.host.model_copy(update=changes)})
    plan = plan_two(two=small)
    assert [rank.plan.machine for rank in plan.groups[0].ranks] == ["small", "small"]


ALIKE: dict[str, Any] = {"weights": {"a/b": "0" * 64}, "clock_offset_seconds": 0.1}


@pytest.mark.parametrize(
    ("change", "code", "verdict"),
    [
        ({}, "fleet-keys", "warn"),
        # One version apart is allowed while a fleet is upgraded.
        ({"slipstream": "0.0.1"}, "fleet-slipstream", "warn"),
        ({"slipstream": "0.2.7rc1"}, "fleet-slipstream", "warn"),
        ({"slipstream": "0.3.0"}, "fleet-slipstream", "refuse"),
        ({"slipstream": "1.1.0"}, "fleet-slipstream", "refuse"),
        ({"slipstream": None}, "fleet-slipstream", "refuse"),
        ({"engine": None}, "fleet-engine", "refuse"),
        ({"engine": "vllm 0.31.0"}, "fleet-rank-engine", "refuse"),
        ({"clock_offset_seconds": -2.5}, "fleet-clock", "warn"),
        ({"weights": {"a/b": "f" * 64}}, "fleet-weights", "refuse"),
    ],
)
def test_what_does_not_match_is_a_fault_with_something_to_type(
    change: dict[str, Any], code: str, verdict: str
) -> None:
    one = view(1, address="10.0.0.1", **ALIKE)
    plan = plan_two(one=one, two=view(2, address="10.0.0.2", **ALIKE | change))
    assert list_codes(plan)[code] == verdict
    fault = next(one for one in plan.faults if one.code == code)
    assert fault.hint
    if change:
        assert "two" in fault.message
    else:
        assert plan.faults == (fault,)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mtu_b": 9000}, "fleet-mtu"),
        ({"gigabits": 0.9}, "fleet-slow-link"),
        ({"kind": "roce"}, "fleet-mtu"),
    ],
)
def test_a_poor_link_is_a_warning(change: dict[str, Any], code: str) -> None:
    plan = plan_two(link(**change))
    assert list_codes(plan)[code] == "warn"


def test_a_group_without_a_link_an_unseen_machine_and_a_balancer_without_keys_are_refused() -> None:
    probe = FleetProbe(machines={"one": view(1), "two": view(2)})
    plan = make_fleet_plan(make_fleet(), probe, plan_machine)
    assert list_codes(plan)["fleet-group-link"] == "refuse"
    assert plan.refusals
    unseen = make_fleet_plan(make_fleet(), FleetProbe(machines={"one": view(1)}), plan_machine)
    assert unseen.groups == ()
    assert list_codes(plan_two(balancer={"machine": "one"}))["fleet-keys"] == "refuse"


def test_ports_of_ranks_are_for_members_and_the_gates_for_the_load_balancer() -> None:
    changes: dict[str, Any] = {
        "machines": {"one": {}, "two": {}, "three": {}},
        "groups": {"g": {"machines": ["one", "two"]}, "h": {"machines": ["three"]}},
        "balancer": {"machine": "three"},
        "keys": {"file": "keys.json"},
    }
    views = {name: view(n, address=f"10.0.0.{n}") for n, name in enumerate(changes["machines"], 1)}
    probe = FleetProbe(machines=views, links=(link(),))
    plan = make_fleet_plan(make_fleet(**changes), probe, plan_machine)
    rules = {(rule.machine, rule.port): rule.callers for rule in plan.ports}
    assert rules == {
        ("one", 8000): ("three",),
        ("one", 29501): ("two",),
        ("one", 29502): ("two",),
        ("one", 32768): ("two",),
        ("two", 29502): ("one",),
        ("two", 32768): ("one",),
        ("three", 8000): (),
        ("three", 8300): "clients",
    }
    assert plan.balancer is not None
    assert [one.address for one in plan.balancer.groups] == ["10.0.0.1", "10.0.0.3"]
    assert "--host 10.0.0.1 --port 8000" in " ".join(plan.groups[0].ranks[0].plan.argv())
    shown = render_firewall(plan, "one")
    assert "ip saddr { 10.0.0.2 } tcp dport 29501 accept\n    tcp dport 29501 drop" in shown
    assert "ip saddr { 10.0.0.3 } tcp dport 8000 accept\n    tcp dport 8000 drop" in shown


def test_two_plans_are_compared_machine_by_machine() -> None:
    group = {"machines": ["one", "two"], "options": {"engine": ["--max-num-seqs", "3"]}}
    left, right = plan_two(), plan_two(link(gigabits=12.0), groups={"g": group})
    shown = {one.flag: (one.left, one.right) for one in diff_fleet_plans(left, right)}
    assert shown["one --max-num-seqs"] == (None, "3")
    assert "link one two eth0" in shown
    assert list(diff_fleet_plans(left, left)) == []


# docs/fleet.md shows beside other scripts what the plan of the same Sparks really sets.
def list_rows(title: str) -> list[tuple[list[str], str]]:
    """Return the settings and our values of a table, by the words before it."""
    text = (DOCS.parent / "fleet.md").read_text().partition(f"**{title}")[2].partition("\n\n|")[2]
    rows = [line.split(" | ") for line in text.partition("\n\n")[0].splitlines()[2:]]
    return [(re.findall(r"`([^`]+)`", row[0]), row[1].strip()) for row in rows]


def split(ours: str, count: int) -> list[str]:
    """Return our value of each setting of a row; none if it is told in words."""
    if ours == "not set":
        return [ours] * count
    values = re.split("; " if ";" in ours else ", ", ours) if count > 1 else [ours]
    return values if not re.search(r"[a-z] [a-z]|rank", ours) else []


def show(plan: FleetPlan, name: str) -> str:
    """Show a setting of the first rank, and after it that of the second if it differs."""
    found = [rank.plan.find(name) for rank in plan.groups[0].ranks[:2]]
    if name.startswith("RAY_"):
        return "not set"
    values = ["not set" if one is None else str(one.value) for one in found]
    if name == "VLLM_HOST_IP":
        values[1] = f".{values[1].rpartition('.')[2]}"
    return values[0] if values[0] == values[1] else ", ".join(values)


@pytest.mark.parametrize(
    ("title", "name"), [("Two Sparks", "two-sparks"), ("Four Sparks", "four-sparks")]
)
def test_our_column_is_what_the_plan_sets(title: str, name: str) -> None:
    plan = plan_sparks(name)
    shown = {
        setting: value
        for names, ours in list_rows(title)
        for setting, value in zip(names, split(ours, len(names)), strict=False)
    }
    assert len(shown) >= 8
    assert {setting: show(plan, setting) for setting in shown} == shown
