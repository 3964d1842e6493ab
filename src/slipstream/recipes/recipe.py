"""`Recipe`: a pair that was run, with its measurements; and known-bad combinations.

A recipe is one TOML file of the catalogue. Its settings are what its author used, on the
engine of that day; the planner takes from them what still holds and says why not the rest.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.records import Record

Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]


class Evidence(Record):
    """One measurement with its conditions and who made it."""

    by: Text
    source: Text
    hardware: Text
    engine_version: Text
    date: str | None = None
    settings: str = ""
    workload: str
    concurrency: int | None = None
    tokens_per_s: float | None = None
    plain_tokens_per_s: float | None = None
    speedup: float | None = None
    acceptance_length: float | None = None
    acceptance_rate: float | None = None
    note: str = ""


class Settings(Record):
    """The settings of a recipe's author; None was left to the engine."""

    draft_length: Count | None = None
    context: Count | None = None
    sequences: Count | None = None
    batched_tokens: Count | None = None
    memory_utilization: Annotated[float, Field(gt=0, lt=1)] | None = None
    tensor_parallel: Count | None = None
    target_backend: str | None = None
    drafter_backend: str | None = None
    kv_dtype: str | None = None
    drafter_kv_dtype: str | None = None
    quantization: str | None = None
    eager: bool | None = None
    prefix_caching: bool | None = None
    loader: str | None = None
    text_only: bool | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    extra_arguments: tuple[str, ...] = ()


class Obsolete(Record):
    """Something that a recipe needed once and that today's engine does not."""

    what: Text
    why: Text


class Recipe(Record):
    """A target and a drafter that were run together."""

    schema_version: Literal[1] = 1
    name: str
    title: Text
    target: str
    drafter: str
    machines: tuple[str, ...]
    nodes: Count = 1
    engine: Literal["vllm", "sglang", "other"]
    engine_version: str
    settings: Settings = Field(default_factory=Settings)
    obsolete: tuple[Obsolete, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    target_facts: Checkpoint | None = None
    drafter_facts: Checkpoint | None = None


class RecipeList(Record):
    schema_version: Literal[1] = 1
    recipes: tuple[Recipe, ...]


class Condition(Record):
    """When a known-bad combination is met: every field that is given must hold.

    Texts are shell patterns (`poolside/Laguna-*`), of which one must match.
    """

    targets: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    drafter_backends: tuple[str, ...] = ()
    prefix_caching: bool | None = None
    runners: tuple[str, ...] = ()
    drafter_quantized: bool | None = None
    hybrid: bool | None = None
    sequences_over: int | None = None
    draft_length_under_block: bool | None = None
    memory_under_bytes: int | None = None
    drivers: tuple[str, ...] = ()
    nodes_over: int | None = None
    engine: str | None = None
    engine_below: str | None = None
    environment: tuple[str, ...] = ()


class KnownBad(Record):
    """A combination that was seen to fail, with the source."""

    schema_version: Literal[1] = 1
    name: str
    verdict: Literal["refuse", "warn"]
    message: Text
    hint: Text
    sources: Annotated[tuple[Text, ...], Field(min_length=1)]
    when: Condition
