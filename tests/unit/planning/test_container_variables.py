"""AEON-7's variables are understood; those without a counterpart say what stands in."""

import pytest

from slipstream.errors import InvalidInputError
from slipstream.planning.container_variables import read_container_variables
from slipstream.planning.settings import Choice

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


def test_the_containers_own_line_is_understood() -> None:
    asked = read_container_variables(CONTAINER)
    wishes = asked.wishes
    assert (asked.target, asked.wishes.drafter) == ("/models/target", "z-lab/Qwen3.5-27B-DFlash")
    assert (wishes.draft_length, wishes.context, wishes.users) == (15, 65536, 16)
    assert (wishes.batched_tokens, wishes.memory_utilization) == (32768, 0.85)
    assert (wishes.attention_backend, wishes.served_name) == ("flash_attn", "qwen35-dflash")
    assert wishes.kv_dtype is None
    assert wishes.find("context") == Choice(65536, "environment", "requested")
    assert wishes.find("goal") == Choice("latency", "user", "requested")
    assert asked.notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--a 1 --b '{\"x\": 2}'", ("--a", "1", "--b", '{"x": 2}')),
        ("--b='{\"x\": 2}'", ('--b={"x": 2}',)),
        ('--b {"x":[1,"#2"]}', ("--b", '{"x":[1,"#2"]}')),
        (r"--c \d+", ("--c", r"\d+")),
        ("", ()),
    ],
)
def test_extra_arguments_reach_the_engine_as_they_are(text: str, words: tuple[str, ...]) -> None:
    assert read_container_variables({"EXTRA_ARGS": text}).wishes.extra_arguments == words


def test_empty_variables_count_as_none() -> None:
    empty = dict.fromkeys([*CONTAINER, "TQ_KEY_BITS", "KV_CACHE_DTYPE", "QUANTIZATION"], "")
    del empty["DFLASH_DRAFTER"]
    asked = read_container_variables({**empty, "VLLM_API_KEY": ""})
    assert asked == read_container_variables({})


@pytest.mark.parametrize("drafter", ["", "off"])
def test_the_drafter_can_be_switched_off(drafter: str) -> None:
    asked = read_container_variables({"DFLASH_DRAFTER": drafter})
    assert asked.wishes.drafter is None
    assert not asked.wishes.speculation
    assert "plain decoding" in asked.notes[0]


def test_without_a_drafter_one_is_looked_for() -> None:
    assert read_container_variables({}).wishes.speculation


@pytest.mark.parametrize(("method", "raw"), [("auto", ()), ("none", ()), ("fp8", ("fp8",))])
def test_a_quantization_is_passed_on_if_one_is_named(method: str, raw: tuple[str, ...]) -> None:
    asked = read_container_variables({"QUANTIZATION": method, "EXTRA_ARGS": "--a"})
    words = (word for name in raw for word in ("--quantization", name))
    assert asked.wishes.extra_arguments == (*words, "--a")


@pytest.mark.parametrize(
    ("variables", "dtype"),
    [
        ({"KV_CACHE_DTYPE": "fp8_e4m3"}, "fp8_e4m3"),
        ({"KV_CACHE_DTYPE": "auto"}, None),
        ({"KV_CACHE_DTYPE": "fp8", "ENABLE_TURBOQUANT": "1"}, "turboquant_4bit_nc"),
    ],
)
def test_the_cache_has_the_format_that_was_asked_for(
    variables: dict[str, str], dtype: str | None
) -> None:
    assert read_container_variables(variables).wishes.kv_dtype == dtype


def test_a_model_may_be_called_auto() -> None:
    asked = read_container_variables({"SERVED_MODEL_NAME": "auto", "ATTENTION_BACKEND": "auto"})
    assert (asked.wishes.served_name, asked.wishes.attention_backend) == ("auto", None)


@pytest.mark.parametrize(
    ("bits", "variant"),
    [
        (("4", "3"), "turboquant_4bit_nc"),
        (("3", "3"), "turboquant_3bit_nc"),
        (("3", "4"), "turboquant_k3v4_nc"),
        (("8", "4"), "turboquant_k8v4"),
        (("5", "4"), "turboquant_k8v4"),
        (("8", "8"), "turboquant_k8v4"),
    ],
)
def test_bits_map_to_the_smallest_variant_that_keeps_as_many(
    bits: tuple[str, str], variant: str
) -> None:
    asked = read_container_variables(
        {"ENABLE_TURBOQUANT": "1", "TQ_KEY_BITS": bits[0], "TQ_VALUE_BITS": bits[1]}
    )
    assert asked.wishes.kv_dtype == variant
    assert variant in asked.notes[0]


@pytest.mark.parametrize(
    "asked", [{"ENABLE_TURBOQUANT": "1"}, {"KV_CACHE_DTYPE": "turboquant_k8v4"}]
)
def test_turboquant_takes_no_other_backend(asked: dict[str, str]) -> None:
    read = read_container_variables({**CONTAINER, **asked})
    assert read.wishes.attention_backend is None
    assert any(note.startswith("ATTENTION_BACKEND=flash_attn is left out") for note in read.notes)


def test_the_containers_own_bits_are_the_default() -> None:
    assert read_container_variables({"ENABLE_TURBOQUANT": "true"}).wishes.kv_dtype == (
        "turboquant_4bit_nc"
    )


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"ENABLE_TURBOQUANT": "0", "TQ_MODE": "hybrid"},
        {"ENABLE_TURBOQUANT": "1", "TQ_MODE": "off"},
        {"ENABLE_TURBOQUANT": "1", "TQ_MODE": "capture_only"},
    ],
)
def test_turboquant_stays_off_where_the_container_had_it_off(variables: dict[str, str]) -> None:
    assert read_container_variables(variables).wishes.kv_dtype is None


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"TQ_RING_CAPACITY": "128"}, "no exact tail"),
        ({"TQ_INITIAL_LAYERS": "4"}, "first and last two layers"),
        ({"ENABLE_TURBOQUANT": "1", "TQ_MODE": "capture_only"}, "stays in bfloat16"),
        ({"ENABLE_TURBOQUANT": "1", "TQ_MODE": "full_tq"}, "covers prefill"),
        ({"VLLM_API_KEY": "secret"}, "slipstream keys new"),
    ],
)
def test_a_variable_without_a_counterpart_gets_a_line(
    variables: dict[str, str], words: str
) -> None:
    notes = read_container_variables(variables).notes
    assert any(words in note for note in notes)
    assert not any("secret" in note for note in notes)


def test_all_faulty_variables_are_named_at_once() -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_container_variables(
            {
                "MAX_MODEL_LEN": "64k",
                "MAX_NUM_SEQS": "0",
                "GPU_MEMORY_UTILIZATION": "most",
                "ENABLE_TURBOQUANT": "1",
                "TQ_KEY_BITS": "four",
                "EXTRA_ARGS": "--a 'b",
            }
        )
    assert {detail.partition(":")[0] for detail in caught.value.details} == {
        "MAX_MODEL_LEN",
        "MAX_NUM_SEQS",
        "GPU_MEMORY_UTILIZATION",
        "TQ_KEY_BITS",
        "EXTRA_ARGS",
    }
