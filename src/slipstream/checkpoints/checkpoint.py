"""`Checkpoint`: what config.json and the safetensors headers say, without the weights.

Every fact may be None, 'could not tell': a recipe carries the few facts that are public, and
the same record is filled whole from the files once they can be read.
"""

from typing import Literal

from pydantic import Field, model_validator

from slipstream.records import Record

THINKING = "<think>"
# A shared layer reads the cache of an earlier one and keeps none of its own; `none` has no
# attention at all.
LayerKind = Literal["full", "sliding", "latent", "recurrent", "shared", "none"]
Family = Literal["dflash", "dflash2", "dspark", "eagle3", "eagle", "mtp"]
Scheme = Literal["nvfp4", "mxfp4", "fp8", "int4", "int8", "other"]
# What an id in a drafter's list of target layers counts: the output of layer i (z-lab,
# SpecForge), or the i-th hidden state, of which the first is the embedding (speculators).
LayerIdConvention = Literal["layer-output", "hidden-state"]


class Layers(Record):
    """Layers of one kind, which keep the same amount of state."""

    kind: LayerKind
    count: int
    key_value_heads: int | None = None
    head_size: int | None = None
    window: int | None = None
    # The window does not slide: it begins anew after so many tokens.
    chunked: bool = False
    # The key by which sparse attention over a latent cache finds its tokens.
    index_size: int | None = None
    # Recurrent layers keep a state a request instead of keys and values a token.
    convolution_channels: int | None = None
    convolution_width: int | None = None
    # Of the channels, so many belong to each of the groups, which ranks may have to replicate.
    groups: int | None = None
    group_channels: int | None = None
    state_elements: int | None = None
    state_element_bytes: int | None = None
    # The second half of layers that are counted elsewhere: a state beside attention.
    beside: bool = False


class Experts(Record):
    """A mixture of experts: how many a layer has and how many a token uses."""

    total: int
    active: int | None = None


class Rope(Record):
    """Rotary position settings in which two checkpoints can disagree."""

    theta: float | None = None
    scaling: str | None = None
    factor: float | None = None


class Quantization(Record):
    """How the weights are stored: our name for it, and the checkpoint's."""

    scheme: Scheme
    method: str
    # The type that the checkpoint's own scales give its cache, which vLLM then uses by itself.
    kv_dtype: Literal["fp8_e4m3"] | None = None


class Weights(Record):
    """The exact size of the tensors in bytes, by stored type."""

    total_bytes: int
    bytes_by_dtype: dict[str, int] = Field(default_factory=dict)


class DraftPart(Record):
    """The settings that only a drafter has."""

    family: Family
    layout: Literal["native", "speculators"] | None = None
    block_size: int | None = None
    target_layer_ids: tuple[int, ...] | None = None
    layer_id_convention: LayerIdConvention | None = None
    # A second list, of hidden states, that vLLM prefers where a native config has one.
    auxiliary_ids: tuple[int, ...] | None = None
    target_layers: int | None = None
    target_hidden_size: int | None = None
    mask_token_id: int | None = None
    drafts_from_anchor: bool | None = None
    own_head: bool | None = None
    draft_vocabulary: int | None = None
    has_vocabulary_map: bool | None = None
    # What the config says of causality, key by key; it may say nothing, or two things.
    causal_statements: dict[str, bool] = Field(default_factory=dict)
    forced_sliding: bool = False
    verifier: str | None = None

    @property
    def longest_draft(self) -> int | None:
        """Return the draft tokens of one block; the anchor counts only if it is sampled from."""
        if self.block_size is None:
            return None
        return self.block_size if self.drafts_from_anchor else self.block_size - 1

    @property
    def layer_outputs(self) -> tuple[int, ...] | None:
        """Return the target layers whose outputs are read, whatever the convention."""
        if self.target_layer_ids is None:
            return None
        shift = 1 if self.layer_id_convention == "hidden-state" else 0
        return tuple(layer - shift for layer in self.target_layer_ids)


class ConversationFacts(Record):
    """How messages become a prompt, and how an answer becomes messages again."""

    # None: there is no template, or it could not be read.
    template: str | None = None
    # Texts that are known to be in a template that could not be read.
    marks: tuple[str, ...] = ()
    # Fields of the tokenizer's response_template, by which vLLM's `hf` parsers read an answer.
    response_fields: tuple[str, ...] = ()
    # Whether `<think>` is one token; None if the tokenizer's configuration lists no tokens.
    has_thinking_token: bool | None = None
    sampling: dict[str, float] = Field(default_factory=dict)

    @property
    def known_text(self) -> str | None:
        """Return the template, or what is known of it."""
        return self.template or "\n".join(self.marks) or None


class Checkpoint(Record):
    """One model, target or drafter, as its files describe it."""

    schema_version: Literal[1] = 1
    name: str
    revision: str | None = None
    source: str
    # Read whole from its files: then a fact that is not there is missing, not unknown.
    complete: bool = False
    architecture: str | None = None
    model_type: str | None = None
    hidden_size: int | None = None
    attention_heads: int | None = None
    layers: tuple[Layers, ...] | None = None
    experts: Experts | None = None
    vocabulary_size: int | None = None
    context: int | None = None
    rope: Rope | None = None
    attention_sinks: bool | None = None
    quantization: Quantization | None = None
    quantized: bool | None = None
    dtype: str | None = None
    weights: Weights | None = None
    # By its shape, where the size of the weights could not be read.
    parameters: int | None = None
    modalities: tuple[str, ...] | None = None
    # Layers of the checkpoint's own that predict further tokens (MTP).
    predicting_layers: int | None = None
    conversation: ConversationFacts | None = None
    tokenizer_sha256: str | None = None
    # What its card says that it was made from, by quantising, fine-tuning or merging.
    base_models: tuple[str, ...] | None = None
    licence: str | None = None
    gated: bool | None = None
    draft: DraftPart | None = None

    @model_validator(mode="after")
    def _hold_quantization_together(self) -> "Checkpoint":
        if self.quantization is not None and self.quantized is False:
            raise ValueError("quantization is set, but quantized is false")
        return self

    @property
    def layer_count(self) -> int | None:
        if self.layers is None:
            return None
        return sum(part.count for part in self.layers if not part.beside)

    @property
    def is_hybrid(self) -> bool:
        return any(part.kind == "recurrent" for part in self.layers or ())

    @property
    def has_sliding_windows(self) -> bool:
        return any(part.kind == "sliding" for part in self.layers or ())
