"""One pair that fits, then everything that can part a drafter from its target, one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.checkpoint import DraftPart
from slipstream.checkpoints.pairing import pair
from slipstream.proving_ground.untrained_drafter import DrafterShape, drafter_config
from tests.unit.checkpoints.folders import (
    LLAMA,
    TOKENIZER,
    Table,
    drafter_tensors,
    write_checkpoint,
)
from tests.unit.checkpoints.pairs import (
    DRAFTER,
    DRAFTERS,
    NATIVE,
    SLIDING,
    SPECULATORS,
    Bench,
    refusal,
    warning,
    with_own,
    with_rope,
)

OR_A_MODEL = f"{DRAFTERS}, or --method draft_model for a smaller model"


def test_a_drafter_made_for_its_target_has_no_faults(bench: Bench) -> None:
    drafter = bench.drafter()
    pairing = pair(bench.target, drafter, draft_length=7, context=4096)
    assert pairing.faults == ()
    assert (pairing.target, pairing.drafter) == (bench.target, drafter)
    assert (pairing.draft_length, pairing.context) == (7, 4096)


def test_the_same_drafter_in_the_layout_of_speculators_has_none_either(bench: Bench) -> None:
    assert bench.faults(bench.drafter(SPECULATORS), k=7, context=4096) == ()


def test_a_model_that_drafts_nothing_is_not_a_drafter(bench: Bench) -> None:
    message = "maker/drafter is a LlamaForCausalLM, not a drafter"
    assert bench.faults(bench.drafter(LLAMA)) == (refusal("not-a-drafter", message, OR_A_MODEL),)


def test_a_model_without_an_architecture_is_not_a_drafter_either(bench: Bench) -> None:
    nameless = Checkpoint(name=DRAFTER, source="test")
    message = "maker/drafter is a model, not a drafter"
    assert bench.faults(nameless) == (refusal("not-a-drafter", message, OR_A_MODEL),)


def test_a_draft_longer_than_the_block_is_refused(bench: Bench) -> None:
    message = (
        "8 draft tokens were asked for, but maker/drafter was trained on "
        "blocks of 8 and drafts at most 7"
    )
    assert bench.faults(bench.drafter(), k=8) == (refusal("draft-length", message, "--k 7"),)


def test_a_drafter_that_samples_from_the_anchor_drafts_one_more(bench: Bench) -> None:
    drafter = bench.drafter(with_own(sample_from_anchor=True))
    assert bench.faults(drafter, k=8) == ()
    (fault,) = bench.faults(drafter, k=9)
    assert (fault.code, fault.hint) == ("draft-length", "--k 8")


def test_another_hidden_size_is_refused(bench: Bench) -> None:
    message = "drafter maker/drafter was made for hidden size 80, but maker/target has 64"
    drafter = bench.drafter(NATIVE | {"hidden_size": 80})
    assert bench.faults(drafter) == (refusal("hidden-size", message),)


def test_a_narrow_drafter_that_names_its_targets_size_fits(bench: Bench) -> None:
    assert bench.faults(bench.drafter(NATIVE | {"hidden_size": 32, "target_hidden_size": 64})) == ()


def test_another_vocabulary_size_is_refused(bench: Bench) -> None:
    message = "maker/drafter has 320 tokens in its vocabulary, maker/target 300"
    drafter = bench.drafter(NATIVE | {"vocab_size": 320})
    assert bench.faults(drafter) == (refusal("vocabulary-size", message),)


def test_equal_sizes_do_not_hide_another_tokenizer(bench: Bench) -> None:
    swapped = TOKENIZER | {"model": {"type": "BPE", "vocab": {"b": 0, "a": 1, "c": 2}}}
    drafter = bench.drafter(tokenizer=swapped)
    ours, theirs = drafter.tokenizer_sha256, bench.target.tokenizer_sha256
    assert ours is not None
    assert theirs is not None
    message = (
        f"the tokenizers differ: maker/drafter has {ours[:12]}, maker/target has {theirs[:12]}"
    )
    assert bench.faults(drafter) == (refusal("tokenizer", message),)


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        (with_own(target_layer_ids=[1, 5, 13]), "13"),
        (with_own(target_layer_ids=[1, 13, 40]), "13, 40"),
        (SPECULATORS | {"aux_hidden_state_layer_ids": [2, 14]}, "13"),
        pytest.param(SPECULATORS | {"aux_hidden_state_layer_ids": [2, 13]}, "12"),
    ],
)
def test_layers_that_the_target_does_not_have_are_refused(
    bench: Bench, config: Table, shown: str
) -> None:
    message = f"maker/drafter reads target layers {shown}, but maker/target has layers 0 to 11"
    assert bench.faults(bench.drafter(config)) == (refusal("layer-range", message),)


@pytest.mark.parametrize(
    ("ids", "shown", "fed"),
    [([9, 1, 5], "9, 1, 5", "1, 5, 9"), ([1, 5, 5, 9], "1, 5, 5, 9", "1, 5, 9")],
)
def test_layers_that_vllm_would_permute_are_refused(
    bench: Bench, ids: list[int], shown: str, fed: str
) -> None:
    message = f"maker/drafter lists its target layers as {shown}, and vLLM would feed them as {fed}"
    drafter = bench.drafter(with_own(target_layer_ids=ids))
    assert bench.faults(drafter) == (refusal("layer-order", message),)


def test_two_lists_that_are_not_one_apart_are_refused(bench: Bench) -> None:
    message = (
        "maker/drafter lists layer outputs 1, 3, 5, 7, 9 and hidden states "
        "1, 3, 5, 7, 9, which would have to be one higher each"
    )
    drafter = bench.drafter(NATIVE | {"eagle_aux_hidden_state_layer_ids": [1, 3, 5, 7, 9]})
    assert bench.faults(drafter) == (refusal("layer-convention", message),)


def test_two_lists_that_are_one_apart_fit(bench: Bench) -> None:
    drafter = bench.drafter(NATIVE | {"eagle_aux_hidden_state_layer_ids": [2, 4, 6, 8, 10]})
    assert bench.faults(drafter) == ()


def test_layer_outputs_up_to_the_count_are_hidden_states_in_disguise(bench: Bench) -> None:
    message = (
        "maker/drafter counts up to layer 12 of a target with layers 0 to 11: "
        "its ids 2, 7, 12 are hidden states, one too high"
    )
    drafter = bench.drafter(with_own(target_layer_ids=[2, 7, 12]))
    assert bench.faults(drafter) == (refusal("layer-convention", message),)


def test_a_hidden_state_zero_is_a_layer_output_in_disguise(bench: Bench) -> None:
    message = (
        "maker/drafter reads hidden state 0, the embedding: "
        "its ids 0, 5, 9 are layer outputs, one too low"
    )
    drafter = bench.drafter(SPECULATORS | {"aux_hidden_state_layer_ids": [0, 5, 9]})
    assert bench.faults(drafter) == (refusal("layer-convention", message),)


@pytest.mark.parametrize(
    "config",
    [
        with_own(target_layer_ids=[0, 11]),
        SPECULATORS | {"aux_hidden_state_layer_ids": [1, 12]},
    ],
)
def test_the_first_and_the_last_layer_may_be_read(bench: Bench, config: Table) -> None:
    assert bench.faults(bench.drafter(config)) == ()


def test_a_drafter_without_a_mask_is_refused(bench: Bench) -> None:
    message = "maker/drafter names no mask_token_id, so it cannot draft"
    drafter = bench.drafter(with_own(mask_token_id=None))
    assert bench.faults(drafter) == (refusal("mask-missing", message),)


def test_an_eagle_needs_no_mask(bench: Bench) -> None:
    config = with_own(mask_token_id=None) | {"architectures": ["LlamaForCausalLMEagle3"]}
    assert bench.faults(bench.drafter(config)) == ()


@pytest.mark.parametrize("mask", [300, 151669, -1])
def test_a_mask_that_the_embedding_has_no_row_for_is_refused(bench: Bench, mask: int) -> None:
    message = f"maker/drafter masks with token {mask}, but maker/target has only tokens 0 to 299"
    drafter = bench.drafter(with_own(mask_token_id=mask))
    assert bench.faults(drafter) == (refusal("mask-outside", message),)


def test_a_context_that_was_asked_for_and_the_drafter_does_not_know_is_refused(
    bench: Bench,
) -> None:
    message = "maker/drafter knows 2048 positions, but 2049 would be served"
    drafter = bench.drafter(NATIVE | {"max_position_embeddings": 2048})
    assert bench.faults(drafter, context=2049) == (
        refusal("drafter-context", message, "--context 2048"),
    )
    assert bench.faults(drafter, context=2048) == ()


def test_a_target_that_could_serve_more_than_the_drafter_knows_only_warns(bench: Bench) -> None:
    message = "maker/drafter knows 2048 positions, but 4096 would be served"
    drafter = bench.drafter(NATIVE | {"max_position_embeddings": 2048})
    assert bench.faults(drafter) == (warning("drafter-context", message, "--context 2048"),)


def test_another_rope_base_warns(bench: Bench) -> None:
    message = "rope theta is 1e+06 in maker/drafter and 10000 in maker/target"
    hint = "watch vllm:spec_decode_num_accepted_tokens on /metrics: it shows if this is right"
    drafter = bench.drafter(with_rope(rope_theta=1e6))
    assert bench.faults(drafter) == (warning("rope-theta", message, hint),)


def test_another_rope_scaling_warns(bench: Bench) -> None:
    message = "rope scaling is yarn x4 in maker/drafter and default in maker/target"
    hint = "keep --context within what both know unscaled"
    drafter = bench.drafter(with_rope(rope_type="yarn", factor=4.0))
    assert bench.faults(drafter) == (warning("rope-scaling", message, hint),)


def test_a_reduced_vocabulary_without_its_map_is_refused(bench: Bench) -> None:
    message = "maker/drafter drafts from 100 of 300 tokens, but has no tensor d2t that says which"
    drafter = bench.drafter(NATIVE | {"draft_vocab_size": 100})
    assert bench.faults(drafter) == (refusal("vocabulary-map", message),)


@pytest.mark.parametrize("reduced", [100, 300])
def test_a_vocabulary_with_its_map_or_of_full_size_fits(bench: Bench, reduced: int) -> None:
    tensors = dict(drafter_tensors(NATIVE))
    if reduced == 100:
        tensors["d2t"] = ("I64", (100,))
    drafter = bench.drafter(NATIVE | {"draft_vocab_size": reduced}, tensors=tensors)
    assert bench.faults(drafter) == ()


def test_a_drafter_for_another_depth_is_refused(bench: Bench) -> None:
    message = "maker/drafter was made for a target of 36 layers, maker/target has 12"
    drafter = bench.drafter(NATIVE | {"num_target_layers": 36})
    assert bench.faults(drafter) == (refusal("target-layers", message),)


def test_a_drafter_for_another_verifier_warns(bench: Bench) -> None:
    verifier = {"verifier": {"name_or_path": "other/model-8B"}}
    message = "maker/drafter was trained for other/model-8B, not for maker/target"
    hint = "watch vllm:spec_decode_num_accepted_tokens on /metrics: it may be lower than published"
    drafter = bench.drafter(SPECULATORS | {"speculators_config": verifier})
    assert bench.faults(drafter) == (warning("verifier", message, hint),)


@pytest.mark.parametrize("name", ["maker/target", "/models/Target/", "other/TARGET"])
def test_a_verifier_of_the_same_name_is_the_target(bench: Bench, name: str) -> None:
    drafter = bench.drafter(
        SPECULATORS | {"speculators_config": {"verifier": {"name_or_path": name}}}
    )
    assert bench.faults(drafter) == ()


def test_a_build_of_the_verifier_is_taken_for_it(bench: Bench) -> None:
    build = bench.target.model_copy(update={"name": "quantizer/target-NVFP4"})
    assert pair(build, bench.drafter(SPECULATORS)).faults == ()


def test_all_faults_of_a_pair_are_named_at_once(bench: Bench) -> None:
    config = with_own(mask_token_id=300, target_layer_ids=[9, 1]) | {"hidden_size": 80}
    codes = [fault.code for fault in bench.faults(bench.drafter(config), k=8)]
    assert codes == ["hidden-size", "mask-outside", "layer-order", "draft-length"]


def test_what_nobody_knows_is_no_fault(bench: Bench) -> None:
    unknown = Checkpoint(name="maker/unknown", source="test")
    unknown_drafter = unknown.model_copy(update={"draft": DraftPart(family="dflash")})
    assert pair(unknown, unknown_drafter).faults == ()
    assert pair(bench.target, unknown_drafter, draft_length=99, context=10**9).faults == ()
    assert pair(unknown, bench.drafter(), draft_length=7, context=4096).faults == ()


@pytest.mark.parametrize(
    "fact",
    [
        "hidden_size",
        "layers",
        "vocabulary_size",
        "context",
        "rope",
        "weights",
        "tokenizer_sha256",
        "architecture",
    ],
)
def test_a_single_unknown_fact_of_either_is_no_fault(bench: Bench, fact: str) -> None:
    drafter = bench.drafter()
    assert pair(bench.target.model_copy(update={fact: None}), drafter).faults == ()
    assert pair(bench.target, drafter.model_copy(update={fact: None})).faults == ()


def test_a_recipes_few_facts_do_not_accuse_a_drafter_of_silence(bench: Bench) -> None:
    config = with_own(mask_token_id=None) | SLIDING
    partly = bench.drafter(config).model_copy(update={"complete": False})
    assert bench.faults(partly) == ()


@some.composite
def targets_and_shapes(draw: some.DrawFn) -> tuple[Table, DrafterShape]:
    layers = draw(some.integers(4, 100))
    vocabulary = draw(some.integers(2, 300_000))
    context = draw(some.integers(16, 300_000))
    target = LLAMA | {
        "hidden_size": draw(some.sampled_from([64, 576, 2048, 5376])),
        "num_hidden_layers": layers,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "rope_parameters": {"rope_theta": draw(some.floats(1e3, 1e8)), "rope_type": "default"},
    }
    ids = some.sets(some.integers(0, layers - 1), min_size=1, max_size=8)
    shape = DrafterShape(
        layers=draw(some.integers(1, 8)),
        block_size=draw(some.integers(2, 32)),
        target_layer_ids=draw(some.none() | ids.map(lambda chosen: tuple(sorted(chosen)))),
        mask_token_id=draw(some.integers(0, vocabulary - 1)),
        attention_heads=draw(some.none() | some.integers(1, 64)),
        key_value_heads=draw(some.none() | some.integers(1, 8)),
        head_size=draw(some.none() | some.sampled_from([32, 64, 128, 256])),
        context=draw(some.none() | some.integers(context, 2 * context)),
    )
    return target, shape


@settings(deadline=None)
@given(targets_and_shapes())
def test_a_drafter_made_for_any_target_in_any_shape_fits(made: tuple[Table, DrafterShape]) -> None:
    config, shape = made
    with TemporaryDirectory() as root:
        target = read_checkpoint(str(write_checkpoint(Path(root, "target"), config)))
        made_for_it = write_checkpoint(Path(root, "drafter"), drafter_config(config, shape))
        drafter = read_checkpoint(str(made_for_it))
    longest = shape.block_size - 1
    assert pair(target, drafter, draft_length=longest, context=target.context).faults == ()
    longer = pair(target, drafter, draft_length=longest + 1).faults
    assert [fault.code for fault in longer] == ["draft-length"]
