"""The groups that take requests as llm-d's `endpoints.yaml`, for its router without Kubernetes.

The entries are the front's legs on loopback: llm-d's endpoint picker and Envoy run on the router's
machine, speak plain HTTP, and know no certificate to show to a gate. The picker takes literal IPv4
addresses only.
"""

import yaml

from slipstream.fleet.front.control import FrontState
from slipstream.fleet.front.router import LOOPBACK, find_leg_port
from slipstream.fleet.plan import FleetPlan, RouterPlan


def render_endpoints(plan: FleetPlan, router: RouterPlan, state: FrontState | None) -> str:
    """Write the open groups, or all of them if it is not known which are."""
    open_groups = (
        None if state is None else {one.group for one in state.groups if one.state == "open"}
    )
    endpoints = [
        {
            "name": group.name,
            "address": LOOPBACK,
            # A string: the picker reads no number here.
            "port": str(find_leg_port(router, group.name)),
            "labels": {
                "model": _name_model(plan, group.name),
                "slipstream/speculation": "on" if group.speculation else "off",
            },
        }
        for group in plan.groups
        if group.address is not None and (open_groups is None or group.name in open_groups)
    ]
    return str(yaml.safe_dump({"endpoints": endpoints}, sort_keys=False))


def _name_model(plan: FleetPlan, group: str) -> str:
    """Return what clients call a group's model."""
    found = plan.find_group(group)
    names = found.ranks[0].plan.settings.served_names if found else None
    return names.value[0] if names else plan.fleet.model.target
