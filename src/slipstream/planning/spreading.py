"""A plan for each machine of a group, from one plan for them all."""

from collections.abc import Mapping, Sequence

from slipstream.planning.group import Group, Member
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice

MASTER_PORT = 29501
WATCH_PORT = 29502
# The planner saw one machine only; whoever names the members has seen the others.
_SEEN_NOW = "nodes"


def spread_plan(
    plan: LaunchPlan,
    name: str,
    members: Sequence[Member],
    *,
    secret_file: str,
    variables: Sequence[Mapping[str, Choice[str]]] = (),
    master_port: int = MASTER_PORT,
    watch_port: int = WATCH_PORT,
) -> tuple[LaunchPlan, ...]:
    """Return a plan for each member, in the order of their ranks; the first one answers.

    The plan is best made with `--tensor-parallel-size` and `--nnodes` for all of them, so that its
    memory is a shard's. `variables` are added to those of each member, in the same order.
    """
    plan = plan.model_copy(
        update={
            name: tuple(fault for fault in getattr(plan, name) if fault.code != _SEEN_NOW)
            for name in ("warnings", "refusals")
        }
    )
    count, head = len(members), members[0]
    shared = f"one engine over {count} machines"
    settings = plan.settings
    sizes = (settings.tensor_parallel, settings.pipeline_parallel, settings.data_parallel)
    if sizes == (None, None, None):
        shards = Choice(count, "hardware", f"a shard of each layer on each of {count} machines")
        plan = plan.change(tensor_parallel=shards)
    plan = plan.change(
        nodes=Choice(count, "hardware", shared),
        master_address=Choice(head.address, "hardware", f"{head.name} on the link between them"),
        master_port=Choice(
            master_port, "default", "where the ranks connect; only they may reach it"
        ),
        executor=Choice("mp", "default", "vLLM's own executor over machines, without Ray"),
    )
    group = Group(
        name=name,
        rank=0,
        members=tuple(members),
        watch_port=watch_port,
        secret_file=secret_file,
    )
    ranks = (group.model_copy(update={"rank": rank}) for rank in range(count))
    added = variables or [{} for _ in members]
    return tuple(
        _make_rank(plan, rank).change_variables(one) for rank, one in zip(ranks, added, strict=True)
    )


def _make_rank(plan: LaunchPlan, group: Group) -> LaunchPlan:
    rank, own = group.rank, group.own
    role = (
        "this machine is the head and serves the API"
        if rank == 0
        else f"{group.members[0].name} is the head"
    )
    plan = plan.change(node_rank=Choice(rank, "hardware", role))
    if group.is_follower:
        headless = Choice(True, "default", f"only {group.members[0].name} serves the API")
        plan = plan.change(headless=headless, host=None, port=None, uds=None, middleware=None)
    because = "its address on the link; vLLM would take that of the default route"
    named: dict[str, Choice[str]] = {"VLLM_HOST_IP": Choice(own.address, "hardware", because)}
    if own.interface is not None:
        because = "the link; otherwise the ranks look for each other on loopback"
        named["GLOO_SOCKET_IFNAME"] = Choice(own.interface, "hardware", because)
    return plan.model_copy(update={"group": group}).change_variables(named)
