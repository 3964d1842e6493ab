"""The plan of one machine of several that share an engine; the first leads and listens."""

from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice

MASTER_PORT = 29501


def make_rank_plan(plan: LaunchPlan, rank: int, head: str) -> LaunchPlan:
    """Return a plan for the machine of this rank, which finds the others at `head`."""
    machines = plan.settings.nodes.value if plan.settings.nodes else 1
    if not 0 <= rank < machines:
        raise InvalidInputError(
            f"the plan is for {machines} machines, and has no rank {rank}",
            hint=f"--rank 0 to {machines - 1}",
        )
    because = "of the group's first machine"
    rest = {
        **plan.settings.rest,
        "--master-addr": Choice(head, "user", because),
        "--master-port": Choice(MASTER_PORT, "default", because),
    }
    if rank:
        rest["--headless"] = Choice(True, "default", "the first machine listens")
    return plan.change(node_rank=Choice(rank, "user", "this machine's place"), rest=rest)
