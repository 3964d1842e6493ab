"""A drafter is known by its config, in the native layout and in that of speculators."""

import pytest

from slipstream.checkpoints.draft_part import guess_family, parse_draft_part
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.checkpoints.folders import LLAMA, Table

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


def test_a_native_drafter_counts_layer_outputs() -> None:
    draft = parse_draft_part(NATIVE, None)
    assert draft is not None
    assert (draft.family, draft.layout) == ("dflash", "native")
    assert draft.target_layer_ids == (1, 3, 5, 7, 9)
    assert draft.layer_id_convention == "layer-output"
    assert draft.layer_outputs == (1, 3, 5, 7, 9)
    assert (draft.block_size, draft.mask_token_id, draft.target_layers) == (16, 3, 12)


def test_a_speculators_drafter_counts_one_higher_and_means_the_same() -> None:
    draft = parse_draft_part(SPECULATORS, None)
    assert draft is not None
    assert (draft.family, draft.layout) == ("dflash", "speculators")
    assert draft.target_layer_ids == (2, 4, 6, 8, 10)
    assert draft.layer_id_convention == "hidden-state"
    assert draft.layer_outputs == (1, 3, 5, 7, 9)
    assert (draft.block_size, draft.mask_token_id) == (16, 3)
    assert (draft.draft_vocabulary, draft.target_hidden_size) == (100, 64)
    assert draft.verifier == "maker/target"


def test_a_second_list_of_a_native_config_is_kept() -> None:
    draft = parse_draft_part(NATIVE | {"eagle_aux_hidden_state_layer_ids": [2, 4]}, None)
    assert draft is not None
    assert draft.auxiliary_ids == (2, 4)


def test_ids_and_mask_may_stand_at_the_top_of_a_native_config() -> None:
    config = without(NATIVE, "dflash_config") | {"target_layer_ids": [1, 9], "mask_token_id": 7}
    draft = parse_draft_part(config, None)
    assert draft is not None
    assert (draft.target_layer_ids, draft.mask_token_id) == ((1, 9), 7)


def test_what_a_config_does_not_say_is_unknown() -> None:
    draft = parse_draft_part({"architectures": ["DFlashDraftModel"]}, None)
    assert draft is not None
    assert draft.block_size is None
    assert draft.longest_draft is None
    assert draft.target_layer_ids is None
    assert draft.layer_id_convention is None
    assert draft.layer_outputs is None
    assert draft.mask_token_id is None
    assert draft.own_head is None
    assert draft.has_vocabulary_map is None
    assert draft.causal_statements == {}


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("DFlashDraftModel", "dflash"),
        ("DFlashLagunaForCausalLM", "dflash"),
        ("DFlash2DraftModel", "dflash2"),
        ("DSparkDraftModel", "dspark"),
        ("Qwen3DSparkModel", "dspark"),
        ("Gemma4DSparkModel", "dspark"),
        ("LlamaForCausalLMEagle3", "eagle3"),
        ("Eagle3Qwen3ForCausalLM", "eagle3"),
        ("DeepSeekMTPModel", "mtp"),
        ("Qwen3NextMTP", "mtp"),
    ],
)
def test_a_family_is_told_by_the_architecture(architecture: str, family: str) -> None:
    draft = parse_draft_part({"architectures": [architecture]}, None)
    assert draft is not None
    assert draft.family == family


@pytest.mark.parametrize("kind", ["dflash", "dflash2", "dspark", "eagle3", "mtp"])
def test_a_family_is_told_by_the_type_that_speculators_names(kind: str) -> None:
    draft = parse_draft_part(SPECULATORS | {"speculators_model_type": kind}, None)
    assert draft is not None
    assert draft.family == kind


def test_a_parallel_eagle_is_an_eagle() -> None:
    draft = parse_draft_part(SPECULATORS | {"speculators_model_type": "peagle"}, None)
    assert draft is not None
    assert draft.family == "eagle3"


def test_a_class_of_any_name_with_a_dflash_config_is_a_dflash_drafter() -> None:
    draft = parse_draft_part(NATIVE | {"architectures": ["Qwen3ForCausalLM"]}, None)
    assert draft is not None
    assert draft.family == "dflash"


@pytest.mark.parametrize("config", [LLAMA, {}, {"architectures": []}, {"architectures": None}])
def test_a_model_that_drafts_nothing_has_no_draft_part(config: Table) -> None:
    assert parse_draft_part(config, None) is None


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
def test_the_tensors_tell_of_a_map_and_a_head(config: Table) -> None:
    both = parse_draft_part(config, frozenset({"d2t", "lm_head.weight"}))
    neither = parse_draft_part(config, frozenset({"fc.weight"}))
    assert both is not None
    assert neither is not None
    assert (both.has_vocabulary_map, both.own_head) == (True, True)
    assert (neither.has_vocabulary_map, neither.own_head) == (False, False)


def test_a_config_that_speaks_of_its_head_goes_before_the_tensors() -> None:
    config = NATIVE | {"has_own_lm_head": False}
    draft = parse_draft_part(config, frozenset({"lm_head.weight"}))
    assert draft is not None
    assert draft.own_head is False


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        (NATIVE, 15),
        (with_own(sample_from_anchor=True), 16),
        (NATIVE | {"architectures": ["Qwen3DSparkModel"]}, 16),
        (with_own(sample_from_anchor=False) | {"architectures": ["Qwen3DSparkModel"]}, 15),
        (SPECULATORS, 15),
        (SPECULATORS | {"sample_from_anchor": True}, 16),
        (SPECULATORS | {"speculators_model_type": "dspark"}, 16),
    ],
)
def test_the_anchor_is_drafted_only_where_it_is_sampled_from(config: Table, longest: int) -> None:
    draft = parse_draft_part(config, None)
    assert draft is not None
    assert draft.longest_draft == longest


@pytest.mark.parametrize(
    ("config", "statements"),
    [
        (NATIVE, {}),
        (NATIVE | {"is_causal": False}, {"is_causal": False}),
        (with_own(causal=True), {"dflash_config.causal": True}),
        (
            with_own(causal=True) | {"is_causal": False},
            {"is_causal": False, "dflash_config.causal": True},
        ),
        (SPECULATORS, {"sliding_window_non_causal": False}),
        (SPECULATORS | {"sliding_window_non_causal": False}, {"sliding_window_non_causal": True}),
        (without(SPECULATORS, "sliding_window_non_causal"), {}),
    ],
)
def test_every_word_on_causality_is_kept(config: Table, statements: dict[str, bool]) -> None:
    draft = parse_draft_part(config, None)
    assert draft is not None
    assert draft.causal_statements == statements


@pytest.mark.parametrize("forced", [True, False])
def test_use_swa_forces_a_window_on_every_layer(forced: bool) -> None:
    draft = parse_draft_part(with_own(use_swa=forced), None)
    assert draft is not None
    assert draft.forced_sliding is forced
