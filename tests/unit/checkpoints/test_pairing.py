"""One pair that fits, then everything that can part a drafter from its target, one by one."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from slipstream.checkpoints import Checkpoint, read_checkpoint
from slipstream.checkpoints.checkpoint import DraftPart
from slipstream.checkpoints.pairing import pair
from tests.unit.checkpoints.folders import (
    LLAMA,
    TOKENIZER,
    Table,
    drafter_tensors,
    write_checkpoint,
)
from tests.unit.checkpoints.pairs import (
    DRAFTER,
    NATIVE,
    SLIDING,
    SPECULATORS,
    Bench,
    with_layers,
    with_own,
    with_rope,
)
from tests.untrained_drafter import DrafterShape, drafter_config

AUX = "aux_hidden_state_layer_ids"
SHORT = NATIVE | {"max_position_embeddings": 2048}
FULL_AND_SLIDING = {"layer_types": ["full_attention", "sliding_attention"], "num_hidden_layers": 2}
ONLY_SLIDING = SLIDING | {"layer_types": ["sliding_attention"], "num_hidden_layers": 1}
SERVED_CAUSAL = {"sliding_window_non_causal": False}
SWA = with_own(use_swa=True, swa_window_size=512)
EAGLE = {"architectures": ["LlamaForCausalLMEagle3"]}


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def verify(name: str) -> Table:
    return SPECULATORS | {"speculators_config": {"verifier": {"name_or_path": name}}}


def silent(config: Table) -> Table:
    return {key: value for key, value in config.items() if key != "sliding_window_non_causal"}


def test_a_drafter_made_for_its_target_has_no_faults(bench: Bench) -> None:
    drafter = bench.drafter()
    pairing = pair(bench.target, drafter, draft_length=7, context=4096)
    assert (pairing.faults, pairing.refusals) == ((), ())
    assert (pairing.target, pairing.drafter) == (bench.target, drafter)
    assert (pairing.draft_length, pairing.context) == (7, 4096)


# A config, the load, the code with "!" for a refusal, and values that its message names.
@pytest.mark.parametrize(
    ("config", "load", "code", "values"),
    [
        (LLAMA, {}, "not-a-drafter!", ("LlamaForCausalLM",)),
        (NATIVE, {"k": 8}, "draft-length!", ("8", "at most 7")),
        (with_own(sample_from_anchor=True), {"k": 9}, "draft-length!", ("at most 8",)),
        (NATIVE | {"hidden_size": 80}, {}, "hidden-size!", ("80", "64")),
        (NATIVE | {"vocab_size": 320}, {}, "vocabulary-size!", ("320", "300")),
        (NATIVE | {"draft_vocab_size": 100}, {}, "vocabulary-map!", ("100 of 300", "d2t")),
        (with_own(target_layer_ids=[1, 5, 13]), {}, "layer-range!", (" 13,", "0 to 11")),
        (with_own(target_layer_ids=[1, 13, 40]), {}, "layer-range!", (" 13, 40,",)),
        (SPECULATORS | {AUX: [2, 14]}, {}, "layer-range!", (" 13,",)),
        (SPECULATORS | {AUX: [2, 13]}, {}, "layer-range!", (" 12,",)),
        (with_own(target_layer_ids=[9, 1, 5]), {}, "layer-order!", ("9, 1, 5", "1, 5, 9")),
        (with_own(target_layer_ids=[1, 5, 5, 9]), {}, "layer-order!", ("as 1, 5, 9",)),
        (
            NATIVE | {f"eagle_{AUX}": [1, 3, 5, 7, 9]},
            {},
            "layer-convention!",
            ("outputs 1, 3, 5, 7, 9", "states 1, 3, 5, 7, 9"),
        ),
        (with_own(target_layer_ids=[2, 7, 12]), {}, "layer-convention!", ("layer 12", "0 to 11")),
        (SPECULATORS | {AUX: [0, 5, 9]}, {}, "layer-convention!", ("hidden state 0", "0, 5, 9")),
        (with_own(mask_token_id=None), {}, "mask-missing!", ("mask_token_id",)),
        (with_own(mask_token_id=300), {}, "mask-outside!", ("300", "0 to 299")),
        (with_own(mask_token_id=-1), {}, "mask-outside!", ("-1", "0 to 299")),
        (SHORT, {"context": 2049}, "drafter-context!", ("2048", "2049")),
        (SHORT, {}, "drafter-context", ("2048", "4096")),
        (with_rope(rope_theta=1e6), {}, "rope-theta", ("1e+06", "10000")),
        (with_rope(rope_type="yarn", factor=4.0), {}, "rope-scaling", ("yarn x4", "default")),
        (NATIVE | {"num_target_layers": 36}, {}, "target-layers!", ("36", "12")),
        (verify("other/model-8B"), {}, "verifier", ("other/model-8B", "maker/target")),
        (
            with_own(causal=True) | {"is_causal": False},
            {},
            "causality!",
            ("is_causal means non-causal", "dflash_config.causal means causal"),
        ),
        (silent(with_layers(**SLIDING)), {}, "causality", ("takes them as non-causal",)),
        (NATIVE | SLIDING, {}, "causality", ("takes them as causal",)),
        (SWA, {}, "causality", ("takes them as non-causal",)),
        (SWA | SLIDING, {}, "causality", ("takes them as causal",)),
        (SPECULATORS | SERVED_CAUSAL, {}, "causality", ("serves them causal",)),
        (
            with_layers(**SLIDING | FULL_AND_SLIDING) | SERVED_CAUSAL,
            {},
            "causality",
            ("serves them causal",),
        ),
    ],
)
def test_each_fault_has_its_code_and_names_its_values(
    bench: Bench, config: Table, load: dict[str, int], code: str, values: tuple[str, ...]
) -> None:
    (fault,) = bench.faults(bench.drafter(config), **load)
    assert fault.code + ("!" if fault.verdict == "refuse" else "") == code
    assert [value for value in (DRAFTER, *values) if value not in fault.message] == []
    assert fault.hint


@pytest.mark.parametrize(
    ("config", "load"),
    [
        (SPECULATORS, {"k": 7, "context": 4096}),
        (with_own(sample_from_anchor=True), {"k": 8}),
        (NATIVE | {"hidden_size": 32, "target_hidden_size": 64}, {}),
        (NATIVE | {f"eagle_{AUX}": [2, 4, 6, 8, 10]}, {}),
        (with_own(target_layer_ids=[0, 11]), {}),
        (SPECULATORS | {AUX: [1, 12]}, {}),
        (with_own(mask_token_id=None) | EAGLE, {}),
        (SHORT, {"context": 2048}),
        (NATIVE | {"draft_vocab_size": 300}, {}),
        (verify("/models/Target/"), {}),
        (verify("other/TARGET"), {}),
        (with_own(causal=True) | SLIDING, {}),
        (with_own(causal=False) | SLIDING, {}),
        (NATIVE | SLIDING | {"is_causal": True}, {}),
        (with_own(causal=True) | {"is_causal": True}, {}),
        (with_layers(**SLIDING), {}),
        (with_layers(**ONLY_SLIDING) | SERVED_CAUSAL, {}),
    ],
)
def test_what_is_close_to_a_fault_is_none(
    bench: Bench, config: Table, load: dict[str, Any]
) -> None:
    assert bench.faults(bench.drafter(config), **load) == ()


@pytest.mark.parametrize(
    ("config", "load", "hint"),
    [
        (NATIVE, {"k": 8}, "--k 7"),
        (SHORT, {"context": 2049}, "--context 2048"),
        (NATIVE | {"hidden_size": 80}, {}, "slipstream models maker/target"),
    ],
)
def test_the_hint_is_what_to_type(
    bench: Bench, config: Table, load: dict[str, int], hint: str
) -> None:
    (fault,) = bench.faults(bench.drafter(config), **load)
    assert fault.hint == hint


def test_a_model_without_an_architecture_is_not_a_drafter_either(bench: Bench) -> None:
    (fault,) = bench.faults(Checkpoint(name=DRAFTER, source="test"))
    assert (fault.code, fault.verdict) == ("not-a-drafter", "refuse")


def test_equal_sizes_do_not_hide_another_tokenizer(bench: Bench) -> None:
    swapped = TOKENIZER | {"model": {"type": "BPE", "vocab": {"b": 0, "a": 1, "c": 2}}}
    drafter = bench.drafter(tokenizer=swapped)
    (fault,) = bench.faults(drafter)
    assert (fault.code, fault.verdict) == ("tokenizer", "refuse")
    hashes = (drafter.tokenizer_sha256, bench.target.tokenizer_sha256)
    assert all(str(one)[:12] in fault.message for one in hashes)


def test_a_reduced_vocabulary_with_its_map_fits(bench: Bench) -> None:
    tensors = dict(drafter_tensors(NATIVE)) | {"d2t": ("I64", (100,))}
    drafter = bench.drafter(NATIVE | {"draft_vocab_size": 100}, tensors=tensors)
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


def test_a_single_unknown_fact_of_either_is_no_fault(bench: Bench) -> None:
    target, drafter = bench.target, bench.drafter()
    facts = ["hidden_size", "layers", "vocabulary_size", "context", "rope", "weights"]
    for fact in (*facts, "tokenizer_sha256", "architecture"):
        assert pair(target.model_copy(update={fact: None}), drafter).faults == (), fact
        assert pair(target, drafter.model_copy(update={fact: None})).faults == (), fact


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
