"""The engine's settings as typed values, each with its source and its reason.

Every stage reads and changes these; text comes in at one place (`engines/arguments.py` parses what
the user wrote for the engine) and goes out at one (`list_arguments`, which becomes the command).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field, JsonValue, field_validator

from slipstream.engines.arguments import read_table
from slipstream.records import Record

Source = Literal[
    "user", "environment", "recipe", "index", "hardware", "checkpoint", "measured", "default"
]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Choice(Generic[Value]):
    """A value with its source and reason."""

    value: Value
    source: Source
    because: str


class Speculation(Record):
    """How the engine drafts: its `--speculative-config`, in whatever form it was requested."""

    method: Choice[str]
    drafter: Choice[str] | None = None
    length: Choice[int] | None = None
    revision: Choice[str] | None = None
    attention_backend: Choice[str] | None = None
    kv_dtype: Choice[str] | None = None
    rest: dict[str, Choice[JsonValue]] = Field(default_factory=dict)

    @field_validator("rest")
    @classmethod
    def _require_other_keys(cls, rest: dict[str, Choice[Any]]) -> dict[str, Choice[Any]]:
        """Refuse a key that would override a typed part."""
        if wrong := [key for key in rest if key in SPECULATION_KEYS.values()]:
            raise ValueError(f"{', '.join(wrong)}: no other key of the speculation")
        return rest

    def list_choices(self) -> Iterator[tuple[str, Choice[Any]]]:
        """Yield every part that is set, under the engine's key for it."""
        for name, key in SPECULATION_KEYS.items():
            if (choice := getattr(self, name)) is not None:
                yield key, choice
        yield from self.rest.items()

    def to_config(self) -> dict[str, JsonValue]:
        """Return the object that the engine reads."""
        return {key: choice.value for key, choice in self.list_choices()}


class EngineSettings(Record):
    """The settings of an engine; None leaves a setting to the engine.

    `rest` holds, by its flag, what no rule and no stage depends on.
    """

    model: Choice[str]
    revision: Choice[str] | None = None
    served_names: Choice[tuple[str, ...]] | None = None
    host: Choice[str] | None = None
    port: Choice[int] | None = None
    uds: Choice[str] | None = None
    context: Choice[int] | None = None
    sequences: Choice[int] | None = None
    batched_tokens: Choice[int] | None = None
    memory_utilization: Choice[float] | None = None
    kv_cache_bytes: Choice[int] | None = None
    attention_backend: Choice[str] | None = None
    kv_dtype: Choice[str] | None = None
    compilation: Choice[dict[str, JsonValue]] | None = None
    prefix_caching: Choice[bool] | None = None
    dtype: Choice[str] | None = None
    eager: Choice[bool] | None = None
    quantization: Choice[str] | None = None
    media_limits: Choice[dict[str, JsonValue]] | None = None
    tool_parser: Choice[str] | None = None
    auto_tools: Choice[bool] | None = None
    reasoning_parser: Choice[str] | None = None
    template_arguments: Choice[dict[str, JsonValue]] | None = None
    generation_config: Choice[str] | None = None
    generation_overrides: Choice[dict[str, JsonValue]] | None = None
    executor: Choice[str] | None = None
    load_format: Choice[str] | None = None
    tensor_parallel: Choice[int] | None = None
    pipeline_parallel: Choice[int] | None = None
    data_parallel: Choice[int] | None = None
    nodes: Choice[int] | None = None
    node_rank: Choice[int] | None = None
    trust_remote_code: Choice[bool] | None = None
    draft_metrics: Choice[str] | None = None
    middleware: Choice[tuple[str, ...]] | None = None
    rest: dict[str, Choice[JsonValue]] = Field(default_factory=dict)
    speculation: Speculation | None = None

    @field_validator("rest")
    @classmethod
    def _require_other_flags(cls, rest: dict[str, Choice[Any]]) -> dict[str, Choice[Any]]:
        """Refuse a flag that vLLM does not have, or that would override a typed setting."""
        typed = {*FLAGS.values(), SPECULATION}
        if wrong := [flag for flag in rest if flag in typed or flag not in read_table()]:
            raise ValueError(f"{', '.join(wrong)}: no other argument of the engine")
        return rest

    def list_choices(self) -> Iterator[tuple[str, Choice[Any]]]:
        """Yield every setting but the speculation, under the engine's flag for it."""
        for name, flag in FLAGS.items():
            if (choice := getattr(self, name)) is not None:
                yield flag, choice
        yield from self.rest.items()

    def list_arguments(self) -> dict[str, Any]:
        """Return the engine's arguments: flags and their typed values."""
        arguments = {flag: choice.value for flag, choice in self.list_choices()}
        if self.speculation is not None:
            arguments[SPECULATION] = self.speculation.to_config()
        return arguments

    def list_served_names(self) -> tuple[str, ...]:
        """Return the names that clients may call the model by."""
        return self.served_names.value if self.served_names else (self.model.value,)


SPECULATION = "--speculative-config"
SCHEDULE = "num_speculative_tokens_per_batch_size"
FLAGS: Mapping[str, str] = {
    "model": "--model",
    "revision": "--revision",
    "served_names": "--served-model-name",
    "host": "--host",
    "port": "--port",
    "uds": "--uds",
    "context": "--max-model-len",
    "sequences": "--max-num-seqs",
    "batched_tokens": "--max-num-batched-tokens",
    "memory_utilization": "--gpu-memory-utilization",
    "kv_cache_bytes": "--kv-cache-memory-bytes",
    "attention_backend": "--attention-backend",
    "kv_dtype": "--kv-cache-dtype",
    "compilation": "--compilation-config",
    "prefix_caching": "--enable-prefix-caching",
    "dtype": "--dtype",
    "eager": "--enforce-eager",
    "quantization": "--quantization",
    "media_limits": "--limit-mm-per-prompt",
    "tool_parser": "--tool-call-parser",
    "auto_tools": "--enable-auto-tool-choice",
    "reasoning_parser": "--reasoning-parser",
    "template_arguments": "--default-chat-template-kwargs",
    "generation_config": "--generation-config",
    "generation_overrides": "--override-generation-config",
    "executor": "--distributed-executor-backend",
    "load_format": "--load-format",
    "tensor_parallel": "--tensor-parallel-size",
    "pipeline_parallel": "--pipeline-parallel-size",
    "data_parallel": "--data-parallel-size",
    "nodes": "--nnodes",
    "node_rank": "--node-rank",
    "trust_remote_code": "--trust-remote-code",
    "draft_metrics": "--per-request-spec-decode-metrics",
    "middleware": "--middleware",
}
SPECULATION_KEYS: Mapping[str, str] = {
    "method": "method",
    "drafter": "model",
    "length": "num_speculative_tokens",
    "revision": "revision",
    "attention_backend": "attention_backend",
    "kv_dtype": "kv_cache_dtype",
}
