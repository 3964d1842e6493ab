"""Estimates hold for the published models whose size is known: never too low a bound."""

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Quantization
from slipstream.checkpoints.layers import complete_config, parse_layers
from slipstream.checkpoints.parameters import count_parameters
from slipstream.checkpoints.reading import parse_quantization
from slipstream.planning.memory.estimates import (
    estimate_drafter,
    estimate_drafter_layers,
    estimate_weights,
    find_scheme,
    read_parameters,
)
from tests.judge.checkpoints import Model, load_models
from tests.unit.planning.pieces import DRAFTER, TARGET

MODELS = load_models().values()
TARGETS = [model for model in MODELS if not model.is_drafter]
NAMED = [model for model in TARGETS if read_parameters(model.name)]
DRAFTERS = [model for model in MODELS if model.is_drafter]
# These keep more in bfloat16 than others of their scheme.
WIDE = {"nvidia/Gemma-4-31B-IT-NVFP4", "AEON-7/DFlash-Qwen3.5-27B-Uncensored-NVFP4"}
SMALL = {"Qwen/Qwen3-0.6B"}


def describe(model: Model) -> Checkpoint:
    quantization = parse_quantization(model.config, {})
    return Checkpoint(
        name=model.name,
        source="test",
        quantization=quantization,
        quantized=quantization is not None,
    )


@pytest.mark.parametrize("model", NAMED, ids=lambda model: model.name)
def test_a_name_gives_a_size_and_a_bound_below_it(model: Model) -> None:
    size = estimate_weights(describe(model))
    assert size is not None
    assert size.least <= model.bytes
    if model.name not in WIDE | SMALL:
        assert size.best == pytest.approx(model.bytes, rel=0.2)


@pytest.mark.parametrize("model", TARGETS, ids=lambda model: model.name)
def test_a_shape_gives_a_size_and_a_bound_below_it(model: Model) -> None:
    text = complete_config(model.config.get("text_config") or model.config)
    count = count_parameters(text, parse_layers(text))
    assert count is not None
    described = describe(model).model_copy(update={"parameters": count})
    size = estimate_weights(described)
    assert size is not None
    assert size.least <= model.bytes
    if model.name not in WIDE | SMALL:
        rel = 0.25 if described.quantized else 0.07
        assert size.best == pytest.approx(model.bytes, rel=rel)


@pytest.mark.parametrize("model", DRAFTERS, ids=lambda model: model.name)
def test_the_width_of_a_target_bounds_a_drafter(model: Model) -> None:
    target = TARGET.model_copy(update={"hidden_size": model.config["hidden_size"]})
    drafter = Checkpoint(name="d", source="test", draft=DraftPart(family="dflash"))
    size = estimate_drafter(drafter, target)
    assert size is not None
    assert size.least <= model.bytes
    assert 0.6 * model.bytes < size.best < 1.6 * model.bytes


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("Qwen/Qwen3.5-35B-A3B-FP8", 35e9),
        ("openai/gpt-oss-120b", 120e9),
        ("moonshotai/Kimi-1T-Instruct", 1e12),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 56e9),
        ("Qwen/Qwen3-0.6B", 6e8),
        # Sixteen experts, an effective size, a block size, nothing at all.
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", None),
        ("google/gemma-3n-E4B-it", None),
        ("me/drafter-b16", None),
        ("zai-org/GLM-4.6", None),
    ],
)
def test_a_name_may_say_how_many_parameters_there_are(name: str, count: float | None) -> None:
    assert read_parameters(name) == count


@pytest.mark.parametrize(
    ("name", "changes", "scheme"),
    [
        ("RedHatAI/Qwen3-32B-NVFP4", {}, "nvfp4"),
        ("Qwen/Qwen3-32B-AWQ", {}, "int4"),
        ("me/Model-8B-FP8", {}, "fp8"),
        ("me/Model-8B-GGUF", {}, "other"),
        ("me/Model-8B", {}, None),
        ("me/Model-8B", {"quantized": True}, "other"),
        # What is known of the files beats the name.
        ("me/Model-8B-FP8", {"quantized": False}, None),
        (
            "me/Model-8B-FP8",
            {"quantized": True, "quantization": Quantization(scheme="int4", method="awq")},
            "int4",
        ),
    ],
)
def test_the_scheme_is_the_known_one_or_the_name_s(
    name: str, changes: dict[str, object], scheme: str | None
) -> None:
    checkpoint = Checkpoint(name=name, source="test").model_copy(update=changes)
    assert find_scheme(checkpoint) == scheme


def test_what_says_nothing_is_not_estimated() -> None:
    assert estimate_weights(Checkpoint(name="me/mine", source="test")) is None
    bare = Checkpoint(name="d", source="test", draft=DraftPart(family="dflash"))
    assert estimate_drafter(bare, TARGET.model_copy(update={"hidden_size": None})) is None
    heads = bare.model_copy(update={"draft": DraftPart(family="mtp")})
    assert estimate_drafter(heads, TARGET) is None
    assert estimate_drafter_layers(heads, TARGET) is None


def test_a_drafters_layers_are_its_own_or_like_the_targets() -> None:
    assert estimate_drafter_layers(DRAFTER, TARGET) == DRAFTER.layers
    unread = DRAFTER.model_copy(update={"layers": None})
    (layers,) = estimate_drafter_layers(unread, TARGET) or ()
    assert (layers.kind, layers.count, layers.key_value_heads) == ("full", 6, 8)
