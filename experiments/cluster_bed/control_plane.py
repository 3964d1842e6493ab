"""Kubernetes' control plane on this machine: etcd, API server, controllers and scheduler.

There is no kubelet: nothing runs a pod. All processes end with the one that started them.
"""

import json
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx

T = TypeVar("T")

PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
READY_WITHIN_SECONDS = 120.0
_STOP_WITHIN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane that runs: its version, its API and a kubectl for it."""

    version: str
    kubeconfig: Path
    client: httpx.Client

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Run kubectl, with a text as its standard input; return what it prints."""
        command = ["kubectl", f"--kubeconfig={self.kubeconfig}", *words]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"kubectl {' '.join(words)}: {done.stderr.strip()[:2000]}")
        return done.stdout

    def get(self, *words: str) -> Any:
        """Return objects as kubectl reads them."""
        return json.loads(self.kubectl("get", "--output=json", *words))

    def request(self, method: str, path: str, body: Any = None, kind: str = "json") -> Any:
        """Send a request to the API; `kind` is how a patch is merged."""
        content = None if body is None else json.dumps(body)
        headers = {"content-type": f"application/{kind}"}
        answer = self.client.request(method, path, content=content, headers=headers)
        answer.raise_for_status()
        return answer.json()


def wait_for(what: str, look: Callable[[], T | None], within: float = 60.0) -> T:
    """Return what a look finds, once it finds something."""
    end = time.monotonic() + within
    while time.monotonic() < end:
        if (found := look()) is not None:
            return found
        time.sleep(0.5)
    raise TimeoutError(f"{what}: not within {within:.0f} s")


def find_program(name: str, binaries: Path) -> str:
    """Return a program of the folder or of this machine, or say that it is missing."""
    found = shutil.which(name, path=str(binaries)) or shutil.which(name)
    if found is None:
        raise FileNotFoundError(name)
    return found


@contextmanager
def run_control_plane(binaries: Path, folder: Path) -> Iterator[ControlPlane]:
    """Start a control plane with its data, keys and logs in a folder; stop it at the end."""
    version = _read_version(find_program(PROGRAMS[0], binaries))
    token, key = secrets.token_hex(16), folder / "accounts.key"
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, capture_output=True)
    client_port, peer_port, port, *others = _find_ports(5)
    etcd, address = f"http://127.0.0.1:{client_port}", f"https://127.0.0.1:{port}"
    kubeconfig = _write_kubeconfig(folder, address, token)
    with ExitStack() as stack:

        def start(name: str, *words: str) -> None:
            command = [find_program(name, binaries), *words]
            stack.enter_context(_run_process(command, folder / f"{name}.log"))

        peer = f"http://127.0.0.1:{peer_port}"
        start(
            "etcd",
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        start(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            # Other machines would use it; the API server wants one that is not a loopback's.
            "--advertise-address=192.0.2.1",
            f"--secure-port={port}",
            f"--cert-dir={folder}",
            f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
        )
        client = stack.enter_context(
            httpx.Client(
                base_url=address,
                headers={"authorization": f"Bearer {token}"},
                verify=False,
                trust_env=False,
                timeout=30,
            )
        )
        wait_for("the API server", lambda: _is_ready(client), READY_WITHIN_SECONDS)
        common = [f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--bind-address=127.0.0.1"]
        common.append(f"--cert-dir={folder}")
        accounts = f"--service-account-private-key-file={key}"
        start(PROGRAMS[1], *common, f"--secure-port={others[0]}", accounts)
        start(PROGRAMS[2], *common, f"--secure-port={others[1]}")
        plane = ControlPlane(version, kubeconfig, client)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_for("the controllers", lambda: client.get(account).is_success or None)
        yield plane


def _read_version(program: str) -> str:
    told = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    return told.stdout.strip().rpartition(" v")[2]


def _find_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _write_kubeconfig(folder: Path, address: str, token: str) -> Path:
    """Write JSON, which is YAML, for kubectl, helm, the controllers and the scheduler."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "c", "cluster": {"server": address, "insecure-skip-tls-verify": True}}
        ],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path


@contextmanager
def _run_process(command: Sequence[str], log: Path) -> Iterator[None]:
    # The kernel ends it if this process is killed.
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=output, stderr=output
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(_STOP_WITHIN_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _is_ready(client: httpx.Client) -> bool | None:
    try:
        return client.get("/readyz").is_success or None
    except httpx.TransportError:
        return None
