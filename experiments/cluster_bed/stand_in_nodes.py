"""Nodes without machines: objects whose lease and status are kept as a kubelet keeps them.

Their pods run nothing. A pod that is deleted is reported gone; with `starting`, one that is bound
is reported running and ready.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx

from experiments.cluster_bed.control_plane import ControlPlane

BEAT_SECONDS = 1.0
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
MERGE = "merge-patch+json"
STRATEGIC = "strategic-merge-patch+json"


@dataclass(slots=True)
class StandInNodes:
    """Nodes by name with their labels and what they have, kept Ready by a thread."""

    plane: ControlPlane
    nodes: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]]
    starting: bool = False
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "StandInNodes":
        for name, (labels, capacity) in self.nodes.items():
            self._register(name, labels, capacity)
        self._thread = threading.Thread(target=self._run, name="stand-in-nodes")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread:
            self._thread.join()

    def _register(self, name: str, labels: Mapping[str, str], capacity: Mapping[str, str]) -> None:
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}}
        self.plane.request("POST", "/api/v1/nodes", {"metadata": metadata})
        resources = {"pods": "110", **capacity}
        status = {"capacity": resources, "allocatable": resources}
        self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": _write_time()}
        self.plane.request("POST", LEASES, {"metadata": {"name": name}, "spec": spec})

    def _run(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            try:
                self._beat()
            except httpx.HTTPError as fault:
                # A pod may be gone between the look and the report; the next beat sees it.
                if not isinstance(fault, httpx.HTTPStatusError):
                    return

    def _beat(self) -> None:
        for name in self.nodes:
            lease = {"spec": {"renewTime": _write_time()}}
            self.plane.request("PATCH", f"{LEASES}/{name}", lease, MERGE)
            status = {"status": {"conditions": [_make_condition("Ready", "lastHeartbeatTime")]}}
            self.plane.request("PATCH", f"/api/v1/nodes/{name}/status", status, STRATEGIC)
        for pod in self.plane.request("GET", "/api/v1/pods")["items"]:
            if pod["spec"].get("nodeName") in self.nodes:
                self._report(pod)

    def _report(self, pod: dict[str, Any]) -> None:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self.plane.request("DELETE", f"{path}?gracePeriodSeconds=0")
        elif self.starting and pod["status"]["phase"] == "Pending":
            address = f"10.1.0.{1 + int(metadata['uid'][:2], 16) % 250}"
            kinds = ("Initialized", "ContainersReady", "Ready")
            status = {
                "phase": "Running",
                "conditions": [_make_condition(kind) for kind in kinds],
                "podIP": address,
                "podIPs": [{"ip": address}],
            }
            self.plane.request("PATCH", f"{path}/status", {"status": status}, STRATEGIC)


def _make_condition(kind: str, time_field: str = "lastTransitionTime") -> dict[str, str]:
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"type": kind, "status": "True", "reason": "StandIn", time_field: now}


def _write_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
