"""`Recipe`: a pair that was run, with its measurements; and known-bad combinations.

A recipe is one TOML file of the catalogue. Its settings are what its author used, on the
engine of that day; the planner takes from them what still holds and says why not the rest.
"""

from typing import Literal

from pydantic import Field

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.records import Record


class Evidence(Record):
    """One measurement with its conditions and who made it."""

    by: str
    source: str
    hardware: str
    engine_version: str
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

    draft_length: int | None = None
    context: int | None = None
    sequences: int | None = None
    batched_tokens: int | None = None
    memory_utilization: float | None = None
    tensor_parallel: int | None = None
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

    what: str
    why: str


class Recipe(Record):
    """A target and a drafter that were run together."""

    schema_version: Literal[1] = 1
    name: str
    title: str
    target: str
    drafter: str
    machines: tuple[str, ...]
    nodes: int = 1
    engine: Literal["vllm", "sglang", "other"]
    engine_version: str
    settings: Settings = Field(default_factory=Settings)
    obsolete: tuple[Obsolete, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    target_facts: Checkpoint | None = None
    drafter_facts: Checkpoint | None = None


class RecipeList(Record):
    """Several recipes as one document."""

    schema_version: Literal[1] = 1
    recipes: tuple[Recipe, ...]


class Condition(Record):
    """When a known-bad combination is met: every field that is given must hold.

    Values are alternatives; names of models are shell patterns (`poolside/Laguna-*`).
    """

    targets: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    kv_dtypes: tuple[str, ...] = ()
    drafter_backends: tuple[str, ...] = ()
    prefix_caching: bool | None = None
    schemes: tuple[str, ...] = ()
    runners: tuple[str, ...] = ()
    drafter_quantized: bool | None = None
    hybrid: bool | None = None
    sequences_over: int | None = None
    draft_length_under_block: bool | None = None
    memory_under_bytes: int | None = None
    driver_prefixes: tuple[str, ...] = ()
    nodes_over: int | None = None
    engine: str | None = None
    engine_below: str | None = None
    environment: tuple[str, ...] = ()


class KnownBad(Record):
    """A combination that was seen to fail, with the source."""

    schema_version: Literal[1] = 1
    name: str
    verdict: Literal["refuse", "warn"]
    message: str
    hint: str
    sources: tuple[str, ...]
    when: Condition
