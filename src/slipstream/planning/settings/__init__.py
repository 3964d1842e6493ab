"""The engine's settings as typed values, each with its source and its reason.

`EngineOptions` is what was specified: by the user, or by a recipe. `EngineSettings` is a whole
configuration, in which rules chose the rest. Both are validated when they are made, in vLLM's own
ranges. Text comes in at one place (`options.py`) and goes out at one (`list_arguments`, which
becomes the command).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
)

from slipstream.engines.arguments import require_in_range
from slipstream.engines.vllm_tables import read_arguments
from slipstream.records import Record

Source = Literal[
    "user", "environment", "recipe", "index", "hardware", "checkpoint", "measured", "default"
]
Value = TypeVar("Value", covariant=True)
WIDE_DTYPES = ("float32", "float")
# Token by token, or a draft as one (block verification, Sun et al.): both keep the distribution.
_LOSSLESS = (None, "standard", "block")


def _require_tokens_or_auto(tokens: int) -> int:
    if tokens < 1 and tokens != -1:
        raise ValueError("should be at least 1, or -1 for the engine to find it")
    return tokens


Count = Annotated[int, Field(ge=1)]
Port = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(gt=0, le=1)]
Tokens = Annotated[int, AfterValidator(_require_tokens_or_auto)]
Upper = Annotated[str, AfterValidator(str.upper)]
Object = dict[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Choice(Generic[Value]):
    """A value with its source and reason."""

    value: Value
    source: Source
    because: str


def _named(name: str) -> Any:
    """Declare an unset field with the engine's name for it."""
    return Field(default=None, json_schema_extra={"name": name})


class _Choices(Record):
    """Choices by field; unset ones are left out of the JSON."""

    # A choice is a plain dataclass: without this its value would never be looked at.
    model_config = ConfigDict(revalidate_instances="always")

    rest: dict[str, Choice[JsonValue]] = Field(default_factory=dict)

    @model_serializer(mode="wrap")
    def _leave_out_unset(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in write(self).items() if value is not None}

    @classmethod
    def list_names(cls) -> dict[str, str]:
        extras = {name: field.json_schema_extra for name, field in cls.model_fields.items()}
        return {name: str(own["name"]) for name, own in extras.items() if isinstance(own, dict)}

    def list_choices(self) -> Iterator[tuple[str, Choice[Any]]]:
        """Yield every choice that is set, under the engine's name for it."""
        for name, flag in self.list_names().items():
            if (choice := getattr(self, name)) is not None:
                yield flag, choice
        yield from self.rest.items()

    def change(self, **fields: Any) -> Self:
        """Return these with other fields, validated again; None unsets one."""
        return type(self).model_validate({**dict(self), **fields})


class SpeculationOptions(_Choices):
    """Parts of `--speculative-config`, in whatever form they were given."""

    method: Choice[str] | None = _named("method")
    drafter: Choice[str] | None = _named("model")
    length: Choice[Count] | None = _named("num_speculative_tokens")
    revision: Choice[str] | None = _named("revision")
    attention_backend: Choice[str] | None = _named("attention_backend")
    kv_dtype: Choice[str] | None = _named("kv_cache_dtype")

    @field_validator("rest")
    @classmethod
    def _require_other_keys(cls, rest: dict[str, Choice[Any]]) -> dict[str, Choice[Any]]:
        """Refuse a key that would override a typed part."""
        if wrong := [key for key in rest if key in SPECULATION_KEYS.values()]:
            raise ValueError(f"{', '.join(wrong)}: not a further key of the speculative config")
        return rest

    @property
    def lossy(self) -> str | None:
        """Return the way of verifying that takes tokens which the target would not."""
        chosen = self.rest.get("rejection_sample_method")
        return None if chosen is None or chosen.value in _LOSSLESS else str(chosen.value)

    def to_config(self) -> dict[str, JsonValue]:
        return {key: choice.value for key, choice in self.list_choices()}


class Speculation(SpeculationOptions):
    method: Choice[str] = Field(json_schema_extra={"name": "method"})


class EngineOptions(_Choices):
    """The settings that were specified; `rest` holds, by its flag, what no rule depends on."""

    model: Choice[str] | None = _named("--model")
    revision: Choice[str] | None = _named("--revision")
    served_names: Choice[tuple[str, ...]] | None = _named("--served-model-name")
    host: Choice[str] | None = _named("--host")
    port: Choice[Port] | None = _named("--port")
    uds: Choice[str] | None = _named("--uds")
    context: Choice[Tokens] | None = _named("--max-model-len")
    sequences: Choice[Count] | None = _named("--max-num-seqs")
    batched_tokens: Choice[Count] | None = _named("--max-num-batched-tokens")
    memory_utilization: Choice[Share] | None = _named("--gpu-memory-utilization")
    kv_cache_bytes: Choice[Count] | None = _named("--kv-cache-memory-bytes")
    attention_backend: Choice[Upper] | None = _named("--attention-backend")
    kv_dtype: Choice[str] | None = _named("--kv-cache-dtype")
    compilation: Choice[Object] | None = _named("--compilation-config")
    prefix_caching: Choice[bool] | None = _named("--enable-prefix-caching")
    dtype: Choice[str] | None = _named("--dtype")
    eager: Choice[bool] | None = _named("--enforce-eager")
    quantization: Choice[str] | None = _named("--quantization")
    media_limits: Choice[Object] | None = _named("--limit-mm-per-prompt")
    tool_parser: Choice[str] | None = _named("--tool-call-parser")
    auto_tools: Choice[bool] | None = _named("--enable-auto-tool-choice")
    reasoning_parser: Choice[str] | None = _named("--reasoning-parser")
    template_arguments: Choice[Object] | None = _named("--default-chat-template-kwargs")
    generation_config: Choice[str] | None = _named("--generation-config")
    generation_overrides: Choice[Object] | None = _named("--override-generation-config")
    executor: Choice[str] | None = _named("--distributed-executor-backend")
    load_format: Choice[str] | None = _named("--load-format")
    tensor_parallel: Choice[Count] | None = _named("--tensor-parallel-size")
    pipeline_parallel: Choice[Count] | None = _named("--pipeline-parallel-size")
    data_parallel: Choice[Count] | None = _named("--data-parallel-size")
    nodes: Choice[Count] | None = _named("--nnodes")
    node_rank: Choice[Annotated[int, Field(ge=0)]] | None = _named("--node-rank")
    master_address: Choice[str] | None = _named("--master-addr")
    master_port: Choice[Port] | None = _named("--master-port")
    headless: Choice[bool] | None = _named("--headless")
    trust_remote_code: Choice[bool] | None = _named("--trust-remote-code")
    draft_metrics: Choice[str] | None = _named("--per-request-spec-decode-metrics")
    middleware: Choice[tuple[str, ...]] | None = _named("--middleware")
    speculation: SpeculationOptions | None = None

    @field_validator("rest")
    @classmethod
    def _require_other_flags(cls, rest: dict[str, Choice[Any]]) -> dict[str, Choice[Any]]:
        """Refuse a flag that vLLM lacks or that is typed, and a value that vLLM would refuse."""
        typed = {*FLAGS.values(), SPECULATION}
        if wrong := [flag for flag in rest if flag in typed or flag not in read_arguments()]:
            raise ValueError(f"{', '.join(wrong)}: not a further engine argument")
        for flag, choice in rest.items():
            require_in_range(flag, choice.value)
        return rest

    @property
    def shards(self) -> int:
        """Return how many accelerators share one copy of the model."""
        sizes = (self.tensor_parallel, self.pipeline_parallel)
        return prod(size.value for size in sizes if size is not None)

    @property
    def local_accelerators(self) -> int:
        """Return how many accelerators this machine needs for all copies that it runs."""
        if "--data-parallel-rank" in self.rest:
            return self.shards
        local = self.rest.get("--data-parallel-size-local") or self.data_parallel
        return self.shards * (int(str(local.value)) if local else 1)

    @property
    def drafting(self) -> SpeculationOptions:
        """Return the parts of the speculation that are set."""
        return self.speculation or SpeculationOptions()

    def list_arguments(self) -> dict[str, Any]:
        arguments = {flag: choice.value for flag, choice in self.list_choices()}
        if self.speculation is not None:
            arguments[SPECULATION] = self.speculation.to_config()
        return arguments

    def override(self, other: "EngineOptions") -> "EngineOptions":
        """Return these settings with those that the other sets."""
        parts = {**_list_set(self.drafting), **_list_set(other.drafting)}
        parts["rest"] = {**self.drafting.rest, **other.drafting.rest}
        return EngineOptions.model_validate(
            {
                **_list_set(self),
                **_list_set(other),
                "rest": {**self.rest, **other.rest},
                "speculation": parts if self.speculation or other.speculation else None,
            }
        )


class EngineSettings(EngineOptions):
    """The settings that an engine starts with; None leaves a setting to the engine."""

    model: Choice[str] = Field(json_schema_extra={"name": "--model"})
    speculation: Speculation | None = None

    @property
    def draft_length(self) -> int:
        """Return the draft tokens per step, 0 without drafts."""
        length = self.speculation.length if self.speculation else None
        return length.value if length else 0

    @property
    def is_eager(self) -> bool:
        """Return whether nothing is compiled and no graph captured."""
        return self.eager is not None and self.eager.value

    @property
    def element_bytes(self) -> int:
        """Return the bytes of an unquantized weight."""
        return 4 if self.dtype is not None and self.dtype.value in WIDE_DTYPES else 2

    @property
    def cache_dtype(self) -> str:
        return self._resolve_auto(self.kv_dtype.value if self.kv_dtype else "auto")

    @property
    def drafter_cache_dtype(self) -> str:
        """Return the type of the drafter's cache, which inherits the target's."""
        own = self.speculation.kv_dtype if self.speculation else None
        return self._resolve_auto(own.value) if own else self.cache_dtype

    def _resolve_auto(self, kv_dtype: str) -> str:
        return "float32" if kv_dtype == "auto" and self.element_bytes == 4 else kv_dtype

    def list_served_names(self) -> tuple[str, ...]:
        return self.served_names.value if self.served_names else (self.model.value,)


def _list_set(options: _Choices) -> dict[str, Any]:
    return {name: value for name, value in options if value is not None}


SPECULATION = "--speculative-config"
SCHEDULE = "num_speculative_tokens_per_batch_size"
FLAGS: Mapping[str, str] = EngineOptions.list_names()
SPECULATION_KEYS: Mapping[str, str] = SpeculationOptions.list_names()
