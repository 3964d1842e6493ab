"""`Deployment`: what a cluster has to know of a plan, each figure with its source and reason."""

import re
from collections.abc import Iterator
from typing import Literal

from pydantic import ValidationInfo, field_validator

from slipstream.planning.plan import LaunchPlan
from slipstream.planning.settings import Choice
from slipstream.records import Record

# A release's name is a label and the beginning of other names.
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_IMAGE = re.compile(
    r"(?P<repository>[a-z0-9](?:[a-z0-9._/-]|:\d+/)*)"
    r":(?!latest(?:@|$))(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})"
    r"(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_FORMS = {
    "name": (_NAME, "1 to 40 of a-z, 0-9 and -, from a letter on"),
    **dict.fromkeys(
        ("fleet", "group"), (_LABEL, "a label: 1 to 63 of A-Z, a-z, 0-9, '-', '_', '.'")
    ),
    "image": (_IMAGE, "REPOSITORY:TAG or REPOSITORY:TAG@sha256:..."),
}


class Image(Record):
    """A container image; the digest is empty if only a tag names it."""

    repository: str
    tag: str
    digest: str = ""


class DeploymentOptions(Record):
    """What the user asks of a deployment; None is 'decide for me'."""

    name: str | None = None
    image: str = "slipstream:cuda"
    replicas: int = 1
    highest_replicas: int | None = None
    drain_seconds: int | None = None
    fleet: str = "default"
    group: str = "default"

    @field_validator("name", "fleet", "group", "image")
    @classmethod
    def _require_form(cls, text: str | None, info: ValidationInfo) -> str | None:
        form, what = _FORMS[info.field_name or ""]
        if text is not None and not form.fullmatch(text):
            raise ValueError(f"'{text}' is not {what}")
        return text

    def read_image(self) -> Image:
        found = _IMAGE.fullmatch(self.image)
        assert found is not None
        return Image(**{name: text or "" for name, text in found.groupdict().items()})


class Deployment(Record):
    """A plan with what a cluster decides by: how many, how large, how long, and where."""

    schema_version: Literal[1] = 1
    name: str
    image: Image
    fleet: str
    group: str
    plan: LaunchPlan
    replicas: Choice[int]
    highest_replicas: Choice[int] | None
    machines: Choice[int]
    gpus: Choice[int]
    nodes: Choice[dict[str, str]] | None
    processors: Choice[int]
    memory_bytes: Choice[int]
    port: Choice[int]
    start_seconds: Choice[int]
    drain_seconds: Choice[int]
    source: Choice[Literal["hub", "folder"]]
    weights_path: str
    storage_bytes: Choice[int] | None
    queue: Choice[int]
    batch: Choice[int]
    left_out: Choice[tuple[str, ...]] | None
    warnings: tuple[str, ...]

    def list_reasons(self) -> Iterator[tuple[str, str]]:
        """Yield why the files say what they say, by the name of their annotation."""
        plan = self.plan
        yield "plan", f"slipstream plan {plan.target}, for {plan.machine or 'an unknown machine'}"
        chosen = {
            "model": plan.settings.model,
            "drafter": plan.speculation.drafter if plan.speculation else None,
            "served": plan.settings.served_names,
            "replicas": self.replicas,
            "scaling": self.highest_replicas,
            "machines": self.machines,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "memory": self.memory_bytes,
            "start": self.start_seconds,
            "drain": self.drain_seconds,
            "source": self.source,
            "storage": self.storage_bytes,
            "queue": self.queue,
            "batch": self.batch,
            "variables": self.left_out,
        }
        for name, choice in chosen.items():
            if choice is not None:
                yield name, f"{_show(choice.value)} ({choice.source}): {choice.because}"


class DeploymentList(Record):
    schema_version: Literal[1] = 1
    deployments: tuple[Deployment, ...]


def _show(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={text}" for key, text in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
