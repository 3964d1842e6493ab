"""vLLM's command line is read as vLLM reads it; tests/engine/test_arguments.py asks vLLM itself."""

from typing import Any

import pytest
from hypothesis import given

from slipstream.engines.arguments import parse_arguments, render_arguments
from slipstream.engines.vllm_tables import read_arguments
from slipstream.errors import UsageError
from tests.unit.engines.command_lines import command_lines

ODD: dict[str, tuple[list[str], dict[str, Any]]] = {
    "a short form": (["-tp", "2"], {"--tensor-parallel-size": 2}),
    "an equals sign": (["-tp=2"], {"--tensor-parallel-size": 2}),
    "underscores": (["--max_model_len", "4096"], {"--max-model-len": 4096}),
    "thousands": (["--max-model-len", "32k"], {"--max-model-len": 32000}),
    "kibi": (["--max-model-len=32K"], {"--max-model-len": 32768}),
    "decimals": (["--kv-cache-memory-bytes", "1.5g"], {"--kv-cache-memory-bytes": 1500000000}),
    "auto": (["--max-model-len", "auto"], {"--max-model-len": -1}),
    "several values": (["--served-model-name", "a", "b"], {"--served-model-name": ["a", "b"]}),
    "several times": (
        ["--middleware", "a.B", "--middleware=c.D"],
        {"--middleware": ["a.B", "c.D"]},
    ),
    "the last wins": (["--seed", "1", "--seed", "2"], {"--seed": 2}),
    "a negation": (["--no-enable-prefix-caching"], {"--enable-prefix-caching": False}),
    "dotted keys": (
        ["--compilation-config.mode", "3", "--compilation_config.cudagraph_mode=NONE"],
        {"--compilation-config": {"mode": 3, "cudagraph_mode": "NONE"}},
    ),
    "a list by its elements": (
        ["-cc.cudagraph_capture_sizes+", "1,2", "-cc.cudagraph_capture_sizes+=4"],
        {"--compilation-config": {"cudagraph_capture_sizes": ["1", "2", "4"]}},
    ),
    "a level": (["-O3"], {"--optimization-level": "3"}),
    "a level with a blank": (["-O", "2"], {"--optimization-level": "2"}),
    "a negative number": (["--seed", "-1"], {"--seed": -1}),
    "none": (["--revision", "None"], {"--revision": None}),
    "no value": (["--hf-token"], {"--hf-token": True}),
    "a size within JSON": (
        ["-cc", '{"max_cudagraph_capture_size": 1k, "backend": "1k"}'],
        {"--compilation-config": {"max_cudagraph_capture_size": 1000, "backend": "1k"}},
    ),
}


@pytest.mark.parametrize(("words", "values"), ODD.values(), ids=list(ODD))
def test_every_spelling_means_what_it_means_to_vllm(
    words: list[str], values: dict[str, Any]
) -> None:
    assert parse_arguments(words) == values
    assert parse_arguments(render_arguments(values)) == values


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--max-model-length", "3"], "no argument --max-model-length", "--max-model-len"),
        (["-tq", "3"], "no argument -tq", "-"),
        (["--max-model-len"], "expected one argument", ""),
        (["--enforce-eager", "true"], "'true' is not a value", ""),
        (["--dtype", "bf16"], "no choice bf16; did you mean bfloat16?", ""),
        (["--max-num-seqs", "many"], "'many' cannot be read as integer", ""),
        (["--speculative-config", "{"], "'{' cannot be read as json", ""),
        (["--speculative-config.num_tokens", "3"], "no key num_tokens; did you mean", ""),
        (
            ["--max-num-b", "8K"],
            "is an abbreviation of --max-num-batched-tokens",
            "--max-num-batched-tokens",
        ),
        (["--compilation-config.mode"], "--compilation-config.mode has no value", ""),
        (["--config", "vllm.yaml"], "cannot be planned for", "write its settings after --"),
    ],
)
def test_what_vllm_would_not_understand_is_refused(
    words: list[str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as refused:
        parse_arguments(words)
    assert message in refused.value.message
    assert hint in refused.value.hint


@given(command_lines())
def test_what_is_rendered_is_read_again(words: list[str]) -> None:
    values = parse_arguments(words)
    assert parse_arguments(render_arguments(values)) == values


def test_the_table_has_every_kind_of_argument() -> None:
    rows = read_arguments()
    assert len(rows) > 300
    assert {row["kind"] for row in rows.values()} == {
        *("switch", "integer", "number", "text", "name", "json", "config"),
        *("json-or-text", "size", "size-or-auto"),
    }
