"""SGLang gets the same plan under its own names, and what it has no counterpart for is listed."""

import argparse
import json
from collections.abc import Callable
from typing import Any

import pytest

from slipstream.engines.sglang import COMMAND, read_arguments, render_argv
from slipstream.hardware import list_machines, load_host
from slipstream.recipes import load_recipes
from tests.unit.planning.cells import plan_cell


def render(capability: str | None = None, **settings: Any) -> list[str]:
    flags = {f"--{name.replace('_', '-')}": value for name, value in settings.items()}
    arguments, left_out = render_argv(flags, capability)
    assert left_out == []
    assert arguments[: len(COMMAND)] == list(COMMAND)
    return arguments[len(COMMAND) :]


def test_settings_take_sglangs_names() -> None:
    assert render(
        model="maker/target",
        max_model_len=8192,
        tensor_parallel_size=2,
        enforce_eager=True,
        enable_prefix_caching=False,
        trust_remote_code=True,
        limit_mm_per_prompt={"image": 0},
        generation_config="vllm",
        speculative_config={"method": "dflash", "model": "maker/drafter"},
    ) == [
        *("--model-path", "maker/target"),
        *("--context-length", "8192"),
        *("--tp-size", "2"),
        *("--cuda-graph-backend-decode", "disabled"),
        *("--cuda-graph-backend-prefill", "disabled"),
        "--disable-radix-cache",
        "--trust-remote-code",
        *("--limit-mm-data-per-request", '{"image": 0}'),
        *("--sampling-defaults", "openai"),
        *("--speculative-algorithm", "DFLASH"),
        *("--speculative-draft-model-path", "maker/drafter"),
    ]


def test_what_sglang_does_by_itself_needs_no_words() -> None:
    assert render(enable_prefix_caching=True, enable_auto_tool_choice=True) == []
    assert render(enforce_eager=False, trust_remote_code=False) == []


TOKENS = ["--speculative-num-draft-tokens", "8"]
CHAIN = [*TOKENS, "--speculative-ngram-max-bfs-breadth", "1"]
STEPS = ["--speculative-num-steps", "7", "--speculative-eagle-topk", "1", *TOKENS]


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("dflash", ["DFLASH", *TOKENS]),
        ("dspark", ["DSPARK", "--speculative-dspark-block-size", "7"]),
        ("ngram", ["NGRAM", *CHAIN]),
        ("ngram_gpu", ["NGRAM", *CHAIN]),
        ("eagle", ["EAGLE", *STEPS]),
        ("eagle3", ["EAGLE3", *STEPS]),
        ("mtp", ["NEXTN", *STEPS]),
        ("draft_model", ["STANDALONE", *STEPS]),
    ],
)
def test_a_method_is_an_algorithm_with_its_own_length(method: str, words: list[str]) -> None:
    config = {"method": method, "num_speculative_tokens": 7}
    assert render(speculative_config=config) == ["--speculative-algorithm", *words]


def test_a_method_that_sglang_lacks_is_left_out_whole() -> None:
    config = {"method": "suffix", "num_speculative_tokens": 7}
    assert render_argv({"--speculative-config": config}, None) == (
        list(COMMAND),
        ["--speculative-config.method", "--speculative-config.num_speculative_tokens"],
    )


@pytest.mark.parametrize(
    ("backend", "capability", "name"),
    [
        ("FLASH_ATTN", "9.0", "fa3"),
        ("FLASH_ATTN", "10.0", "fa4"),
        ("FLASH_ATTN", "10.3", "fa4"),
        ("FLASH_ATTN", "12.1", "flashinfer"),
        ("FLASH_ATTN", "8.6", "flashinfer"),
        ("FLASH_ATTN", None, "flashinfer"),
        ("TRITON_ATTN", "12.1", "triton"),
        ("FLASHINFER", "12.1", "flashinfer"),
    ],
)
def test_a_backend_is_named_by_the_generation(
    backend: str, capability: str | None, name: str
) -> None:
    assert render(
        capability=capability,
        attention_backend=backend,
        speculative_config={"method": "dflash", "attention_backend": backend},
    ) == [
        *("--attention-backend", name),
        *("--speculative-algorithm", "DFLASH"),
        *("--speculative-draft-attention-backend", name),
    ]


@pytest.mark.parametrize(
    ("dtype", "name"), [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("auto", "auto")]
)
def test_a_cache_in_fp8_says_which(dtype: str, name: str) -> None:
    assert render(kv_cache_dtype=dtype) == ["--kv-cache-dtype", name]


@pytest.mark.parametrize(("parser", "name"), [("qwen3_coder", "qwen3_coder"), ("hermes2", "auto")])
def test_a_parser_that_sglang_does_not_know_is_detected(parser: str, name: str) -> None:
    assert render(tool_call_parser=parser) == ["--tool-call-parser", name]


def test_what_sglang_has_no_counterpart_for_is_left_out_and_listed() -> None:
    settings = {
        "--speculative-config": {"method": "dflash", "attention_backend": "FLEX_ATTENTION"},
        "--port": 8000,
        "--per-request-spec-decode-metrics": "summary",
        "--load-format": "npcache2",
        "--generation-config": "folder",
        "--limit-mm-per-prompt": {"image": {"count": 1}},
    }
    assert render_argv(settings, "12.1") == (
        [*COMMAND, "--speculative-algorithm", "DFLASH", "--port", "8000"],
        [
            "--speculative-config.attention_backend",
            "--per-request-spec-decode-metrics",
            "--load-format",
            "--generation-config",
            "--limit-mm-per-prompt",
        ],
    )


class Strict(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise ValueError(message)


def make_parser() -> Strict:
    parser = Strict(add_help=False, allow_abbrev=False)
    kinds: dict[str, Callable[[str], Any]] = {
        "integer": int,
        "number": float,
        "size": int,
        "json": json.loads,
        "text": str,
    }
    counts = {"many": "+", "any": "*", "optional": "?"}
    for row in {row["flags"][0]: row for row in read_arguments().values()}.values():
        if row["kind"] == "switch":
            parser.add_argument(*row["flags"], action="store_true")
        else:
            parser.add_argument(
                *row["flags"],
                type=kinds[row["kind"]],
                choices=row.get("choices"),
                nargs=counts.get(row.get("values", "")),
            )
    return parser


def test_sglangs_arguments_read_every_plan_of_the_catalogue() -> None:
    parser = make_parser()
    machines = [name for name in list_machines() if load_host(name).accelerators]
    plans = [plan_cell(recipe, machine) for recipe in load_recipes() for machine in machines]
    commands = [plan.sglang_argv()[0] for plan in plans if not plan.refusals]
    assert len(commands) > 300
    for command in commands:
        assert command[: len(COMMAND)] == list(COMMAND)
        read = vars(parser.parse_args(command[len(COMMAND) :]))
        assert {"model_path", "speculative_algorithm"} <= {key for key in read if read[key]}
