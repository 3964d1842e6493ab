"""`scripts/apply-to-kubernetes` chooses what a server knows; no server is started here."""

import runpy
from types import SimpleNamespace
from typing import Any

from tests.unit.deploy.test_container import REPOSITORY
from tests.unit.deployment.plans import find_kind, read

script: Any = SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "apply-to-kubernetes")))
BUDGET = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
MONITOR = {"apiVersion": "monitoring.coreos.com/v1", "kind": "ServiceMonitor"}


def test_a_kind_without_a_definition_is_left_out() -> None:
    known = {("policy/v1", "PodDisruptionBudget")}
    assert script.choose_known([BUDGET, MONITOR], known) == ([BUDGET], [MONITOR])


def test_a_groups_pods_are_named_as_its_controller_names_them() -> None:
    pods = list(script.make_group_pods(find_kind(read("group"), "LeaderWorkerSet")))
    roles = {pod["metadata"]["name"]: pod["metadata"]["labels"]["slipstream/role"] for pod in pods}
    assert roles == {"model-0": "leader", "model-0-1": "worker", "model-1": "leader"}


def test_the_nodes_are_those_that_the_manifests_select() -> None:
    pod = find_kind(read("gpu"), "Deployment")["spec"]["template"]["spec"]
    labels, capacity = script.NODES["spark-1"]
    assert pod["nodeSelector"].items() <= labels.items()
    assert "nvidia.com/gpu" in capacity
