"""The same deployment for other stacks, and what each of them cannot carry.

A stack that takes a pod gets the chart's own, as helm rendered it: there is no second description
of a pod. Read in their repositories: KServe's v1alpha2 types and presets (2026-08), the chart
llm-d-modelservice 0.4.12.
"""

from collections.abc import Callable
from typing import Any

from slipstream.deployment.deployment import Deployment
from slipstream.deployment.hazards import Pod, list_pods
from slipstream.deployment.manifests import dump

Objects = list[dict[str, Any]]
Parts = tuple[dict[str, Any], tuple[str, ...]]
_NOT_OF_A_POD = (
    "the NetworkPolicy, PodDisruptionBudget and ServiceMonitor: take them from --raw",
    "scaling by slipstream's queue, batch and goodput",
    "replicas with and without drafts: every replica gets the same plan",
)


def translate(
    stack: str, deployment: Deployment, manifests: Objects
) -> tuple[str, tuple[str, ...]]:
    """Return another stack's file, and what of the deployment is not in it."""
    document, missing = STACKS[stack](deployment, manifests)
    head = [f"# The plan of {deployment.name}, for {stack}. Not supported there:"]
    head += [f"# - {line}" for line in missing]
    return "\n".join([*head, dump(document)]), missing


def _write_kserve(deployment: Deployment, manifests: Objects) -> Parts:
    """Write an LLMInferenceService: its template is a whole pod."""
    pods = _find_pods(manifests)
    settings = deployment.plan.settings
    spec: dict[str, Any] = {
        "model": {"uri": _name_uri(deployment), "name": settings.list_served_names()[0]},
        # Its own initializer knows one model and no lock; our init container has both.
        "storageInitializer": {"enabled": False},
        "replicas": deployment.replicas.value,
        "labels": dict(pods[0].labels),
        "annotations": {f"slipstream/{name}": text for name, text in deployment.list_reasons()},
        "router": {"route": {}, "gateway": {}},
        "template": _rename_engine(pods[0]),
    }
    if settings.tensor_parallel is not None:
        spec["parallelism"] = {"tensor": settings.tensor_parallel.value}
    if len(pods) > 1:
        spec["worker"] = _rename_engine(pods[1])
    document = {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": deployment.name},
        "spec": spec,
    }
    missing = (
        *_NOT_OF_A_POD,
        "the drafter: spec.model has one model; slipstream's init container and plan have it",
        "scoring of replicas by queue and cache: its scheduler sends no key to /metrics (not "
        "tried), so only a route is requested",
    )
    return document, missing


def _write_llm_d(deployment: Deployment, manifests: Objects) -> Parts:
    """Write values of llm-d-modelservice: its containers take most of ours as they are."""
    pods = _find_pods(manifests)
    engine = pods[0].spec["containers"][0]
    probes = ("startupProbe", "livenessProbe", "readinessProbe")
    kept = ("name", "image", "imagePullPolicy", "env", "ports", "volumeMounts", *probes)
    container = {name: engine[name] for name in kept if name in engine}
    container |= {
        "modelCommand": "custom",
        "command": ["slipstream"],
        "args": engine["args"],
        "resources": engine["resources"],
        "mountModelVolume": False,
        "extraConfig": {
            name: engine[name] for name in ("securityContext", "lifecycle") if name in engine
        },
    }
    shared = ("automountServiceAccountToken", "securityContext", "topologySpreadConstraints")
    machines = deployment.machines.value
    tensor = deployment.plan.settings.tensor_parallel
    document = {
        "fullnameOverride": deployment.name,
        "modelArtifacts": {
            "name": deployment.plan.settings.list_served_names()[0],
            "uri": _name_uri(deployment),
            "labels": {"llm-d.ai/inference-serving": "true", **pods[0].labels},
        },
        "multinode": machines > 1,
        "routing": {"servicePort": deployment.port.value, "proxy": {"enabled": False}},
        "accelerator": {"type": "nvidia" if deployment.gpus.value else "cpu"},
        "decode": {
            "replicas": deployment.replicas.value,
            "parallelism": {"tensor": deployment.gpus.value or 1, "workers": machines},
            "nodeSelector": pods[0].spec.get("nodeSelector", {}),
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": pods[0].spec["terminationGracePeriodSeconds"],
            "initContainers": pods[0].spec["initContainers"],
            "containers": [container],
            "volumes": pods[0].spec["volumes"],
            "extraConfig": {name: pods[0].spec[name] for name in shared},
        },
        "prefill": {"create": False},
    }
    missing = [
        *_NOT_OF_A_POD,
        "scoring of replicas by queue and cache: its endpoint picker sends no key to /metrics "
        "(not tried)",
        "prefill apart from decode: a drafter reads the target's hidden states in one engine",
    ]
    if machines > 1 and tensor is not None:
        missing.append(
            f"an engine of {tensor.value} ranks as one: leader and workers have the same container"
        )
    return document, tuple(missing)


def _find_pods(manifests: Objects) -> list[Pod]:
    return [pod for document in manifests for pod in list_pods(document)]


def _rename_engine(pod: Pod) -> dict[str, Any]:
    """Return a pod's specification; KServe knows the engine by the name `main`."""
    engine, *others = pod.spec["containers"]
    return {**pod.spec, "containers": [{**engine, "name": "main"}, *others]}


def _name_uri(deployment: Deployment) -> str:
    model = deployment.plan.settings.model.value
    if deployment.source.value == "hub":
        return f"hf://{model}"
    return f"pvc://{deployment.name}-weights{model.removeprefix(deployment.weights_path)}"


STACKS: dict[str, Callable[[Deployment, Objects], Parts]] = {
    "kserve": _write_kserve,
    "llm-d": _write_llm_d,
}
