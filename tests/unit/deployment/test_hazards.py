"""Every safety setting of what we write, taken away or turned round, is found."""

import inspect
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import yaml

from slipstream.deployment import hazards
from slipstream.deployment.hazards import examine, find_hazards
from slipstream.deployment.manifests import read_manifests
from tests.unit.deployment.plans import find_kind, read

pytestmark = pytest.mark.skipif(
    shutil.which("helm") is None, reason="no helm: scripts/bootstrap installs it"
)
GONE = object()
POD = ("Deployment", "spec", "template", "spec")
ENGINE = (*POD, "containers", 0)
INIT = (*POD, "initContainers", 0)
LEADER = ("LeaderWorkerSet", "spec", "leaderWorkerTemplate", "leaderTemplate", "spec")
POLICY = ("NetworkPolicy", "spec")
CONFINED = "securityContext"

Path = tuple[str | int, ...]
# Where, what it becomes, and the hazard that is found then.
MUTATIONS: list[tuple[Path, Any, str]] = [
    ((*ENGINE, "readinessProbe"), GONE, "readiness-probe"),
    ((*ENGINE, "readinessProbe", "httpGet", "path"), "/health", "readiness-probe"),
    ((*ENGINE, "livenessProbe"), GONE, "liveness-probe"),
    ((*ENGINE, "startupProbe"), GONE, "startup-probe"),
    ((*ENGINE, "livenessProbe", "failureThreshold"), 3, "liveness-patience"),
    ((*ENGINE, "lifecycle"), GONE, "pre-stop"),
    ((*ENGINE, "lifecycle", "preStop", "exec", "command"), ["true"], "pre-stop"),
    ((*POD, "terminationGracePeriodSeconds"), 30, "grace-period"),
    ((*POD, "terminationGracePeriodSeconds"), GONE, "grace-period"),
    ((*ENGINE, "args"), ["serve", "plan.json", "--drain", "300"], "grace-period"),
    ((*ENGINE, CONFINED, "privileged"), True, "privileged"),
    ((*INIT, CONFINED, "privileged"), True, "privileged"),
    ((*ENGINE, CONFINED, "allowPrivilegeEscalation"), GONE, "privilege-escalation"),
    ((*INIT, CONFINED, "allowPrivilegeEscalation"), GONE, "privilege-escalation"),
    ((*ENGINE, CONFINED, "readOnlyRootFilesystem"), GONE, "writable-root"),
    ((*INIT, CONFINED, "readOnlyRootFilesystem"), GONE, "writable-root"),
    ((*ENGINE, CONFINED, "capabilities"), GONE, "capabilities"),
    ((*INIT, CONFINED, "capabilities", "drop"), GONE, "capabilities"),
    ((*ENGINE, CONFINED, "capabilities", "add"), ["SYS_ADMIN"], "capabilities"),
    ((*ENGINE, CONFINED, "runAsUser"), 0, "root"),
    ((*ENGINE, CONFINED, "runAsNonRoot"), False, "root"),
    ((*ENGINE, CONFINED, "seccompProfile", "type"), "Unconfined", "seccomp"),
    ((*ENGINE, CONFINED), GONE, "privilege-escalation"),
    ((*ENGINE, "ports", 0, "hostPort"), 8000, "host-port"),
    ((*POD, "hostNetwork"), True, "host-namespace"),
    ((*POD, "hostPID"), True, "host-namespace"),
    ((*POD, "hostIPC"), True, "host-namespace"),
    ((*POD, "volumes", 0), {"name": "plan", "hostPath": {"path": "/"}}, "host-volume"),
    ((*POD, "automountServiceAccountToken"), GONE, "api-token"),
    ((*POD, "enableServiceLinks"), GONE, "service-links"),
    ((*ENGINE, "env", 0), {"name": "VLLM_API_KEY", "value": "sk-1"}, "clear-secret"),
    ((*INIT, "env", 0), {"name": "HF_TOKEN", "value": "hf_1"}, "clear-secret"),
    ((*ENGINE, "args", 0), "--api-key=sk-1", "clear-secret"),
    (("ConfigMap", "kind"), "Secret", "clear-secret"),
    ((*POD, "initContainers"), [], "weights-unchecked"),
    ((*INIT, "args", 1), "check", "weights-unchecked"),
    ((*ENGINE, "volumeMounts", 1, "readOnly"), GONE, "weights-writable"),
    ((*ENGINE, "image"), "slipstream:latest", "moving-image"),
    ((*ENGINE, "image"), "registry:5000/slipstream", "moving-image"),
    (("NetworkPolicy", "kind"), "ConfigMap", "open-ingress"),
    ((*POLICY, "podSelector", "matchLabels", "app.kubernetes.io/instance"), "x", "open-ingress"),
    ((*POLICY, "policyTypes"), ["Ingress"], "open-egress"),
    ((*POLICY, "ingress", 0, "from"), GONE, "open-ingress"),
    ((*POLICY, "ingress", 0, "from"), [], "open-ingress"),
    ((*POLICY, "ingress", 0, "from", 0), {"ipBlock": {"cidr": "0.0.0.0/0"}}, "open-ingress"),
    ((*POLICY, "ingress", 0, "from", 0), {"namespaceSelector": {}}, "open-ingress"),
    ((*POLICY, "ingress", 0, "ports"), GONE, "open-ranks"),
    ((*POLICY, "egress", 0, "to"), GONE, "open-egress"),
    ((*POLICY, "egress", 1, "to", 0, "ipBlock", "except"), GONE, "open-egress"),
    (("PodDisruptionBudget", "kind"), "ConfigMap", "no-budget"),
    (("PodDisruptionBudget", "spec", "maxUnavailable"), 0, "blocking-budget"),
    (("Service", "spec", "type"), "LoadBalancer", "open-service"),
    (("ServiceMonitor", "spec", "endpoints", 0, "authorization"), GONE, "no-metrics-key"),
]
GROUP_MUTATIONS: list[tuple[Path, Any, str]] = [
    ((*LEADER[:3], "restartPolicy"), "None", "split-group"),
    ((*LEADER, "containers", 0, "readinessProbe"), GONE, "readiness-probe"),
    ((*LEADER, "hostNetwork"), True, "host-namespace"),
    ((*LEADER[:3], "workerTemplate", "spec", "hostNetwork"), True, "host-namespace"),
    ((*LEADER[:3], "workerTemplate", "spec", "terminationGracePeriodSeconds"), 30, "grace-period"),
    ((*POLICY, "ingress", 1, "from"), [{"namespaceSelector": {}}], "open-ingress"),
    ((*POLICY, "ingress", 1, "from"), [{"podSelector": {}}], "open-ranks"),
    ((*POLICY, "ingress", 1, "from", 0, "podSelector", "matchLabels"), {"app": "x"}, "open-ranks"),
]


def mutate(documents: list[dict[str, Any]], path: Path, value: Any) -> list[dict[str, Any]]:
    changed = deepcopy(documents)
    kind, *steps = path
    at: Any = find_kind(changed, str(kind))
    for step in steps[:-1]:
        at = at[step]
    if value is GONE:
        del at[steps[-1]]
    else:
        at[steps[-1]] = value
    return changed


@pytest.mark.parametrize(
    ("case", "path", "value", "code"),
    [*(("gpu", *one) for one in MUTATIONS), *(("group", *one) for one in GROUP_MUTATIONS)],
)
def test_a_safety_setting_that_is_gone_is_found(
    case: str, path: Path, value: Any, code: str
) -> None:
    found = find_hazards(mutate(read(case), path, value))
    assert code in {hazard.code for hazard in found}
    assert all(hazard.hint for hazard in found)


def test_every_hazard_is_shown_by_a_mutation() -> None:
    source = inspect.getsource(hazards)
    named = set(re.findall(r'make_hazard\(\s*"([a-z-]+)"', source))
    assert len(named) > 10
    assert named <= {code for _, _, code in (*MUTATIONS, *GROUP_MUTATIONS)}


def wrap_service(pod: dict[str, Any]) -> dict[str, Any]:
    spec = {"labels": pod["metadata"]["labels"], "template": pod["spec"]}
    return {"kind": "LLMInferenceService", "metadata": {"name": "model"}, "spec": spec}


@pytest.mark.parametrize(
    "wrap",
    [
        lambda pod: {"kind": "Pod", **pod},
        lambda pod: {"kind": "StatefulSet", "spec": {"template": pod}},
        lambda pod: {"kind": "CronJob", "spec": {"jobTemplate": {"spec": {"template": pod}}}},
        lambda pod: {"kind": "List", "items": [{"kind": "Pod", **pod}]},
        wrap_service,
    ],
)
def test_pods_of_every_kind_are_looked_at(wrap: Callable[[dict[str, Any]], Any]) -> None:
    pod = find_kind(read("gpu"), "Deployment")["spec"]["template"]
    around = [one for one in read("gpu") if one["kind"] != "Deployment"]
    changed = {**pod, "spec": {**pod["spec"], "hostPID": True}}
    found = examine(read_manifests(yaml.safe_dump_all([wrap(changed), *around]), ""))
    assert (found.pods, [hazard.code for hazard in found.hazards]) == (1, ["host-namespace"])
