"""Two plans of a fleet side by side."""

from collections.abc import Iterator

from slipstream.fleet.plan import FleetPlan
from slipstream.planning.plan import Difference, diff_plans


def diff_fleet_plans(left: FleetPlan, right: FleetPlan) -> tuple[Difference, ...]:
    """List the disagreements machine by machine, then of links, ports and the router."""
    return tuple(_list_differences(left, right))


def _list_differences(left: FleetPlan, right: FleetPlan) -> Iterator[Difference]:
    for machine in dict.fromkeys((*left.fleet.machines, *right.fleet.machines)):
        ours, theirs = left.find_rank(machine), right.find_rank(machine)
        if ours is None or theirs is None:
            if ours is not theirs:
                states = ["in a group" if side else None for side in (ours, theirs)]
                yield Difference(flag=machine, left=states[0], right=states[1], because="")
            continue
        for one in diff_plans(ours.plan, theirs.plan):
            yield one.model_copy(update={"flag": f"{machine} {one.flag}"})
    for name in ("links", "ports"):
        sides = [
            {_name(entry): entry.model_dump_json() for entry in getattr(plan, name)}
            for plan in (left, right)
        ]
        for entry in dict.fromkeys((*sides[0], *sides[1])):
            if sides[0].get(entry) != sides[1].get(entry):
                yield Difference(
                    flag=f"{name[:-1]} {entry}",
                    left=sides[0].get(entry),
                    right=sides[1].get(entry),
                    because="",
                )
    routers = [plan.router.to_json() if plan.router else None for plan in (left, right)]
    if routers[0] != routers[1]:
        yield Difference(flag="router", left=routers[0], right=routers[1], because="")


def _name(entry: object) -> str:
    keys = ("a", "b", "interface_a", "machine", "port", "protocol")
    return " ".join(str(getattr(entry, key)) for key in keys if hasattr(entry, key))
