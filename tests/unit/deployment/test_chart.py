"""The chart through helm itself: three shapes, hostile values, an upgrade and the way back."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from slipstream.deployment.deployment import DeploymentOptions
from slipstream.deployment.hazards import find_hazards, list_pods
from slipstream.deployment.manifests import CHART, read_manifests, render_manifests, render_values
from slipstream.deployment.rules import make_deployment
from slipstream.errors import InvalidInputError
from slipstream.planning import LaunchPlan
from slipstream.serving.service.systemd import count_stop_seconds
from slipstream.serving.supervision.engine_process import GRACE_SECONDS
from tests.unit.deployment.plans import CASES, find_kind, find_plan, read, render, write_values

pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None, reason="no helm: scripts/bootstrap installs it"
)
REPOSITORY = Path(__file__).parents[3]
SCALED = {"replicas": 2, "highest_replicas": 6, "drain_seconds": 300}


def find_pod(case: str, **options: Any) -> dict[str, Any]:
    documents = read(case, **options)
    if case == "group":
        group = find_kind(documents, "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
        return group["leaderTemplate"]["spec"]  # type: ignore[no-any-return]
    return find_kind(documents, "Deployment")["spec"]["template"]["spec"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", ["gpu", "group"])
def test_helm_finds_nothing_wrong_with_the_chart(case: str, tmp_path: Path) -> None:
    assert (REPOSITORY / "deploy" / "helm" / "slipstream").resolve() == CHART.resolve()
    (tmp_path / "values.yaml").write_text(write_values(case, highest_replicas=4))
    command = ["helm", "lint", "--strict", str(CHART), "--values", str(tmp_path / "values.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("case", ["gpu", "group"])
def test_every_field_is_one_that_kubernetes_knows(case: str) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    objects = [one for one in read(case) if "." not in one["apiVersion"].rpartition("/")[0]]
    objects += [one for one in read(case) if one["kind"] == "NetworkPolicy"]
    for pod in (pod for one in read(case) for pod in list_pods(one)):
        metadata = {"name": "pod", "labels": dict(pod.labels)}
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod.spec})
    assert len(objects) >= 8
    for one in objects:
        kubernetes_validate.validate(one, "1.33", strict=True)
    (engine,) = objects[-1]["spec"]["containers"]
    wrong = {**objects[-1], "spec": {"containers": [{**engine, "readynessProbe": {}}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, "1.33", strict=True)


@pytest.mark.parametrize("case", CASES)
def test_the_kinds_are_those_of_the_plan(case: str) -> None:
    kinds = {document["kind"] for document in read(case)}
    always = {"ConfigMap", "ServiceAccount", "Service", "PodDisruptionBudget"}
    always |= {"NetworkPolicy", "ServiceMonitor"}
    workload = "LeaderWorkerSet" if case == "group" else "Deployment"
    claim = set() if case == "cpu" else {"PersistentVolumeClaim"}
    assert kinds == always | {workload} | claim


@pytest.mark.parametrize("case", CASES)
def test_nothing_unsafe_is_found_in_what_we_write(case: str) -> None:
    assert find_hazards(read(case)) == ()
    assert case not in ("gpu", "group") or find_hazards(read(case, **SCALED)) == ()


@pytest.mark.parametrize("case", CASES)
def test_the_plan_in_the_pod_is_the_plan(case: str) -> None:
    config = find_kind(read(case), "ConfigMap")
    deployed = make_deployment(find_plan(case), DeploymentOptions()).plan
    assert LaunchPlan.model_validate_json(config["data"]["plan.json"]) == deployed
    volumes = {volume["name"]: volume for volume in find_pod(case)["volumes"]}
    assert volumes["plan"]["configMap"]["name"] == config["metadata"]["name"]


def test_objects_say_which_decisions_they_come_from() -> None:
    reasons = dict(make_deployment(find_plan("gpu"), DeploymentOptions()).list_reasons())
    documents = read("gpu")
    workload = find_kind(documents, "Deployment")["metadata"]["annotations"]
    for name in ("model", "drafter", "machines", "gpus", "memory", "start", "drain", "nodes"):
        assert workload[f"slipstream/{name}"] == reasons[name]
    for kind, name in (
        ("ConfigMap", "plan"),
        ("PersistentVolumeClaim", "storage"),
        ("Service", "served"),
        ("PodDisruptionBudget", "replicas"),
        ("NetworkPolicy", "source"),
    ):
        annotations = find_kind(documents, kind)["metadata"]["annotations"]
        assert annotations[f"slipstream/{name}"] == reasons[name]


@pytest.mark.parametrize("case", CASES)
def test_probes_wait_for_as_long_as_the_plan_says(case: str) -> None:
    deployment = make_deployment(find_plan(case), DeploymentOptions())
    (engine,) = find_pod(case)["containers"]
    startup, liveness = engine["startupProbe"], engine["livenessProbe"]
    budget = startup["periodSeconds"] * startup["failureThreshold"]
    assert 0 <= budget - deployment.start_seconds.value < 10
    assert liveness["periodSeconds"] * liveness["failureThreshold"] >= budget
    assert engine["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_a_stop_leaves_time_for_everything_that_a_supervisor_does() -> None:
    for drain, options in ((30, {}), (300, SCALED)):
        pod = find_pod("gpu", **options)
        (engine,) = pod["containers"]
        wait = int(engine["lifecycle"]["preStop"]["exec"]["command"][1])
        assert pod["terminationGracePeriodSeconds"] == wait + count_stop_seconds(drain)
        assert engine["args"][-2:] == ["--drain", str(drain)]
    assert count_stop_seconds(0) > GRACE_SECONDS


def test_a_worker_outlives_the_drain_of_its_leader() -> None:
    group = find_kind(read("group"), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"]
    waits = {}
    for role in ("leader", "worker"):
        (engine,) = group[f"{role}Template"]["spec"]["containers"]
        waits[role] = int(engine["lifecycle"]["preStop"]["exec"]["command"][1])
        assert ("ports" in engine) == ("readinessProbe" in engine) == (role == "leader")
    assert waits["worker"] == waits["leader"] + 30
    assert group["size"] == 2
    assert group["restartPolicy"] == "RecreateGroupOnPodRestart"


def test_requests_go_to_pods_that_listen_and_ranks_are_open_to_members_only() -> None:
    for case, role in (("gpu", "alone"), ("group", "leader")):
        selector = find_kind(read(case), "Service")["spec"]["selector"]
        assert selector["slipstream/role"] == role
    policy = find_kind(read("group"), "NetworkPolicy")["spec"]
    members = {"podSelector": policy["podSelector"]}
    unbounded = [rule for rule in policy["ingress"] if "ports" not in rule]
    assert [rule["from"] for rule in unbounded] == [[members]]
    alone = find_kind(read("gpu"), "NetworkPolicy")["spec"]["ingress"]
    assert all("ports" in rule for rule in alone)


def test_nothing_leaves_a_pod_that_fetches_nothing() -> None:
    def list_blocks(case: str) -> list[Any]:
        rules = find_kind(read(case), "NetworkPolicy")["spec"]["egress"]
        return [peer for rule in rules for peer in rule["to"] if "ipBlock" in peer]

    assert list_blocks("cpu") == []
    assert [peer["ipBlock"]["cidr"] for peer in list_blocks("gpu")] == ["0.0.0.0/0", "::/0"]
    assert "169.254.0.0/16" in list_blocks("gpu")[0]["ipBlock"]["except"]


def test_a_volume_that_has_all_closes_the_way_out_and_a_token_is_a_file() -> None:
    values = yaml.safe_load(write_values("gpu"))
    values["weights"] |= {"fetch": False, "tokenSecret": "hub"}
    documents = read_manifests(render_manifests("model", "llm", yaml.safe_dump(values)), "")
    assert find_hazards(documents) == ()
    assert "ipBlock" not in str(find_kind(documents, "NetworkPolicy"))
    pod = find_kind(documents, "Deployment")["spec"]["template"]["spec"]
    (init,), (engine,) = pod["initContainers"], pod["containers"]
    variables = {one["name"]: one["value"] for one in init["env"]}
    assert variables["HF_HUB_OFFLINE"] == "1"
    assert variables["HF_TOKEN_PATH"] == "/run/secrets/hub/token"
    mounts = [{one["name"] for one in part["volumeMounts"]} for part in (init, engine)]
    assert ["hub-token" in names for names in mounts] == [True, False]
    assert ["keys" in names for names in mounts] == [False, True]


def test_resources_are_the_plans() -> None:
    (engine,) = find_pod("gpu")["containers"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert "memory" not in engine["resources"]["limits"]
    (engine,) = find_pod("cpu")["containers"]
    assert "nvidia.com/gpu" not in engine["resources"]["limits"]
    assert find_pod("gpu")["nodeSelector"]["nvidia.com/gpu.compute.major"] == "12"
    assert find_pod("gpu")["containers"][0]["image"] == "slipstream:cuda"


def test_scaling_asks_for_our_series_and_starts_one_at_a_time() -> None:
    scaled = find_kind(read("gpu", **SCALED), "ScaledObject")["spec"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 6)
    triggers = {one["name"]: one["metadata"] for one in scaled["triggers"]}
    assert triggers.keys() == {"queue", "batch", "goodput"}
    assert triggers["batch"]["threshold"] == "12"
    assert 'release="model", namespace="llm"' in triggers["queue"]["query"]
    behavior = scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior["scaleUp"]["policies"] == [{"type": "Pods", "value": 1, "periodSeconds": 1320}]
    plain = find_kind(read("plain", highest_replicas=6), "ScaledObject")["spec"]
    assert [one["name"] for one in plain["triggers"]] == ["queue", "batch"]
    assert "replicas" not in find_kind(read("gpu", **SCALED), "Deployment")["spec"]


def list_differences(before: Any, after: Any, at: str = "") -> set[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        keys = before.keys() | after.keys()
        found = (list_differences(before.get(k), after.get(k), f"{at}.{k}") for k in keys)
        return set().union(*found)
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        found = (list_differences(one, two, f"{at}[{n}]") for n, (one, two) in enumerate(pairs))
        return set().union(*found)
    return set() if before == after else {at}


def test_an_upgrade_changes_the_plan_and_its_pods_and_nothing_that_cannot_change() -> None:
    old, new = ({one["kind"]: one for one in read(case)} for case in ("plain", "gpu"))
    assert old.keys() == new.keys()
    changed = {kind: list_differences(old[kind], new[kind]) for kind in old}
    assert changed["Service"] == changed["ServiceAccount"] == set()
    assert changed["PodDisruptionBudget"] == changed["ServiceMonitor"] == set()
    assert changed["PersistentVolumeClaim"] <= {".metadata.annotations.slipstream/storage"}
    assert ".metadata.name" in changed["ConfigMap"]
    # The way back is the way there.
    assert render_manifests("model", "llm", write_values("plain")) == render("plain")
    template = ".spec.template.spec"
    assert f"{template}.volumes[0].configMap.name" in changed["Deployment"]
    may = (template, ".metadata.annotations", ".spec.progressDeadlineSeconds")
    assert [path for path in changed["Deployment"] if not path.startswith(may)] == []


HOSTILE = "x\n---\nkind: Secret\n# {{ .Values.plan }} \" ' $(touch /tmp/x) \x07 \u2028"


def test_a_hostile_plan_stays_a_text() -> None:
    plan = find_plan("gpu")
    faults = tuple(
        one.model_copy(update={"message": HOSTILE}) for one in find_plan("group").warnings
    )
    model = plan.settings.model.__class__(plan.settings.model.value, "user", HOSTILE)
    plan = plan.change(model=model).model_copy(update={"machine": HOSTILE, "warnings": faults})
    deployment = make_deployment(plan, DeploymentOptions())
    values = render_values(deployment)
    assert yaml.safe_load(values).keys() == yaml.safe_load(write_values("gpu")).keys()
    documents = read_manifests(render_manifests("model", "llm", values), "")
    assert [one["kind"] for one in documents] == [one["kind"] for one in read("gpu")]
    config = find_kind(documents, "ConfigMap")
    assert LaunchPlan.model_validate_json(config["data"]["plan.json"]) == deployment.plan
    assert HOSTILE in config["metadata"]["annotations"]["slipstream/plan"]


REFUSED = """
plan: ""
network: {clients: [{}, {ipBlock: {cidr: 0.0.0.0/0}}, {namespaceSelector: {}}]}
image: {tag: latest}
keys: {value: secret}
securityContext: {privileged: true}
hostNetwork: true
startSeconds: 5
podLabels: {slipstream/role: leader}
weights: {path: "/x: y"}
fleet: "a: b"
"""


def refuse(change: str, case: str = "gpu") -> str:
    values = yaml.safe_load(write_values(case))
    for key, part in yaml.safe_load(change).items():
        values[key] = {**values.get(key, {}), **part} if isinstance(part, dict) else part
    with pytest.raises(InvalidInputError) as caught:
        render_manifests("model", "llm", yaml.safe_dump(values))
    return "\n".join(caught.value.details)


def test_values_that_would_open_something_are_refused_by_helm() -> None:
    complaints = refuse(REFUSED)
    for named in (
        *("plan", "network.clients.0", "network.clients.1.ipBlock.cidr", "image.tag"),
        *("network.clients.2.namespaceSelector", "startSeconds", "podLabels", "weights.path"),
        *("fleet", "Additional property value", "Additional property securityContext"),
        "Additional property hostNetwork",
    ):
        assert named in complaints
    # Nobody in the list would be everybody.
    assert "network.clients" in refuse("network: {clients: []}")
    # A folder of models needs its claim.
    assert "values.weights.claim" in refuse("weights: {claim: null}", "cpu")
