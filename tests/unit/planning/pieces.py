"""A good pair, a recipe and the inputs of a rule, from which each test changes one thing."""

from typing import Any

from slipstream.checkpoints.checkpoint import (
    Checkpoint,
    ConversationFacts,
    DraftPart,
    Layers,
    Rope,
    Weights,
)
from slipstream.hardware import load_host
from slipstream.planning.inputs import PlanInputs
from slipstream.planning.settings import Choice
from slipstream.planning.settings.options import make_options
from slipstream.recipes.recipe import Recipe, RecipeSettings

GIB = 1 << 30

TARGET = Checkpoint(
    name="Qwen/Qwen3-8B",
    source="test",
    complete=True,
    architecture="Qwen3ForCausalLM",
    hidden_size=4096,
    attention_heads=32,
    layers=(Layers(kind="full", count=36, key_value_heads=8, head_size=128),),
    vocabulary_size=151936,
    context=40960,
    rope=Rope(theta=1e6, scaling="default"),
    attention_sinks=False,
    quantized=False,
    dtype="bfloat16",
    weights=Weights(total_bytes=16 * GIB),
    modalities=(),
    conversation=ConversationFacts(template='{{ tools }}<tool_call>{"name": x}</tool_call><think>'),
)

DRAFTER = Checkpoint(
    name="z-lab/Qwen3-8B-DFlash-b16",
    source="test",
    complete=True,
    architecture="DFlashDraftModel",
    hidden_size=4096,
    layers=(Layers(kind="full", count=5, key_value_heads=8, head_size=128),),
    vocabulary_size=151936,
    context=40960,
    rope=Rope(theta=1e6, scaling="default"),
    quantized=False,
    weights=Weights(total_bytes=2 * GIB),
    draft=DraftPart(
        family="dflash",
        layout="native",
        block_size=16,
        target_layer_ids=(1, 9, 17, 25, 33),
        layer_id_convention="layer-output",
        target_layers=36,
        mask_token_id=151669,
        drafts_from_anchor=False,
    ),
)

HYBRID_LAYERS = (
    Layers(
        kind="recurrent",
        count=48,
        convolution_channels=10240,
        convolution_width=4,
        state_elements=786432,
        state_element_bytes=4,
    ),
    Layers(kind="full", count=16, key_value_heads=4, head_size=256),
)


def make_recipe(**changes: Any) -> Recipe:
    """Make a recipe for the pair on a GB10; keyword arguments are settings or fields."""
    fields = {name: changes.pop(name) for name in list(changes) if name in Recipe.model_fields}
    return Recipe(
        **{
            "name": "test-recipe",
            "title": "a test",
            "target": TARGET.name,
            "drafter": DRAFTER.name,
            "machines": ("gb10",),
            "engine": "vllm",
            "engine_version": "0.32.0",
            "settings": RecipeSettings(**changes),
            **fields,
        }
    )


def make_inputs(
    machine: str = "h100",
    *,
    target: dict[str, Any] | None = None,
    drafter: dict[str, Any] | None = None,
    recipe: Recipe | None = None,
    plain: bool = False,
    **options: Any,
) -> PlanInputs:
    """Make the inputs of a rule on a known machine, with fields of the pair changed."""
    made = make_options(**options)
    return PlanInputs(
        host=load_host(machine),
        target=TARGET.model_copy(update=target or {}),
        drafter=None if plain else DRAFTER.model_copy(update=drafter or {}),
        recipe=recipe,
        options=made,
        fixed=made.engine,
        method_choice=made.method,
    )


def pick(choice: Choice[Any] | None) -> tuple[Any, str] | None:
    """Return a choice's value and source."""
    return (choice.value, choice.source) if choice else None
