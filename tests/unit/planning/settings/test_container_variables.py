"""AEON-7's variables are understood; those without a counterpart get a note."""

import pytest

from slipstream.errors import InvalidInputError
from slipstream.planning import PlanOptions
from slipstream.planning.settings import Choice
from slipstream.planning.settings.container_variables import read_container_variables

CONTAINER = {
    "MODEL_PATH": "/models/target",
    "SERVED_MODEL_NAME": "qwen35-dflash",
    "DFLASH_DRAFTER": "z-lab/Qwen3.5-27B-DFlash",
    "DFLASH_NUM_SPEC_TOKENS": "15",
    "MAX_MODEL_LEN": "65536",
    "MAX_NUM_SEQS": "16",
    "MAX_NUM_BATCHED_TOKENS": "32768",
    "GPU_MEMORY_UTILIZATION": "0.85",
    "ATTENTION_BACKEND": "flash_attn",
}


def list_values(options: PlanOptions) -> dict[str, object]:
    choices = (*options.engine.list_choices(), *options.engine.drafting.list_choices())
    assert all(choice.source == "environment" for _, choice in choices)
    return {name: choice.value for name, choice in choices}


def find_kv_dtype(variables: dict[str, str]) -> object:
    return list_values(read_container_variables(variables).options).get("--kv-cache-dtype")


def test_the_containers_own_line_is_understood() -> None:
    read = read_container_variables(CONTAINER)
    assert (read.target, read.notes, read.options.goal) == ("/models/target", (), "latency")
    assert list_values(read.options) == {
        "--served-model-name": ("qwen35-dflash",),
        "--max-model-len": 65536,
        "--max-num-seqs": 16,
        "--max-num-batched-tokens": 32768,
        "--gpu-memory-utilization": 0.85,
        "--attention-backend": "FLASH_ATTN",
        "model": "z-lab/Qwen3.5-27B-DFlash",
        "num_speculative_tokens": 15,
    }


@pytest.mark.parametrize(
    ("variables", "values"),
    [
        (
            {"EXTRA_ARGS": "--seed 1 --hf-overrides '{\"x\": 2}'"},
            {"--seed": 1, "--hf-overrides": {"x": 2}},
        ),
        ({"EXTRA_ARGS": "--hf-overrides='{\"x\": 2}'"}, {"--hf-overrides": {"x": 2}}),
        (
            {"EXTRA_ARGS": '--hf-overrides {"x":[1,"#2"]}'},
            {"--hf-overrides": {"x": [1, "#2"]}},
        ),
        ({"EXTRA_ARGS": r"--download-dir \d+"}, {"--download-dir": r"\d+"}),
        ({"EXTRA_ARGS": "--max-model-len 1k"}, {"--max-model-len": 1000}),
        ({"EXTRA_ARGS": ""}, {}),
        # They win over the other variables.
        ({"MAX_MODEL_LEN": "4096", "EXTRA_ARGS": "--max-model-len 8"}, {"--max-model-len": 8}),
        ({"QUANTIZATION": "auto"}, {}),
        ({"QUANTIZATION": "none"}, {}),
        ({"QUANTIZATION": "fp8"}, {"--quantization": "fp8"}),
        # A model may be called auto.
        (
            {"SERVED_MODEL_NAME": "auto", "ATTENTION_BACKEND": "auto"},
            {"--served-model-name": ("auto",)},
        ),
    ],
)
def test_a_variable_reaches_the_engine_as_it_is(variables: dict[str, str], values: object) -> None:
    assert list_values(read_container_variables(variables).options) == values


def test_empty_variables_count_as_none() -> None:
    empty = dict.fromkeys([*CONTAINER, "TQ_KEY_BITS", "KV_CACHE_DTYPE", "QUANTIZATION"], "")
    del empty["DFLASH_DRAFTER"]
    read = read_container_variables({**empty, "VLLM_API_KEY": ""})
    assert read == read_container_variables({})
    assert read.options.speculates


@pytest.mark.parametrize("drafter", ["", "off"])
def test_the_drafter_can_be_switched_off(drafter: str) -> None:
    read = read_container_variables({"DFLASH_DRAFTER": drafter, "DFLASH_NUM_SPEC_TOKENS": "7"})
    assert read.options.method == Choice("plain", "environment", "requested")
    assert read.options.engine.speculation is None
    assert len(read.notes) == 1


@pytest.mark.parametrize(
    ("variables", "dtype"),
    [
        ({"KV_CACHE_DTYPE": "fp8_e4m3"}, "fp8_e4m3"),
        ({"KV_CACHE_DTYPE": "auto"}, None),
        ({"KV_CACHE_DTYPE": "fp8", "ENABLE_TURBOQUANT": "1"}, "turboquant_4bit_nc"),
        ({"ENABLE_TURBOQUANT": "true"}, "turboquant_4bit_nc"),
        ({"ENABLE_TURBOQUANT": "0", "TQ_MODE": "hybrid"}, None),
        ({"ENABLE_TURBOQUANT": "1", "TQ_MODE": "off"}, None),
        ({"ENABLE_TURBOQUANT": "1", "TQ_MODE": "capture_only"}, None),
        ({}, None),
    ],
)
def test_the_cache_has_the_format_that_was_asked_for(
    variables: dict[str, str], dtype: str | None
) -> None:
    assert find_kv_dtype(variables) == dtype


@pytest.mark.parametrize(
    ("keys", "values", "variant"),
    [
        ("4", "3", "turboquant_4bit_nc"),
        ("3", "3", "turboquant_3bit_nc"),
        ("3", "4", "turboquant_k3v4_nc"),
        ("8", "4", "turboquant_k8v4"),
        ("5", "4", "turboquant_k8v4"),
        ("8", "8", "turboquant_k8v4"),
    ],
)
def test_bits_map_to_the_smallest_variant_that_keeps_as_many(
    keys: str, values: str, variant: str
) -> None:
    bits = {"ENABLE_TURBOQUANT": "1", "TQ_KEY_BITS": keys, "TQ_VALUE_BITS": values}
    assert find_kv_dtype(bits) == variant
    assert variant in read_container_variables(bits).notes[0]


@pytest.mark.parametrize(
    "packed", [{"ENABLE_TURBOQUANT": "1"}, {"KV_CACHE_DTYPE": "turboquant_k8v4"}]
)
def test_turboquant_takes_no_other_backend(packed: dict[str, str]) -> None:
    read = read_container_variables({**CONTAINER, **packed})
    assert read.options.engine.attention_backend is None
    assert any(note.startswith("ATTENTION_BACKEND=flash_attn is ignored") for note in read.notes)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TQ_RING_CAPACITY", "128"),
        ("TQ_INITIAL_LAYERS", "4"),
        ("TQ_MODE", "full_tq"),
        ("VLLM_API_KEY", "secret"),
    ],
)
def test_a_variable_without_a_counterpart_gets_a_line(name: str, value: str) -> None:
    (note,) = read_container_variables({name: value}).notes
    assert name in note
    assert "secret" not in note


def test_all_faulty_variables_are_named_at_once() -> None:
    faulty = {
        "MAX_MODEL_LEN": "64k",
        "MAX_NUM_SEQS": "0",
        "DFLASH_NUM_SPEC_TOKENS": "-1",
        "GPU_MEMORY_UTILIZATION": "1.5",
        "TQ_KEY_BITS": "four",
        "EXTRA_ARGS": "--a 'b",
    }
    with pytest.raises(InvalidInputError) as caught:
        read_container_variables({**faulty, "ENABLE_TURBOQUANT": "1"})
    assert {detail.partition(":")[0] for detail in caught.value.details} == faulty.keys()
