"""The chart's values for a deployment, as a file that says why each is what it is."""

from typing import Any

import yaml

from slipstream.deployment.deployment import Deployment

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
    """Return what the chart's templates are filled with."""
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
    """Write the values file of a deployment."""
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
    """Write YAML in the order of its keys."""
    options = {"sort_keys": False, "allow_unicode": False, "width": 10_000}
    return str(yaml.dump(document, Dumper=_Dumper, **options))


def _shorten(text: str) -> str:
    return text if len(text) <= _MOST_LETTERS else f"{text[: _MOST_LETTERS - 3]}..."


def _comment(text: str) -> str:
    """Keep a reason in its comment: a line break in it would begin a value."""
    shown = "".join(letter if letter.isprintable() else " " for letter in _shorten(text))
    return " ".join(shown.split())
