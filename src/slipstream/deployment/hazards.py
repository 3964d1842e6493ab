"""What is unsafe in manifests, ours or anybody's: pods, and what stands around them.

Rules look at objects as they would be applied, so that it does not matter how they were made: a
chart's values, an overlay, an edit by hand.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from slipstream.checkpoints.pairing import Fault
from slipstream.errors import InvalidInputError
from slipstream.records import Record

# Drain, the engine's grace and the supervisor's last records (serving/systemd.py).
AFTER_DRAIN_SECONDS = 45
_VOLUMES = {
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_SECRET = re.compile(r"(?i)(key|token|secret|password|credential)")
_NOT_SECRET = re.compile(r"(?i)(path|file|_keys)$")
_SECRET_FLAGS = ("--api-key", "--hf-token")

Object = Mapping[str, Any]


class Pod(NamedTuple):
    """A pod template, and the object that it is of."""

    where: str
    labels: Mapping[str, str]
    spec: Object


def list_pods(document: Object) -> Iterator[Pod]:
    kind, spec = document["kind"], document.get("spec") or {}
    name = f"{kind}/{document.get('metadata', {}).get('name')}"
    if kind == "LeaderWorkerSet":
        group = spec["leaderWorkerTemplate"]
        parts = {"leader": group.get("leaderTemplate"), "worker": group["workerTemplate"]}
        templates = {f"{name} {role}": part for role, part in parts.items() if part}
    elif kind == "LLMInferenceService":
        parts = {name: spec["template"], f"{name} worker": spec.get("worker")}
        labels = {"labels": spec.get("labels")}
        templates = {
            where: {"spec": part, "metadata": labels} for where, part in parts.items() if part
        }
    elif kind == "Pod":
        templates = {name: document}
    else:
        job = (spec.get("jobTemplate") or {}).get("spec") or {}  # a CronJob's
        template = spec.get("template") or job.get("template")
        templates = {name: template} if template else {}
    for where, template in templates.items():
        labels = (template.get("metadata") or {}).get("labels") or {}
        yield Pod(where, labels, template["spec"])


def make_hazard(code: str, where: str, message: str, hint: str) -> Fault:
    """Return something unsafe, with the setting that makes it safe."""
    return Fault(code=code, verdict="refuse", message=f"{where}: {message}", hint=hint)


def _list_containers(pod: Pod) -> Iterator[tuple[str, Object]]:
    for part in ("initContainers", "containers"):
        for container in pod.spec.get(part) or ():
            yield f"{pod.where}, container {container['name']}", container


def _check_confinement(pod: Pod) -> Iterator[Fault]:
    """Hold a pod against the restricted profile of Kubernetes' Pod Security Standards."""
    shared = pod.spec.get("securityContext") or {}
    for where, container in _list_containers(pod):
        own = container.get("securityContext") or {}
        both = {**shared, **own}
        seccomp = (both.get("seccompProfile") or {}).get("type")
        capabilities = own.get("capabilities") or {}
        wrong = {
            "privileged": own.get("privileged"),
            "privilege-escalation": own.get("allowPrivilegeEscalation") is not False,
            "root": both.get("runAsNonRoot") is not True or both.get("runAsUser") == 0,
            "writable-root": own.get("readOnlyRootFilesystem") is not True,
            "capabilities": capabilities.get("drop") != ["ALL"] or capabilities.get("add"),
            "seccomp": seccomp not in ("RuntimeDefault", "Localhost"),
        }
        for code, is_wrong in wrong.items():
            if is_wrong:
                message, hint = _UNCONFINED[code]
                yield make_hazard(code, where, message, f"securityContext.{hint}")
        if any(port.get("hostPort") for port in container.get("ports") or ()):
            yield make_hazard("host-port", where, "it uses a port of the node", "remove hostPort")


_UNCONFINED = {
    "privileged": ("it is privileged", "privileged: false"),
    "privilege-escalation": ("it may gain privileges", "allowPrivilegeEscalation: false"),
    "root": ("it may run as root", "runAsNonRoot: true, runAsUser: 2000"),
    "writable-root": ("its program files can be overwritten", "readOnlyRootFilesystem: true"),
    "capabilities": ("it keeps capabilities", "capabilities.drop: [ALL]"),
    "seccomp": ("it may make every system call", "seccompProfile.type: RuntimeDefault"),
}


def _check_node(pod: Pod) -> Iterator[Fault]:
    """Keep a pod off the node's own network, processes, files and account."""
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.spec.get(field):
            yield make_hazard("host-namespace", pod.where, f"{field} is set", f"remove {field}")
    for volume in pod.spec.get("volumes") or ():
        if kinds := volume.keys() - _VOLUMES - {"name"}:
            message = f"volume {volume['name']} is a {', '.join(sorted(kinds))}"
            yield make_hazard("host-volume", pod.where, message, "a persistentVolumeClaim")
    if pod.spec.get("automountServiceAccountToken") is not False:
        message = "it gets a token for the cluster's API"
        yield make_hazard("api-token", pod.where, message, "automountServiceAccountToken: false")
    if pod.spec.get("enableServiceLinks") is not False:
        message = "Services set variables in it, such as VLLM_PORT"
        yield make_hazard("service-links", pod.where, message, "enableServiceLinks: false")


def _check_probes(pod: Pod) -> Iterator[Fault]:
    """Have a pod that listens probed, by what the gate answers."""
    paths = {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    for container in pod.spec["containers"]:
        if not container.get("ports"):
            continue
        where = f"{pod.where}, container {container['name']}"
        for name, path in paths.items():
            probe = container.get(name) or {}
            code = name.replace("Probe", "-probe")
            if (probe.get("httpGet") or {}).get("path") != path:
                message = f"its {name} does not request {path}"
                yield make_hazard(code, where, message, f"{name}.httpGet.path: {path}")
        startup = container.get("startupProbe") or {}
        liveness = container.get("livenessProbe") or {}
        if _count_patience(liveness) < _count_patience(startup):
            message = "the liveness probe ends an engine that its supervisor is restarting"
            hint = "livenessProbe.failureThreshold: as long as the start may take"
            yield make_hazard("liveness-patience", where, message, hint)


def _count_patience(probe: Object) -> int:
    return int(probe.get("periodSeconds", 10)) * int(probe.get("failureThreshold", 3))


def _check_stop(pod: Pod) -> Iterator[Fault]:
    """Leave a pod the time to drain after the cluster has stopped sending requests."""
    grace = pod.spec.get("terminationGracePeriodSeconds", 30)
    for container in pod.spec["containers"]:
        where = f"{pod.where}, container {container['name']}"
        stop = ((container.get("lifecycle") or {}).get("preStop") or {}).get("exec") or {}
        command = stop.get("command") or []
        wait = int(command[1]) if command[:1] == ["sleep"] and len(command) == 2 else None
        if wait is None:
            message = "it drains while requests still arrive"
            yield make_hazard("pre-stop", where, message, 'lifecycle.preStop.exec: [sleep, "10"]')
        words = container.get("args") or []
        drain = int(words[words.index("--drain") + 1]) if "--drain" in words else 30
        # A worker waits while its leader drains, and has nothing to drain itself.
        after = (wait or 0) + (drain if container.get("ports") else 0)
        if grace < after + AFTER_DRAIN_SECONDS:
            message = f"it is killed after {grace} s, in the middle of a drain of {drain} s"
            hint = f"terminationGracePeriodSeconds: {after + AFTER_DRAIN_SECONDS}"
            yield make_hazard("grace-period", where, message, hint)


def _check_secrets(pod: Pod) -> Iterator[Fault]:
    """Keep keys out of variables and arguments, which many may read."""
    for where, container in _list_containers(pod):
        for variable in container.get("env") or ():
            name = variable["name"]
            named = _SECRET.search(name) and not _NOT_SECRET.search(name)
            if named and variable.get("value"):
                message = f"{name} is in the manifest"
                yield make_hazard("clear-secret", where, message, "a Secret, mounted as a file")
        words = [*(container.get("command") or ()), *(container.get("args") or ())]
        for flag in _SECRET_FLAGS:
            if any(word == flag or word.startswith(f"{flag}=") for word in words):
                message = f"{flag} is in its arguments"
                yield make_hazard("clear-secret", where, message, "a Secret, mounted as a file")


def _check_weights(pod: Pod) -> Iterator[Fault]:
    """Have the weights checked before the engine starts, which may not change them."""
    prepared = [
        container
        for container in pod.spec.get("initContainers") or ()
        if (container.get("args") or [])[:2] == ["deploy", "prepare"]
    ]
    if not prepared:
        message = "nothing checks the weights against their lock"
        hint = "an init container: slipstream deploy prepare PLAN"
        yield make_hazard("weights-unchecked", pod.where, message, hint)
    claims = {
        volume["name"]
        for volume in pod.spec.get("volumes") or ()
        if "persistentVolumeClaim" in volume
    }
    for container in pod.spec["containers"]:
        for mount in container.get("volumeMounts") or ():
            if mount["name"] in claims and mount.get("readOnly") is not True:
                where = f"{pod.where}, container {container['name']}"
                message = f"it can change what {mount['name']} holds, for every replica"
                yield make_hazard(
                    "weights-writable", where, message, "volumeMounts[].readOnly: true"
                )


def _check_image(pod: Pod) -> Iterator[Fault]:
    for where, container in _list_containers(pod):
        tag = container["image"].partition("@")[0].rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest") and "@" not in container["image"]:
            message = f"{container['image']} may be another image at every pull"
            yield make_hazard("moving-image", where, message, "image: REPOSITORY:TAG@sha256:...")


POD_CHECKS: tuple[Callable[[Pod], Iterator[Fault]], ...] = (
    _check_confinement,
    _check_node,
    _check_probes,
    _check_stop,
    _check_secrets,
    _check_weights,
    _check_image,
)


class HazardList(Record):
    schema_version: Literal[1] = 1
    objects: int
    pods: int
    hazards: tuple[Fault, ...]


def examine(documents: list[dict[str, Any]]) -> HazardList:
    try:
        return HazardList(
            objects=len(documents),
            pods=sum(1 for document in documents for _ in list_pods(document)),
            hazards=find_hazards(documents),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise InvalidInputError(
            f"the objects are not valid Kubernetes objects: {fault!r}"[:300],
            hint="kubectl apply --dry-run=server, with the same file, names the field",
        ) from fault


def find_hazards(documents: list[dict[str, Any]]) -> tuple[Fault, ...]:
    pods = [pod for document in documents for pod in list_pods(document)]
    found = [fault for pod in pods for check in POD_CHECKS for fault in check(pod)]
    found += [fault for pod in pods for fault in _check_surroundings(pod, documents)]
    found += [fault for one in documents for fault in _check_object(one)]
    return tuple(dict.fromkeys(found))


def _selects(selector: Object | None, pod: Pod) -> bool:
    wanted = (selector or {}).get("matchLabels") or {}
    return wanted.items() <= pod.labels.items()


def _check_surroundings(pod: Pod, documents: list[dict[str, Any]]) -> Iterator[Fault]:
    """Have every pod within a network policy of both directions, and a disruption budget."""
    policies = [
        one["spec"]
        for one in documents
        if one["kind"] == "NetworkPolicy" and _selects(one["spec"].get("podSelector"), pod)
    ]
    for direction in ("Ingress", "Egress"):
        if not any(direction in (policy.get("policyTypes") or ()) for policy in policies):
            message = f"no NetworkPolicy restricts its {direction.lower()}"
            hint = f"a NetworkPolicy with policyTypes: [{direction}]"
            yield make_hazard(f"open-{direction.lower()}", pod.where, message, hint)
    budgets = [one for one in documents if one["kind"] == "PodDisruptionBudget"]
    if not any(_selects(one["spec"].get("selector"), pod) for one in budgets):
        message = "a drain of nodes may evict all replicas together"
        yield make_hazard(
            "no-budget", pod.where, message, "a PodDisruptionBudget, maxUnavailable: 1"
        )


def _check_object(document: Object) -> Iterator[Fault]:
    kind, spec = document["kind"], document.get("spec") or {}
    where = f"{kind}/{document.get('metadata', {}).get('name')}"
    if kind == "NetworkPolicy":
        yield from _check_policy(where, spec)
    if kind == "PodDisruptionBudget" and spec.get("maxUnavailable") in (None, 0, "0%"):
        message = "it may block every drain of a node"
        yield make_hazard("blocking-budget", where, message, "maxUnavailable: 1")
    if kind == "Service" and spec.get("type", "ClusterIP") != "ClusterIP":
        message = f"{spec['type']} exposes the port outside the cluster, without TLS"
        yield make_hazard(
            "open-service", where, message, "type: ClusterIP, behind an ingress with TLS"
        )
    if kind == "Secret" and (document.get("data") or document.get("stringData")):
        message = "its content is in the manifest"
        yield make_hazard("clear-secret", where, message, "kubectl create secret generic")
    if kind == "LeaderWorkerSet":
        policy = spec["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
        if policy != "RecreateGroupOnPodRestart":
            message = "a rank that restarts finds the others in an engine that has ended"
            hint = "restartPolicy: RecreateGroupOnPodRestart"
            yield make_hazard("split-group", where, message, hint)
    if kind == "ServiceMonitor":
        for endpoint in spec.get("endpoints") or ():
            if "bearerTokenFile" in endpoint or not endpoint.get("authorization"):
                message = "the gate serves metrics only with a key"
                yield make_hazard("no-metrics-key", where, message, "endpoints[].authorization")


def _check_policy(where: str, spec: Object) -> Iterator[Fault]:
    members = {"podSelector": spec.get("podSelector")}
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction) or ():
            peers = rule.get(side)
            everybody = not peers or any(_is_everybody(peer, direction) for peer in peers)
            if everybody:
                message = f"a rule of its {direction} has no restriction"
                yield make_hazard(
                    f"open-{direction}", where, message, f"{side}: labels of the members"
                )
            # Ranks listen at ports of their choice, without a password.
            others = [peer for peer in peers or () if peer != members]
            if direction == "ingress" and others and not rule.get("ports"):
                message = "the ports of the engine's ranks are open to non-members"
                yield make_hazard("open-ranks", where, message, "a rule for the members only")


def _is_everybody(peer: Object, direction: str) -> bool:
    if not peer:
        return True
    block = peer.get("ipBlock") or {}
    if str(block.get("cidr", "")).endswith("/0"):
        return direction == "ingress" or not block.get("except")
    return peer.get("namespaceSelector") == {}
