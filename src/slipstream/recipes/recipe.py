"""The records of the catalogue: recipes, known-bad combinations, published drafters and models.

A recipe is one TOML file, in which `[[measured]]` holds evidence with shared fields. Its settings
are what its author used, on the engine of that day; the planner takes from them what still holds
and says why not the rest. A published drafter only says that it exists, for what, and where that is
written; a known model, which shape and size a target has while its own files cannot be read.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, field_validator, model_validator

from slipstream.checkpoints.checkpoint import Checkpoint, Quantization, Scheme, Weights
from slipstream.records import Record

Given = TypeVar("Given")
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
DraftMethod = Literal[
    "dflash", "dflash2", "dspark", "eagle3", "eagle", "peagle", "mtp", "draft_model", "medusa"
]
# What a recipe may set, whoever wrote it: nothing that runs code, opens a file or a port.
RECIPE_VARIABLES = frozenset(
    {
        *("NCCL_CUMEM_ENABLE", "NCCL_P2P_DISABLE", "VLLM_DISABLE_COMPILE_CACHE"),
        *("VLLM_USE_FLASHINFER_SAMPLER", "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS"),
        *("VLLM_MARLIN_USE_ATOMIC_ADD", "VLLM_ENABLE_STARTUP_PLAN"),
    }
)
RECIPE_ARGUMENTS = frozenset(
    {
        *("--dtype", "--generation-config", "--tool-call-parser", "--reasoning-parser"),
        *("--enable-auto-tool-choice", "--linear-backend", "--moe-backend", "--dcp-comm-backend"),
        *("--decode-context-parallel-size", "--disable-custom-all-reduce"),
        "--kv-cache-dtype-skip-layers",
    }
)
HUB_NAME = r"^\w[\w.-]*/\w[\w.-]*$"


def _require_allowed(given: Given, names: Iterable[str], allowed: frozenset[str]) -> Given:
    if others := sorted({*names} - allowed):
        raise ValueError(
            f"a recipe may not set {', '.join(others)}; it may set {', '.join(sorted(allowed))}"
        )
    return given


class Evidence(Record):
    """One measurement with its conditions and who made it.

    Latencies are medians: to the first token, and between tokens of one request. `lost_share` is
    the share of tokens that a cache of type `kv_dtype` makes other than the target's best one
    (`slipstream verify --cache`).
    """

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
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    kv_dtype: str | None = None
    lost_share: Annotated[float, Field(ge=-1, le=1)] | None = None
    note: str = ""


class RecipeSettings(Record):
    """The settings of a recipe's author; None was left to the engine.

    `crashed_above` is the evidence that more memory than `memory_utilization` crashed.
    """

    draft_length: Count | None = None
    context: Count | None = None
    sequences: Count | None = None
    batched_tokens: Count | None = None
    memory_utilization: Annotated[float, Field(gt=0, lt=1)] | None = None
    crashed_above: Text | None = None
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

    @field_validator("environment")
    @classmethod
    def require_allowed_variables(cls, given: dict[str, str]) -> dict[str, str]:
        """Raise if a recipe sets a variable that is not for recipes."""
        return _require_allowed(given, given, RECIPE_VARIABLES)

    @field_validator("extra_arguments")
    @classmethod
    def require_allowed_arguments(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        """Raise if a recipe sets an argument that is not for recipes."""
        names = [word.partition("=")[0] for word in given if word.startswith("-")]
        return _require_allowed(given, names, RECIPE_ARGUMENTS)


class Obsolete(Record):
    """Something that a recipe needed once and that today's engine does not.

    `argument` is how it would stand in a command, if it would.
    """

    what: Text
    why: Text
    argument: Text | None = None


class Recipe(Record):
    """A target and a drafter that were run together; `own` is one of the user's folder."""

    schema_version: Literal[1] = 1
    name: str
    title: Text
    target: str
    drafter: str
    machines: tuple[str, ...]
    nodes: Count = 1
    engine: Literal["vllm", "sglang", "other"]
    engine_version: str
    settings: RecipeSettings = Field(default_factory=RecipeSettings)
    obsolete: tuple[Obsolete, ...] = ()
    notes: tuple[Text, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    target_facts: Checkpoint | None = None
    drafter_facts: Checkpoint | None = None
    own: bool = Field(default=False, exclude=True)

    def rank(self, machine: str | None) -> tuple[bool, bool, bool, int, int]:
        """Return what sorts the recipes of a target, with the one that a plan takes first."""
        elsewhere = machine not in self.machines
        return not self.own, elsewhere, self.engine != "vllm", self.nodes, -len(self.evidence)


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


class PublishedDrafter(Record):
    """A drafter, the base model that it drafts for, and the source of that.

    Without a `drafter` the draft weights are part of the target's own checkpoint. `draft_length` is
    what its maker or an engine's own recipe runs it with.
    """

    target: str = Field(pattern=HUB_NAME)
    drafter: str | None = Field(default=None, pattern=HUB_NAME)
    method: DraftMethod
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
            "gated": None,
            "quantized": None,
            "quantization": None,
            "weights": None,
        }
        if name.partition("/")[0].lower() != self.facts.name.partition("/")[0].lower():
            # Makers keep their MTP layers; other builds may have left them out.
            shared["predicting_layers"] = None
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
