"""`PublishedDrafter` and `KnownModel`: published models, measured or not.

Recipes say what somebody ran; these files only say that a drafter exists, for what, and where
that is written, and which shape and size a target has while its own files cannot be read.
"""

from typing import Any, Literal

from pydantic import Field, model_validator

from slipstream.checkpoints.checkpoint import Checkpoint, Quantization, Scheme, Weights
from slipstream.records import Record

Method = Literal[
    "dflash", "dflash2", "dspark", "eagle3", "eagle", "peagle", "mtp", "draft_model", "medusa"
]
HUB_NAME = r"^\w[\w.-]*/\w[\w.-]*$"


class PublishedDrafter(Record):
    """A drafter, the base model that it drafts for, and the source of that.

    Without a `drafter` the draft weights are part of the target's own checkpoint. `draft_length` is
    what its maker or an engine's own recipe runs it with.
    """

    target: str = Field(pattern=HUB_NAME)
    drafter: str | None = Field(default=None, pattern=HUB_NAME)
    method: Method
    maker: str = Field(min_length=1)
    sources: tuple[str, ...] = Field(min_length=1)
    licence: str | None = None
    draft_length: int | None = Field(default=None, ge=1, le=128)
    note: str | None = None
    facts: Checkpoint | None = None

    @model_validator(mode="after")
    def _require_facts_of_the_drafter(self) -> "PublishedDrafter":
        if self.facts is None:
            return self
        if self.facts.draft is None or self.facts.draft.family != self.method:
            raise ValueError(
                f"{self.drafter} is {self.method}, and its facts are of another method"
            )
        return self


class DrafterFile(Record):
    """One file of the index: the drafters of one maker, or of several with a few each."""

    schema_version: Literal[1] = 1
    drafters: tuple[PublishedDrafter, ...]


class Build(Record):
    """Another build of the same model, with the same shape and another size."""

    name: str = Field(pattern=HUB_NAME)
    scheme: Scheme
    method: str
    total_bytes: int = Field(gt=0)
    source: str


class KnownModel(Record):
    """A base model's public facts and the builds of it whose size is known."""

    facts: Checkpoint
    builds: tuple[Build, ...] = ()

    def describe(self, name: str) -> Checkpoint:
        """Return the facts of the model or of a build; of an unknown build only the shape."""
        if name.lower() == self.facts.name.lower():
            return self.facts
        build = next((build for build in self.builds if build.name.lower() == name.lower()), None)
        shared: dict[str, Any] = {
            "name": name,
            "source": f"shape of {self.facts.name}, of which it is a build: {self.facts.source}",
            "licence": None,
            "quantized": None,
            "quantization": None,
            "weights": None,
        }
        if build is not None:
            shared |= {
                "source": f"{shared['source']}; size: {build.source}",
                "quantized": True,
                "quantization": Quantization(scheme=build.scheme, method=build.method),
                "weights": Weights(total_bytes=build.total_bytes),
            }
        return self.facts.model_copy(update=shared)


class ModelFile(Record):
    schema_version: Literal[1] = 1
    models: tuple[KnownModel, ...]
