"""Plans of load balancers for tests."""

from slipstream.fleet.plan import Backend, BalancerPlan
from slipstream.fleet.record import Policy


def plan_balancer(
    *groups: str,
    plain: tuple[str, ...] = (),
    policy: Policy = "leastconn",
    port: int = 8300,
    ports: tuple[int, ...] = (),
    address: str = "10.0.0.{}",
) -> BalancerPlan:
    return BalancerPlan(
        machine="spark-1",
        address="10.0.0.1",
        port=port,
        policy=policy,
        groups=tuple(
            Backend(
                group=name,
                machine=f"spark-{number}",
                address=address.format(number),
                port=ports[number - 1] if ports else 8000,
                speculation=name not in plain,
            )
            for number, name in enumerate(groups, start=1)
        ),
    )
