"""What is unsafe in manifests, ours or anybody's: pods, and what stands around them.

Rules look at objects as they would be applied, so that it does not matter how they were made: a
chart's values, an overlay, an edit by hand.
"""

from collections.abc import Iterator
from typing import Any, Literal

from slipstream.checkpoints.pairing import Fault
from slipstream.deployment.pod_hazards import POD_CHECKS, Object, Pod, list_pods, make_hazard
from slipstream.errors import InvalidInputError
from slipstream.records import Record


class HazardList(Record):
    """The hazards of some objects together."""

    schema_version: Literal[1] = 1
    objects: int
    pods: int
    hazards: tuple[Fault, ...]


def examine(documents: list[dict[str, Any]]) -> HazardList:
    """Return what is unsafe in these objects, and how much was looked at."""
    try:
        return HazardList(
            objects=len(documents),
            pods=sum(1 for document in documents for _ in list_pods(document)),
            hazards=find_hazards(documents),
        )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as fault:
        raise InvalidInputError(
            f"the objects are not in the form that Kubernetes takes: {fault!r}"[:300],
            hint="kubectl apply --dry-run=server, with the same file, names the field",
        ) from fault


def find_hazards(documents: list[dict[str, Any]]) -> tuple[Fault, ...]:
    """List what is unsafe in these objects together."""
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
            message = f"no NetworkPolicy bounds its {direction.lower()}"
            hint = f"a NetworkPolicy with policyTypes: [{direction}]"
            yield make_hazard(f"open-{direction.lower()}", pod.where, message, hint)
    budgets = [one for one in documents if one["kind"] == "PodDisruptionBudget"]
    if not any(_selects(one["spec"].get("selector"), pod) for one in budgets):
        message = "a drain of nodes may take all replicas together"
        yield make_hazard(
            "no-budget", pod.where, message, "a PodDisruptionBudget, maxUnavailable: 1"
        )


def _check_object(document: Object) -> Iterator[Fault]:
    kind, spec = document["kind"], document.get("spec") or {}
    where = f"{kind}/{document.get('metadata', {}).get('name')}"
    if kind == "NetworkPolicy":
        yield from _check_policy(where, spec)
    if kind == "PodDisruptionBudget" and spec.get("maxUnavailable") in (None, 0, "0%"):
        message = "it may hold up every drain of a node"
        yield make_hazard("blocking-budget", where, message, "maxUnavailable: 1")
    if kind == "Service" and spec.get("type", "ClusterIP") != "ClusterIP":
        message = f"{spec['type']} opens the port outside of the cluster, without TLS"
        yield make_hazard(
            "open-service", where, message, "type: ClusterIP, behind an ingress with TLS"
        )
    if kind == "Secret" and (document.get("data") or document.get("stringData")):
        message = "its content stands in the manifest"
        yield make_hazard("clear-secret", where, message, "kubectl create secret generic")
    if kind == "LeaderWorkerSet":
        policy = spec["leaderWorkerTemplate"].get("restartPolicy", "RecreateGroupOnPodRestart")
        if policy != "RecreateGroupOnPodRestart":
            message = "a rank that starts anew finds the others in an engine that is gone"
            hint = "restartPolicy: RecreateGroupOnPodRestart"
            yield make_hazard("split-group", where, message, hint)
    if kind == "ServiceMonitor":
        for endpoint in spec.get("endpoints") or ():
            if "bearerTokenFile" in endpoint or not endpoint.get("authorization"):
                message = "the gate answers metrics only to a key"
                yield make_hazard("no-metrics-key", where, message, "endpoints[].authorization")


def _check_policy(where: str, spec: Object) -> Iterator[Fault]:
    """Find rules that let everybody in, or out to everywhere."""
    members = {"podSelector": spec.get("podSelector")}
    for direction, side in (("ingress", "from"), ("egress", "to")):
        for rule in spec.get(direction) or ():
            peers = rule.get(side)
            everybody = not peers or any(_is_everybody(peer, direction) for peer in peers)
            if everybody:
                message = f"a rule of its {direction} has no bounds"
                yield make_hazard(
                    f"open-{direction}", where, message, f"{side}: labels of the members"
                )
            # Ranks listen at ports of their choice, without a password.
            strangers = [peer for peer in peers or () if peer != members]
            if direction == "ingress" and strangers and not rule.get("ports"):
                message = "the ports of the engine's ranks are open to others than its members"
                yield make_hazard("open-ranks", where, message, "a rule for the members alone")


def _is_everybody(peer: Object, direction: str) -> bool:
    if not peer:
        return True
    block = peer.get("ipBlock") or {}
    if str(block.get("cidr", "")).endswith("/0"):
        return direction == "ingress" or not block.get("except")
    return peer.get("namespaceSelector") == {}
