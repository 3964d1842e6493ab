"""The user's values come in by one door: typed, in vLLM's ranges, refused under their flags."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from slipstream.errors import SlipstreamError, UsageError
from slipstream.hardware import load_host
from slipstream.planning import LaunchPlan, make_options, make_plan
from slipstream.planning.settings import FLAGS, SPECULATION, SPECULATION_KEYS
from slipstream.planning.settings.options import make_engine_options
from tests.unit.engines.command_lines import command_lines
from tests.unit.planning.pieces import DRAFTER, TARGET, make_recipe

HOST = load_host("h100")
ODD_VALUES = some.recursive(
    some.none()
    | some.booleans()
    | some.integers(-3, 9)
    | some.floats(-1, 2)
    | some.text("7k", max_size=2),
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(some.sampled_from("am"), inner),
    max_leaves=3,
)


@pytest.mark.parametrize(
    ("words", "flag"),
    [
        (("--compilation-config", "3"), "--compilation-config"),
        (("--default-chat-template-kwargs", "[1]"), "--default-chat-template-kwargs"),
        (("--tensor-parallel-size", "0"), "--tensor-parallel-size"),
        (("--gpu-memory-utilization", "1.5"), "--gpu-memory-utilization"),
        (("--max-num-seqs", "0"), "--max-num-seqs"),
        (("--max-model-len", "-5"), "--max-model-len"),
        (("--max-model-len", "0"), "--max-model-len"),
        (("--port", "70000"), "--port"),
        (("--block-size", "0"), "--block-size"),
        (("--cpu-offload-gb", "-1"), "--cpu-offload-gb"),
        (("--video-pruning-rate", "1"), "--video-pruning-rate"),
        (("--long-prefill-token-threshold", "-1"), "--long-prefill-token-threshold"),
        (("--spec-tokens", "0"), f"{SPECULATION}.num_speculative_tokens"),
        ((SPECULATION, '{"num_speculative_tokens": "seven"}'), f"{SPECULATION}.num_speculative"),
        ((SPECULATION, '{"model": 7}'), f"{SPECULATION}.model"),
        ((SPECULATION, "7"), SPECULATION),
    ],
)
def test_a_value_that_vllm_refuses_is_refused_with_its_flag(
    words: tuple[str, ...], flag: str
) -> None:
    with pytest.raises(UsageError) as refused:
        make_options(engine=words)
    assert refused.value.message.startswith(flag)


def test_all_refused_values_are_named() -> None:
    with pytest.raises(UsageError) as refused:
        make_options(engine=("-tp", "0", "--max-num-seqs", "0"))
    assert {refused.value.message.split(":")[0], refused.value.details[0].split(":")[0]} == {
        "--tensor-parallel-size",
        "--max-num-seqs",
    }


def test_null_is_not_given_and_a_number_may_be_a_text_as_in_vllm() -> None:
    config = {"method": "dflash", "model": None, "num_speculative_tokens": "7"}
    drafting = make_options(engine=(SPECULATION, json.dumps(config))).engine.drafting
    assert drafting.drafter is None
    assert drafting.length is not None
    assert drafting.length.value == 7


def test_words_for_the_engine_win_over_flags_and_flags_over_variables() -> None:
    variables = make_options().specify(
        make_engine_options("environment", "requested", context=1, sequences=1, batched_tokens=1)
    )
    made = make_options(context=2, users=2, engine=("--max-model-len", "3"), variables=variables)
    assert [(flag, choice.value, choice.source) for flag, choice in made.engine.list_choices()] == [
        ("--max-model-len", 3, "user"),
        ("--max-num-seqs", 2, "user"),
        ("--max-num-batched-tokens", 1, "environment"),
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "plain", "engine": ("--spec-tokens", "3")},
        {"method": "ngram", "engine": ("--spec-method", "mtp")},
        {"method": "ngram", "drafter": "a/b"},
        {"method": "suffix", "drafter": "a/b"},
    ],
)
def test_two_ways_of_drafting_exclude_each_other(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be combined"):
        make_options(**options)


def test_plain_decoding_from_a_variable_gives_way_to_a_drafter_and_stays_otherwise() -> None:
    off = make_options(method="plain")
    assert not make_options(variables=off, context=4096).speculates
    assert make_options(variables=off, drafter="a/b").speculates
    assert make_options(variables=off, engine=("--spec-model", "a/b")).speculates


def test_without_speculation_nothing_of_it_is_left() -> None:
    words = ("--spec-tokens", "3", "--per-request-spec-decode-metrics", "summary", "--seed", "1")
    plain = make_options(engine=words).without_speculation()
    assert (plain.speculates, [*dict(plain.engine.list_choices())]) == (False, ["--seed"])
    assert plain.engine.speculation is None


def is_sound(words: list[str]) -> bool:
    """Return whether words are refused, or planned so that what is saved gives the same command."""
    try:
        made = make_plan(HOST, TARGET, DRAFTER, make_recipe(), make_options(engine=words))
    except SlipstreamError:
        return True
    return LaunchPlan.model_validate_json(made.to_json()).argv() == made.argv()


@given(command_lines())
def test_every_command_line_of_vllm_is_planned_or_refused(words: list[str]) -> None:
    assert is_sound(words)


@given(
    some.sampled_from([*FLAGS.values(), "--hf-overrides", "--cpu-offload-gb"]),
    ODD_VALUES,
    some.dictionaries(some.sampled_from([*SPECULATION_KEYS.values(), "max_model_len"]), ODD_VALUES),
)
def test_values_of_a_wrong_type_are_planned_or_refused(
    flag: str, value: Any, speculation: dict[str, Any]
) -> None:
    assert is_sound([f"{flag}={json.dumps(value)}", SPECULATION, json.dumps(speculation)])
