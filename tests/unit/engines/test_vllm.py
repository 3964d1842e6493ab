"""vLLM 0.32: what it refuses of a pair that fits, and the command that it is started with."""

import pytest

from slipstream.checkpoints.checkpoint import (
    Checkpoint,
    DraftPart,
    Family,
    Layers,
    Quantization,
    Scheme,
)
from slipstream.checkpoints.pairing import Fault
from slipstream.engines.vllm import (
    Runner,
    find_engine_faults,
    read_auxiliary_targets,
)
from slipstream.recipes import load_recipes

TARGET = Checkpoint(name="maker/target", source="test", architecture="Qwen3ForCausalLM")
DRAFTER = Checkpoint(
    name="maker/drafter",
    source="test",
    architecture="DFlashDraftModel",
    layers=(Layers(kind="full", count=5),),
    draft=DraftPart(family="dflash", block_size=16),
)
MIXED = (Layers(kind="sliding", count=4, window=2048), Layers(kind="full", count=1))


def find(
    target: Checkpoint = TARGET,
    drafter: Checkpoint | None = DRAFTER,
    *,
    runner: Runner = "V2",
    on_cpu: bool = False,
    capability: str | None = None,
) -> list[Fault]:
    return list(
        find_engine_faults(target, drafter, runner=runner, on_cpu=on_cpu, capability=capability)
    )


def quantized(checkpoint: Checkpoint, scheme: Scheme, method: str) -> Checkpoint:
    return checkpoint.model_copy(
        update={"quantization": Quantization(scheme=scheme, method=method), "quantized": True}
    )


def of_family(family: Family) -> Checkpoint:
    return DRAFTER.model_copy(update={"draft": DraftPart(family=family)})


@pytest.mark.parametrize("runner", ["V1", "V2"])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_plain_pair_has_no_faults_anywhere(runner: Runner, on_cpu: bool) -> None:
    assert find(runner=runner, on_cpu=on_cpu, capability="12.1") == []


def test_a_class_without_auxiliary_states_is_refused() -> None:
    target = TARGET.model_copy(update={"architecture": "Gemma3ForCausalLM"})
    assert find(target) == [
        Fault(
            code="target-class",
            verdict="refuse",
            message="vLLM 0.32.0 runs no DFlash on Gemma3ForCausalLM: "
            "that class hands out no auxiliary hidden states",
            hint="slipstream plan maker/target --method ngram",
        )
    ]


def test_a_class_matters_only_if_something_drafts_and_it_is_known() -> None:
    gemma = TARGET.model_copy(update={"architecture": "Gemma3ForCausalLM"})
    assert find(gemma, None) == []
    assert find(gemma, DRAFTER.model_copy(update={"draft": None})) == []
    assert find(TARGET.model_copy(update={"architecture": None})) == []


@pytest.mark.parametrize(
    ("drafter", "needs"),
    [
        (of_family("dflash2"), "DFlash2"),
        (of_family("dspark"), "DSpark"),
        (
            DRAFTER.model_copy(update={"layers": MIXED}),
            "a drafter with both sliding and full layers",
        ),
    ],
)
def test_what_only_the_second_runner_does_is_refused_on_the_first(
    drafter: Checkpoint, needs: str
) -> None:
    assert find(drafter=drafter, runner="V1") == [
        Fault(
            code="runner",
            verdict="refuse",
            message=f"maker/drafter is {needs}, which needs vLLM's V2 runner, "
            "and this machine runs V1",
            hint="a plain DFlash drafter, or a CUDA machine",
        )
    ]
    assert find(drafter=drafter, runner="V2") == []


def test_a_drafter_of_sliding_layers_alone_runs_on_the_first_runner() -> None:
    assert find(drafter=DRAFTER.model_copy(update={"layers": MIXED[:1]}), runner="V1") == []


def test_a_quantized_drafter_warns() -> None:
    assert find(drafter=quantized(DRAFTER, "fp8", "modelopt")) == [
        Fault(
            code="quantized-drafter",
            verdict="warn",
            message="maker/drafter is quantized (fp8): vLLM 0.32.0 has "
            "the code for it, but vllm#51581 is open and no success was reported",
            hint="watch vllm:spec_decode_num_accepted_tokens on /metrics; or take it in bfloat16",
        )
    ]


def test_a_target_in_exl3_is_refused_even_without_a_drafter() -> None:
    assert find(quantized(TARGET, "other", "exl3"), None) == [
        Fault(
            code="target-quantization",
            verdict="refuse",
            message="maker/target is stored as exl3, which vLLM 0.32.0 does not load",
            hint="a checkpoint in NVFP4, FP8, INT8, INT4 or bfloat16",
        )
    ]


def test_a_drafter_in_exl3_is_refused_once() -> None:
    (fault,) = find(drafter=quantized(DRAFTER, "other", "exl3"))
    assert (fault.code, fault.verdict) == ("drafter-quantization", "refuse")
    assert fault.message == "maker/drafter is stored as exl3, which vLLM 0.32.0 does not load"


@pytest.mark.parametrize("scheme", ["nvfp4", "mxfp4"])
def test_four_bit_floats_are_refused_on_a_cpu(scheme: Scheme) -> None:
    target = quantized(TARGET, scheme, "modelopt")
    assert find(target, on_cpu=True) == [
        Fault(
            code="target-quantization",
            verdict="refuse",
            message=f"maker/target is stored as {scheme}, which vLLM's CPU build cannot run",
            hint="a checkpoint in bfloat16, FP8, INT8 or INT4",
        )
    ]
    assert find(target, on_cpu=False) == []


@pytest.mark.parametrize("scheme", ["int4", "int8"])
def test_whole_numbers_run_on_a_cpu(scheme: Scheme) -> None:
    assert find(quantized(TARGET, scheme, "awq"), on_cpu=True) == []


@pytest.mark.parametrize(
    ("scheme", "capability", "native"),
    [("nvfp4", "8.6", "10.0"), ("nvfp4", "9.0", "10.0"), ("fp8", "8.6", "8.9")],
)
def test_weights_that_a_generation_unpacks_in_every_step_warn(
    scheme: Scheme, capability: str, native: str
) -> None:
    assert find(quantized(TARGET, scheme, "modelopt"), capability=capability) == [
        Fault(
            code="emulated",
            verdict="warn",
            message=f"{scheme} is native from capability {native} on; on "
            f"{capability} vLLM unpacks the weights in every step",
            hint="a checkpoint in INT4, INT8 or bfloat16, if it is too slow",
        )
    ]


@pytest.mark.parametrize(
    ("scheme", "capability"),
    [("nvfp4", "10.0"), ("nvfp4", "12.1"), ("fp8", "8.9"), ("fp8", "10.0"), ("int4", "8.6")],
)
def test_weights_that_a_generation_runs_natively_do_not(scheme: Scheme, capability: str) -> None:
    assert find(quantized(TARGET, scheme, "modelopt"), capability=capability) == []


@pytest.mark.parametrize(
    "architecture",
    [
        "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM",
        "Qwen3NextForCausalLM",
        "Qwen3_5ForConditionalGeneration",
        "Qwen3_5MoeForConditionalGeneration",
        "Qwen3VLForConditionalGeneration",
        "Gemma4ForCausalLM",
        "Gemma4ForConditionalGeneration",
        "Gemma4UnifiedForConditionalGeneration",
        "GptOssForCausalLM",
        "LlamaForCausalLM",
        "MistralForCausalLM",
        "Phi3ForCausalLM",
        "GraniteForCausalLM",
        "MiniMaxM2ForCausalLM",
        "KimiK25ForConditionalGeneration",
        "DeepseekV2ForCausalLM",
        "DeepseekV3ForCausalLM",
        "DeepseekV41ForCausalLM",
        "NemotronHForCausalLM",
        "LagunaForCausalLM",
        "MiMoForCausalLM",
        "TransformersForCausalLM",
    ],
)
def test_the_table_has_the_targets_that_hand_out_their_states(architecture: str) -> None:
    assert architecture in read_auxiliary_targets()


@pytest.mark.parametrize(
    "architecture",
    ["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", "Glm4ForCausalLM", "JambaForCausalLM"],
)
def test_the_table_has_none_of_the_others(architecture: str) -> None:
    assert architecture not in read_auxiliary_targets()


def test_every_target_of_the_catalogue_that_ran_on_vllm_is_in_the_table() -> None:
    ran = {
        recipe.target_facts.architecture
        for recipe in load_recipes()
        if recipe.engine == "vllm" and recipe.target_facts is not None
    }
    assert ran - {None} <= read_auxiliary_targets()
