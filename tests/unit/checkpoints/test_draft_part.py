"""A drafter is known by its config, in the native layout and in that of speculators."""

import pytest

from slipstream.checkpoints.checkpoint import DraftPart
from slipstream.checkpoints.draft_part import guess_family, parse_draft_part
from tests.unit.checkpoints.folders import LLAMA, Table
from tests.untrained_drafter import DrafterShape, drafter_config

NATIVE = drafter_config(LLAMA, DrafterShape(block_size=16))
SPECULATORS: Table = {
    "architectures": ["DFlashDraftModel"],
    "speculators_model_type": "dflash",
    "block_size": 16,
    "aux_hidden_state_layer_ids": [2, 4, 6, 8, 10],
    "mask_token_id": 3,
    "draft_vocab_size": 100,
    "target_hidden_size": 64,
    "sliding_window_non_causal": True,
    "transformer_layer_config": LLAMA,
    "speculators_config": {"algorithm": "dflash", "verifier": {"name_or_path": "maker/target"}},
}


def with_own(**keys: object) -> Table:
    return NATIVE | {"dflash_config": NATIVE["dflash_config"] | keys}


def without(config: Table, *keys: str) -> Table:
    return {key: value for key, value in config.items() if key not in keys}


def read(config: Table, tensors: frozenset[str] | None = None) -> DraftPart:
    draft = parse_draft_part(config, tensors)
    assert draft is not None
    return draft


def test_both_layouts_are_read_and_mean_the_same_layers() -> None:
    assert read(NATIVE) == DraftPart(
        family="dflash",
        layout="native",
        block_size=16,
        target_layer_ids=(1, 3, 5, 7, 9),
        layer_id_convention="layer-output",
        target_layers=12,
        mask_token_id=3,
        drafts_from_anchor=False,
    )
    assert read(SPECULATORS) == DraftPart(
        family="dflash",
        layout="speculators",
        block_size=16,
        target_layer_ids=(2, 4, 6, 8, 10),
        layer_id_convention="hidden-state",
        target_hidden_size=64,
        mask_token_id=3,
        drafts_from_anchor=False,
        draft_vocabulary=100,
        causal_statements={"sliding_window_non_causal": False},
        verifier="maker/target",
    )
    assert read(NATIVE).layer_outputs == read(SPECULATORS).layer_outputs == (1, 3, 5, 7, 9)


def test_what_a_config_does_not_say_is_unknown() -> None:
    draft = read({"architectures": ["DFlashDraftModel"]})
    assert draft == DraftPart(family="dflash", layout="native", drafts_from_anchor=False)
    assert (draft.longest_draft, draft.layer_outputs) == (None, None)


BARE = without(NATIVE, "dflash_config")


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (NATIVE | {"eagle_aux_hidden_state_layer_ids": [2, 4]}, "auxiliary_ids", (2, 4)),
        (BARE | {"target_layer_ids": [1, 9]}, "target_layer_ids", (1, 9)),
        (BARE | {"mask_token_id": 7}, "mask_token_id", 7),
        (with_own(use_swa=True), "forced_sliding", True),
        (with_own(use_swa=False), "forced_sliding", False),
        (NATIVE, "longest_draft", 15),
        (with_own(sample_from_anchor=True), "longest_draft", 16),
        (NATIVE | {"architectures": ["Qwen3DSparkModel"]}, "longest_draft", 16),
        (
            with_own(sample_from_anchor=False) | {"architectures": ["Qwen3DSparkModel"]},
            "longest_draft",
            15,
        ),
        (SPECULATORS, "longest_draft", 15),
        (SPECULATORS | {"sample_from_anchor": True}, "longest_draft", 16),
        (SPECULATORS | {"speculators_model_type": "dspark"}, "longest_draft", 16),
        (NATIVE, "causal_statements", {}),
        (NATIVE | {"is_causal": False}, "causal_statements", {"is_causal": False}),
        (
            with_own(causal=True) | {"is_causal": False},
            "causal_statements",
            {"is_causal": False, "dflash_config.causal": True},
        ),
        (
            SPECULATORS | {"sliding_window_non_causal": False},
            "causal_statements",
            {"sliding_window_non_causal": True},
        ),
        (without(SPECULATORS, "sliding_window_non_causal"), "causal_statements", {}),
    ],
)
def test_a_key_of_a_config_is_read(config: Table, field: str, value: object) -> None:
    assert getattr(read(config), field) == value


@pytest.mark.parametrize(
    ("config", "family"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "dflash"),
        ({"architectures": ["DFlashLagunaForCausalLM"]}, "dflash"),
        ({"architectures": ["DFlash2DraftModel"]}, "dflash2"),
        ({"architectures": ["DSparkDraftModel"]}, "dspark"),
        ({"architectures": ["Gemma4DSparkModel"]}, "dspark"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "eagle3"),
        ({"architectures": ["Eagle3Qwen3ForCausalLM"]}, "eagle3"),
        ({"architectures": ["EagleLlamaForCausalLM"]}, "eagle"),
        ({"architectures": ["DeepSeekMTPModel"]}, "mtp"),
        ({"architectures": ["Qwen3NextMTP"]}, "mtp"),
        (NATIVE | {"architectures": ["Qwen3ForCausalLM"]}, "dflash"),
        (SPECULATORS | {"speculators_model_type": "dflash2"}, "dflash2"),
        (SPECULATORS | {"speculators_model_type": "eagle3"}, "eagle3"),
        (SPECULATORS | {"speculators_model_type": "peagle"}, "eagle3"),
        (SPECULATORS | {"speculators_model_type": "mtp"}, "mtp"),
        (SPECULATORS | {"speculators_model_type": "another"}, None),
        (LLAMA, None),
        ({}, None),
        ({"architectures": []}, None),
        ({"architectures": None}, None),
    ],
)
def test_a_family_is_told_by_class_type_or_config(config: Table, family: str | None) -> None:
    draft = parse_draft_part(config, None)
    assert (draft and draft.family) == family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("z-lab/Qwen3-8B-DFlash-b16", "dflash"),
        ("maker/Qwen3.8-27B-DFlash2", "dflash2"),
        ("maker/gemma-4-DSpark", "dspark"),
        ("maker/Llama-EAGLE-3", "eagle3"),
        ("maker/Llama-eagle3", "eagle3"),
        ("maker/Qwen3-Next-MTP", "mtp"),
    ],
)
def test_of_a_drafter_known_by_name_only_the_name_tells_the_family(name: str, family: str) -> None:
    assert guess_family(name) == family


@pytest.mark.parametrize("config", [NATIVE, SPECULATORS])
def test_the_tensors_tell_of_a_map_and_a_head_unless_the_config_does(config: Table) -> None:
    whole = frozenset({"d2t", "lm_head.weight"})
    drafts = (
        read(config, whole),
        read(config, frozenset({"fc.weight"})),
        read(config | {"has_own_lm_head": False}, whole),
    )
    told = [(draft.has_vocabulary_map, draft.own_head) for draft in drafts]
    assert told == [(True, True), (False, False), (True, False)]
