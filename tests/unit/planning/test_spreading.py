"""One plan becomes one for each machine of a group."""

import pytest
from pydantic import ValidationError

from slipstream.checkpoints.pairing import Fault
from slipstream.planning.group import Group, Member
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.planning.spreading import spread_plan
from tests.unit.planning.bare_plans import bare_plan

MEMBERS = (
    Member(name="spark-1", address="10.0.0.1", interface="enp1s0f0np0"),
    Member(name="spark-2", address="10.0.0.2", interface="enp1s0f1np1"),
)


def spread(*words: str, refusals: tuple[Fault, ...] = ()) -> tuple[LaunchPlan, ...]:
    plan = bare_plan("--host", "10.0.0.1", "--port", "8000", *words, refusals=refusals)
    return spread_plan(plan, "a", MEMBERS, secret_file="~/a.key", master_port=29600)


def test_every_rank_knows_the_head_and_only_the_head_answers() -> None:
    head, follower = spread()
    shared = "--tensor-parallel-size 2 --nnodes 2"
    meeting = "--master-addr 10.0.0.1 --master-port 29600"
    for rank, plan in enumerate((head, follower)):
        command = " ".join(plan.argv())
        assert f"{shared} --node-rank {rank} {meeting}" in command
        assert "--distributed-executor-backend mp" in command
        assert plan.group is not None
        assert (plan.group.rank, plan.group.own) == (rank, MEMBERS[rank])
    assert "api_server" in " ".join(head.argv())
    assert "--headless" not in head.argv()
    assert "--host 10.0.0.1 --port 8000" in " ".join(head.argv())
    assert follower.argv()[-1] == "--headless"
    assert "--host" not in follower.argv()


def test_variables_are_each_machines_own() -> None:
    plan = bare_plan(environment={"SHARED": "1"})
    hca = [{"NCCL_IB_HCA": Choice(one, "hardware", "the port")} for one in ("roce0", "roce1")]
    plans = spread_plan(plan, "a", MEMBERS, secret_file="~/a.key", variables=hca)
    names = ("SHARED", "VLLM_HOST_IP", "GLOO_SOCKET_IFNAME", "NCCL_IB_HCA")
    assert [[plan.environment[name].value for name in names] for plan in plans] == [
        ["1", "10.0.0.1", "enp1s0f0np0", "roce0"],
        ["1", "10.0.0.2", "enp1s0f1np1", "roce1"],
    ]


def test_sizes_that_were_asked_for_stay_and_seen_machines_are_no_fault() -> None:
    unseen = Fault(code="nodes", verdict="refuse", message="has no active link", hint="probe")
    other = Fault(code="memory", verdict="refuse", message="does not fit", hint="less")
    for flag in ("--pipeline-parallel-size", "--data-parallel-size"):
        head, _ = spread(flag, "2", refusals=(unseen, other))
        assert head.settings.tensor_parallel is None
        assert head.refusals == (other,)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"rank": 2}, "rank 2 of 2 machines"),
        ({"members": (MEMBERS[0], MEMBERS[0])}, "the same address"),
        ({"members": MEMBERS[:1]}, "at least 2"),
        ({"watch_port": 0}, "greater than or equal to 1"),
        ({"name": "../a"}, "a name has"),
    ],
)
def test_a_group_that_cannot_be_is_refused(change: dict[str, object], fault: str) -> None:
    whole = {"name": "a", "rank": 1, "members": MEMBERS, "watch_port": 1, "secret_file": "s"}
    assert Group.model_validate(whole).is_follower
    with pytest.raises(ValidationError, match=fault):
        Group.model_validate({**whole, **change})


@pytest.mark.parametrize("field", ["name", "address", "interface"])
def test_what_a_member_is_called_becomes_no_other_words(field: str) -> None:
    whole = {"name": "spark-1", "address": "10.0.0.1", "interface": "eth0"}
    with pytest.raises(ValidationError):
        Member.model_validate({**whole, field: "eth0 --trust-remote-code"})
