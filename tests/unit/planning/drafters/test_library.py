"""What is known without the files: found by name, completed, never mixed up."""

from typing import Any

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint, DraftPart, Layers, Weights
from slipstream.planning.drafters.library import Library, complete_facts
from slipstream.recipes import load_drafters, load_models
from tests.unit.planning.cells import read_nothing
from tests.unit.planning.pieces import DRAFTER

LIBRARY = Library(read_nothing, load_drafters=load_drafters, load_models=load_models)
BARE = Checkpoint(name=DRAFTER.name, source="a recipe", draft=DraftPart(family="dflash"))
KNOWN = DRAFTER.model_copy(update={"complete": False})


def describe(name: str) -> Checkpoint:
    found = LIBRARY.describe(name)
    assert found is not None
    return found


def test_a_drafter_and_a_target_are_described_by_their_names() -> None:
    drafter = describe("z-lab/GPT-OSS-120B-DFlash").draft
    assert drafter is not None
    assert drafter.longest_draft == 9
    assert describe("openai/gpt-oss-120b").attention_sinks
    # A build has the shape of its base, and a drafter without facts what the index says.
    build = describe("somebody/Llama-3.3-70B-Instruct-AWQ")
    assert (build.layer_count, build.weights) == (80, None)
    bare = describe("deepseek-ai/dflash_qwen3_14b_block7").draft
    assert bare is not None
    assert (bare.family, bare.verifier) == ("dspark", "Qwen/Qwen3-14B")
    eagle = describe("yuhuili/EAGLE-LLaMA3.1-Instruct-8B").draft
    assert eagle is not None
    assert eagle.family == "eagle"
    assert LIBRARY.describe("nobody/nothing") is None


def test_a_name_is_known_with_or_without_facts() -> None:
    assert LIBRARY.knows("google/gemma-4-12B-it")
    assert LIBRARY.knows("AngelSlim/Qwen3-8B_eagle3")
    assert not LIBRARY.knows("nobody/nothing")
    assert not Library(read_nothing).knows("google/gemma-4-12B-it")


def test_what_a_recipe_leaves_open_is_filled() -> None:
    filled = complete_facts(BARE, KNOWN)
    known = (KNOWN.layers, KNOWN.weights, KNOWN.draft)
    assert (filled.layers, filled.weights, filled.draft) == known
    assert filled.source == "a recipe"
    unsized = BARE.model_copy(update={"layers": (Layers(kind="full", count=5),)})
    assert complete_facts(unsized, KNOWN).layers == KNOWN.layers


SIZED = (Layers(kind="full", count=5, key_value_heads=1, head_size=1),)


@pytest.mark.parametrize(
    ("stated", "mixed"),
    [
        ({"weights": Weights(total_bytes=1)}, True),
        ({"layers": SIZED}, True),
        # Facts of other files are not mixed in, nor into what was read whole.
        ({"hidden_size": 5120}, False),
        ({"draft": DraftPart(family="dflash", block_size=8)}, False),
        ({"draft": DraftPart(family="dflash2")}, False),
        ({"complete": True}, False),
    ],
)
def test_what_a_recipe_states_is_kept(stated: dict[str, Any], mixed: bool) -> None:
    facts = BARE.model_copy(update=stated)
    completed = complete_facts(facts, KNOWN)
    assert {name: getattr(completed, name) for name in stated} == stated
    assert (completed != facts) is mixed
    assert complete_facts(facts, None) == facts
