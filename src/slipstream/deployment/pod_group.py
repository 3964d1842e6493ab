"""The plan of one pod of a LeaderWorkerSet: its pods find each other by name, at their start."""

import socket
import time
from collections.abc import Callable

from slipstream.errors import InvalidInputError
from slipstream.planning.group import Member
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.spreading import spread_plan

# A pod waits for a machine, an image and an address; then its name is known.
WITHIN_SECONDS = 1800.0
ASK_EVERY_SECONDS = 2.0

Resolve = Callable[[str], str]


def name_pods(head: str, count: int) -> tuple[str, ...]:
    """Return the addresses of a group's pods, as LeaderWorkerSet names them after its leader."""
    leader, dot, subdomain = head.partition(".")
    return (head, *(f"{leader}-{rank}{dot}{subdomain}" for rank in range(1, count)))


def make_rank_plan(
    plan: LaunchPlan,
    rank: int,
    head: str,
    *,
    interface: str | None,
    secret_file: str,
    resolve: Resolve = socket.gethostbyname,
    sleep: Callable[[float], None] = time.sleep,
    within_seconds: float = WITHIN_SECONDS,
) -> LaunchPlan:
    """Return a plan for the pod of this rank, once the addresses of all pods are known."""
    count = plan.settings.nodes.value if plan.settings.nodes else 1
    if not 0 <= rank < count:
        raise InvalidInputError(
            f"the plan is for {count} machines, and has no rank {rank}",
            hint=f"--rank 0 to {count - 1}",
        )
    names = name_pods(head, count)
    attempts = max(1, round(within_seconds / ASK_EVERY_SECONDS))
    members = [
        Member(
            name=name.partition(".")[0],
            address=_find_address(name, resolve, sleep, attempts),
            interface=interface,
        )
        for name in names
    ]
    return spread_plan(plan, members[0].name, members, secret_file=secret_file)[rank]


def _find_address(
    name: str, resolve: Resolve, sleep: Callable[[float], None], attempts: int
) -> str:
    for attempt in range(attempts):
        try:
            return resolve(name)
        except OSError as fault:
            why = fault.strerror or str(fault)
        if attempt + 1 < attempts:
            sleep(ASK_EVERY_SECONDS)
    raise InvalidInputError(
        f"{name} has no address yet: {why}",
        hint="kubectl get pods; all pods of the group must be scheduled",
    )
