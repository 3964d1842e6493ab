"""The same deployment for other stacks, and what each of them cannot carry.

A stack that takes a pod gets the chart's own, as helm rendered it: there is no second description
of a pod. Read in their repositories: KServe's v1alpha2 types and presets (2026-08), the chart
llm-d-modelservice 0.4.12, production-stack's chart 0.1.12.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from slipstream.deployment.deployment import Deployment
from slipstream.deployment.hazards import Pod, list_pods
from slipstream.deployment.manifests import dump
from slipstream.engines.arguments import render_arguments
from slipstream.planning.settings import SPECULATION

Objects = list[dict[str, Any]]

# Arguments that its values have fields for, or that it sets itself.
_PRODUCTION_STACKS_OWN = {
    *("--model", "--host", "--port", "--max-model-len", "--max-num-seqs", "--dtype"),
    *("--tensor-parallel-size", "--gpu-memory-utilization", "--revision"),
    *("--enable-prefix-caching", "--nnodes", "--node-rank"),
}
_NOT_OF_A_POD = (
    "the NetworkPolicy, PodDisruptionBudget and ServiceMonitor: take them from --raw",
    "scaling by our queue, batch and goodput",
    "which replicas draft and which do not: every replica gets the same plan",
)


class Translation(NamedTuple):
    """Another stack's file, and what of the deployment is not in it."""

    text: str
    missing: tuple[str, ...]


def translate(stack: str, deployment: Deployment, manifests: Objects) -> Translation:
    """Return the deployment in another stack's form."""
    document, missing = STACKS[stack](deployment, manifests)
    head = [f"# The plan of {deployment.name}, for {stack}. It cannot carry:"]
    head += [f"# - {line}" for line in missing]
    return Translation("\n".join([*head, dump(document)]), missing)


Parts = tuple[dict[str, Any], tuple[str, ...]]


def _write_kserve(deployment: Deployment, manifests: Objects) -> Parts:
    """Write an LLMInferenceService: its template is a whole pod."""
    pods = _find_pods(manifests)
    settings = deployment.plan.settings
    spec: dict[str, Any] = {
        "model": {
            "uri": _name_uri(deployment),
            "name": settings.list_served_names()[0],
        },
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
        "the drafter: spec.model has one model, so it is in our init container and plan only",
        "scoring of replicas by queue and cache: its scheduler sends /metrics no key (not tried), "
        "so this asks for a route only",
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
            "parallelism": {
                "tensor": deployment.gpus.value or 1,
                "workers": machines,
            },
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


def _write_production_stack(deployment: Deployment, manifests: Objects) -> Parts:
    """Write values of production-stack, whose command is `vllm serve` and cannot be another."""
    pod = _find_pods(manifests)[0]
    start = {"httpGet": {"path": "/health", "port": deployment.port.value}, "periodSeconds": 10}
    start["failureThreshold"] = -(-deployment.start_seconds.value // 10)
    document = {
        "servingEngineSpec": {
            "containerPort": deployment.port.value,
            "startupProbe": start,
            "securityContext": pod.spec["securityContext"],
            "containerSecurityContext": {
                **pod.spec["containers"][0]["securityContext"],
                # vLLM's image writes below its home.
                "readOnlyRootFilesystem": False,
            },
            "vllmApiKey": {"secretName": f"{deployment.name}-vllm-key", "secretKey": "key"},
            "modelSpec": [_describe_production_model(deployment, pod)],
        }
    }
    return document, _list_losses_of_production_stack(deployment)


def _describe_production_model(deployment: Deployment, pod: Pod) -> dict[str, Any]:
    settings = deployment.plan.settings
    typed = {
        "maxModelLen": settings.context,
        "maxNumSeqs": settings.sequences,
        "dtype": settings.dtype,
        "tensorParallelSize": settings.tensor_parallel,
        "gpuMemoryUtilization": settings.memory_utilization,
        "enablePrefixCaching": settings.prefix_caching,
    }
    # Its chart turns the prefix cache off where nothing is said, and vLLM turns it on.
    config: dict[str, Any] = {"enablePrefixCaching": True}
    config |= {name: choice.value for name, choice in typed.items() if choice}
    arguments = settings.list_arguments().items()
    config["extraArgs"] = render_arguments(
        {flag: value for flag, value in arguments if flag not in _PRODUCTION_STACKS_OWN}
    )
    terms = [
        {"key": key, "operator": "In", "values": [value]}
        for key, value in (deployment.nodes.value.items() if deployment.nodes else ())
    ]
    model: dict[str, Any] = {
        "name": deployment.name,
        "repository": "vllm/vllm-openai",
        "tag": f"v{deployment.plan.engine_version}",
        "modelURL": settings.model.value,
        "replicaCount": deployment.replicas.value,
        "requestCPU": deployment.processors.value,
        "requestMemory": pod.spec["containers"][0]["resources"]["requests"]["memory"],
        "requestGPU": deployment.gpus.value,
        "vllmConfig": config,
        "env": [{"name": one.flag, "value": one.value} for one in deployment.plan.variables],
        "nodeSelectorTerms": [{"matchExpressions": terms}] if deployment.nodes else [],
    }
    if settings.revision is not None:
        model["modelRevision"] = settings.revision.value
    if deployment.storage_bytes is not None:
        model["pvcStorage"] = f"{deployment.storage_bytes.value >> 30}Gi"
    return model


def _list_losses_of_production_stack(deployment: Deployment) -> tuple[str, ...]:
    losses = [
        "the gate: no scopes, limits, shares or access log, and /metrics and other routes are open",
        "the supervisor: no proof before readiness, no watch for hangs, no step down after crashes",
        "/livez and /readyz: /health stays 200 while an engine hangs or drains",
        "a drain: its pods have neither a preStop nor a grace period",
        "steering of the draft length, the ledger and what scales by them",
        "the lock of the weights: vLLM fetches by itself, and the drafter without a revision"
        if deployment.plan.speculation
        else "the lock of the weights: vLLM fetches by itself",
        "a NetworkPolicy, and topology spread",
    ]
    if deployment.plan.patches:
        losses.append(f"our patches of vLLM: {', '.join(deployment.plan.patches)}")
    if deployment.machines.value > 1:
        losses.append("several machines without Ray, which copies the driver's environment")
    if SPECULATION in deployment.plan.settings.list_arguments():
        losses.append("which replicas draft and which do not, other than as two entries by hand")
    return tuple(losses)


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
    "production-stack": _write_production_stack,
}
