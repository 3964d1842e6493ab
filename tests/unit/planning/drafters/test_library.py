"""What is known without the files: found by name, completed, never mixed up."""

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Layers, Weights
from slipstream.planning.drafters.library import Library, complete_facts
from slipstream.recipes import load_drafters, load_models
from tests.unit.planning.cells import read_nothing
from tests.unit.planning.pieces import DRAFTER

LIBRARY = Library(read_nothing, load_drafters=load_drafters, load_models=load_models)
BARE = Checkpoint(name=DRAFTER.name, source="a recipe", draft=DraftPart(family="dflash"))
KNOWN = DRAFTER.model_copy(update={"complete": False})


def test_a_drafter_and_a_target_are_described_by_their_names() -> None:
    drafter = LIBRARY.describe("z-lab/GPT-OSS-120B-DFlash")
    assert drafter is not None
    assert drafter.draft is not None
    assert drafter.draft.longest_draft == 9
    target = LIBRARY.describe("openai/gpt-oss-120b")
    assert target is not None
    assert target.attention_sinks
    assert LIBRARY.describe("nobody/nothing") is None


def test_a_drafter_without_facts_is_what_the_index_says() -> None:
    bare = LIBRARY.describe("deepseek-ai/dflash_qwen3_14b_block7")
    assert bare is not None
    assert bare.draft is not None
    assert (bare.draft.family, bare.draft.verifier) == ("dspark", "Qwen/Qwen3-14B")
    eagle = LIBRARY.describe("yuhuili/EAGLE-LLaMA3.1-Instruct-8B")
    assert eagle is not None
    assert eagle.draft is not None
    assert eagle.draft.family == "eagle"


def test_a_build_is_described_by_the_shape_of_its_base() -> None:
    build = LIBRARY.describe("somebody/Llama-3.3-70B-Instruct-AWQ")
    assert build is not None
    assert (build.name, build.layer_count, build.weights) == (
        "somebody/Llama-3.3-70B-Instruct-AWQ",
        80,
        None,
    )


def test_a_name_is_known_with_or_without_facts() -> None:
    assert LIBRARY.knows("google/gemma-4-12B-it")
    assert LIBRARY.knows("AngelSlim/Qwen3-8B_eagle3")
    assert not LIBRARY.knows("nobody/nothing")
    assert not Library(read_nothing).knows("google/gemma-4-12B-it")


def test_what_a_recipe_leaves_open_is_filled() -> None:
    filled = complete_facts(BARE, KNOWN)
    assert filled.layers == KNOWN.layers
    assert filled.weights == KNOWN.weights
    assert filled.draft == KNOWN.draft
    assert filled.source == "a recipe"


def test_what_a_recipe_states_is_kept() -> None:
    stated = BARE.model_copy(update={"weights": Weights(total_bytes=1)})
    assert complete_facts(stated, KNOWN).weights == Weights(total_bytes=1)


def test_layers_without_sizes_are_replaced_and_with_sizes_kept() -> None:
    layers = (Layers(kind="full", count=5),)
    assert complete_facts(BARE.model_copy(update={"layers": layers}), KNOWN).layers == KNOWN.layers
    sized = (Layers(kind="full", count=5, key_value_heads=1, head_size=1),)
    assert complete_facts(BARE.model_copy(update={"layers": sized}), KNOWN).layers == sized


def test_facts_of_other_files_are_not_mixed_in() -> None:
    wider = BARE.model_copy(update={"hidden_size": 5120})
    assert complete_facts(wider, KNOWN) == wider
    longer = BARE.model_copy(update={"draft": DraftPart(family="dflash", block_size=8)})
    assert complete_facts(longer, KNOWN) == longer
    other = BARE.model_copy(update={"draft": DraftPart(family="dflash2")})
    assert complete_facts(other, KNOWN) == other
    read = BARE.model_copy(update={"complete": True})
    assert complete_facts(read, KNOWN) == read
    assert complete_facts(BARE, None) == BARE
