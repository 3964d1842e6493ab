"""Router plans for tests."""

from slipstream.fleet.front.router import decide_settings
from slipstream.fleet.plan import RoutedGroup, RouterPlan
from slipstream.fleet.record import Policy


def plan_router(
    *groups: str,
    plain: tuple[str, ...] = (),
    policy: Policy = "power_of_two",
    port: int = 8300,
    ports: tuple[int, ...] = (),
    address: str = "10.0.0.{}",
) -> RouterPlan:
    """Plan a router before groups of one machine each."""
    return RouterPlan(
        machine="spark-1",
        address="10.0.0.1",
        port=port,
        policy=policy,
        settings=decide_settings(policy),
        groups=tuple(
            RoutedGroup(
                group=name,
                machine=f"spark-{number}",
                address=address.format(number),
                port=ports[number - 1] if ports else 8000,
                speculation=name not in plain,
            )
            for number, name in enumerate(groups, start=1)
        ),
    )
