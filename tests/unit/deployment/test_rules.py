"""What a deployment takes from its plan, and what a pod cannot serve."""

from functools import partial

import pytest
from pydantic import ValidationError

from slipstream.deployment.deployment import Deployment, DeploymentOptions
from slipstream.deployment.pod_group import Resolve, make_rank_plan, name_pods
from slipstream.deployment.rules import GIB, make_deployment, name_release
from slipstream.errors import InvalidInputError
from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.serving.supervision.engine_life import START_WITHIN_SECONDS
from tests.unit.deployment.plans import CASES, find_plan
from tests.unit.planning.bare_plans import bare_plan


def deploy(case: str, **options: object) -> Deployment:
    return make_deployment(find_plan(case), DeploymentOptions.model_validate(options))


def test_each_machine_gets_an_accelerator_of_the_planned_kind() -> None:
    deployment, group = deploy("gpu"), deploy("group")
    assert (deployment.machines.value, deployment.gpus.value) == (1, 1)
    assert (group.machines.value, group.gpus.value) == (2, 1)
    assert deployment.nodes is not None
    assert deployment.nodes.value == {
        "nvidia.com/gpu.compute.major": "12",
        "nvidia.com/gpu.compute.minor": "1",
    }


@pytest.mark.parametrize(
    ("words", "gpus"),
    [(("-tp", "4"), 4), (("-tp", "2", "-pp", "2"), 4), (("-tp", "8", "--nnodes", "2"), 4)],
)
def test_accelerators_follow_the_parallel_sizes(words: tuple[str, ...], gpus: int) -> None:
    plan = bare_plan(*words).model_copy(update={"capability": "9.0"})
    assert make_deployment(plan, DeploymentOptions()).gpus.value == gpus


def test_a_cpu_gets_processors_and_folders_are_mounted_where_the_plan_has_them() -> None:
    deployment = deploy("cpu")
    assert deployment.gpus.value == 0
    assert deployment.nodes is None
    assert deployment.processors.value > 1
    assert deployment.memory_bytes.value == find_plan("cpu").memory.usable_bytes
    assert (deployment.source.value, deployment.weights_path) == ("folder", "/models")
    assert deployment.storage_bytes is None


def test_what_holds_on_the_planners_machine_only_is_left_out() -> None:
    here = {"VLLM_CPU_OMP_THREADS_BIND": "0-2,4", "LD_PRELOAD": "/opt/lib.so", "OTHER": "1"}
    plan = bare_plan(environment=here)
    deployment = make_deployment(plan, DeploymentOptions())
    assert deployment.left_out is not None
    assert set(deployment.left_out.value) == {"VLLM_CPU_OMP_THREADS_BIND", "LD_PRELOAD"}
    assert deployment.plan.environment.keys() == {"OTHER"}
    assert deployment.processors.value == 5


def test_the_start_budget_follows_weights_and_compilation() -> None:
    spark = find_plan("gpu")
    eager = make_deployment(spark, DeploymentOptions()).start_seconds
    compiled = make_deployment(spark.change(eager=None), DeploymentOptions()).start_seconds
    # Twice the 9.5 and 18 minutes that were measured, with a little more weights.
    assert 2 * 9.5 * 60 <= eager.value <= 2 * 12 * 60
    assert compiled.value - eager.value == pytest.approx(2 * 510, abs=60)
    # Of unknown weights it is the supervisor's own limit.
    assert deploy("group").start_seconds.value == START_WITHIN_SECONDS


def test_a_volume_takes_two_sets_of_weights() -> None:
    storage = deploy("gpu").storage_bytes
    assert storage is not None
    assert storage.value == 64 * GIB
    items = find_plan("gpu").memory.items
    heavy = tuple(one.model_copy(update={"size_bytes": 60 * GIB}) for one in items[:1])
    memory = find_plan("gpu").memory.model_copy(update={"items": heavy})
    plan = find_plan("gpu").model_copy(update={"memory": memory})
    larger = make_deployment(plan, DeploymentOptions()).storage_bytes
    assert larger is not None
    assert larger.value == 256 * GIB


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (bare_plan(target="/a/target", drafter="/b/drafter"), "no folder in common"),
        (bare_plan(target="/models/$(x)/target"), "no folder in common"),
        (bare_plan(target="/models/target", drafter="z-lab/drafter"), "the other a hub name"),
        (bare_plan("--uds", "/run/x"), "Unix socket"),
        (bare_plan("--ssl-certfile", "/c.pem"), "certificate"),
    ],
)
def test_what_no_pod_and_no_volume_has_is_refused(plan: LaunchPlan, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make_deployment(plan, DeploymentOptions())


def test_an_unpinned_commit_and_image_are_warned_of() -> None:
    warnings = " ".join(deploy("gpu").warnings)
    assert "no commit is pinned" in warnings
    assert "no digest" in warnings
    pinned = find_plan("gpu")
    commit = Choice("a" * 40, "user", "asked for")
    assert pinned.speculation is not None
    pinned = pinned.change(
        revision=commit, speculation=pinned.speculation.model_copy(update={"revision": commit})
    )
    options = DeploymentOptions(image=f"example.org/slipstream:1@sha256:{'b' * 64}")
    assert make_deployment(pinned, options).warnings == ()


@pytest.mark.parametrize(
    ("served", "name"),
    [
        ("Qwen/Qwen3.5-27B", "qwen3-5-27b"),
        ("/models/target", "target"),
        ("owner/7B_chat", "model-7b-chat"),
        ("owner/" + "x" * 60, "x" * 40),
        ("owner/---", "model"),
    ],
)
def test_a_release_is_named_after_its_model(served: str, name: str) -> None:
    assert name_release(bare_plan(target=served)) == name


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Model"},
        {"name": "a" * 41},
        {"fleet": "a b"},
        {"group": "a\nb: c"},
        {"image": "slipstream"},
        {"image": "slipstream:latest"},
        {"image": "slipstream:1 --privileged"},
        {"image": "slipstream:1@sha256:abc"},
    ],
)
def test_names_that_a_cluster_does_not_take_are_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        DeploymentOptions.model_validate(wrong)


def test_more_replicas_than_the_most_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="less than"):
        deploy("gpu", replicas=4, highest_replicas=2)


ADDRESSES = {"model-0.model.llm": "10.1.0.4", "model-0-1.model.llm": "10.1.0.5"}


def make_ranks(resolve: Resolve = ADDRESSES.__getitem__) -> list[LaunchPlan]:
    make = partial(make_rank_plan, find_plan("group"), head="model-0.model.llm", resolve=resolve)
    return [make(rank, interface="eth0", secret_file="/run/secret") for rank in (0, 1)]


def test_each_rank_has_its_place_and_only_the_first_listens() -> None:
    for rank, plan in enumerate(make_ranks()):
        line = " ".join(plan.argv())
        assert f"--node-rank {rank}" in line
        assert "--master-addr 10.1.0.4" in line
        assert ("--headless" in line) == (rank == 1)
        assert plan.environment["VLLM_HOST_IP"].value == [*ADDRESSES.values()][rank]
        assert plan.environment["GLOO_SOCKET_IFNAME"].value == "eth0"


def test_a_rank_waits_until_the_names_of_the_others_are_known() -> None:
    waited = list[float]()

    def resolve(name: str) -> str:
        if len(waited) < 3:
            raise OSError(-2, "Name or service not known")
        return ADDRESSES[name]

    make = partial(make_rank_plan, find_plan("group"), interface=None, secret_file="/s")
    make = partial(make, resolve=resolve, sleep=waited.append)
    plan = make(1, "model-0.model.llm")
    assert len(waited) == 3
    assert plan.group is not None
    assert [one.address for one in plan.group.members] == [*ADDRESSES.values()]
    waited.clear()
    with pytest.raises(InvalidInputError, match="has no address yet"):
        make(1, "x", within_seconds=4.0)


def test_a_rank_that_the_plan_does_not_have_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no rank 2"):
        make_rank_plan(find_plan("group"), 2, "head", interface=None, secret_file="/s")
    assert name_pods("m-3.m.ns", 3) == ("m-3.m.ns", "m-3-1.m.ns", "m-3-2.m.ns")


@pytest.mark.parametrize("case", CASES)
def test_a_deployment_loads_back_and_every_reason_can_be_printed_on_a_line(case: str) -> None:
    deployment = deploy(case, highest_replicas=3)
    assert Deployment.model_validate_json(deployment.to_json()) == deployment
    reasons = dict(deployment.list_reasons())
    assert {"plan", "model", "machines", "gpus", "start", "scaling"} <= reasons.keys()
    assert all("\n" not in text for text in reasons.values())
