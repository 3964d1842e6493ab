"""SGLang gets the same plan under its own names, and what it has no name for is told."""

from typing import Any

import pytest

from slipstream.engines.sglang import COMMAND, render_argv


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
        speculative_config={"model": "maker/drafter"},
    ) == [
        "--disable-radix-cache",
        *("--model-path", "maker/target"),
        *("--context-length", "8192"),
        *("--tp-size", "2"),
        "--disable-cuda-graph",
        *("--speculative-draft-model-path", "maker/drafter"),
    ]


@pytest.mark.parametrize("k", [1, 7, 15])
def test_the_draft_count_includes_the_anchor(k: int) -> None:
    assert render(speculative_config={"num_speculative_tokens": k}) == [
        "--speculative-num-draft-tokens",
        str(k + 1),
    ]


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [("dflash", "DFLASH"), ("dflash2", "DFLASH"), ("dspark", "DSPARK"), ("eagle3", "EAGLE3")],
)
def test_a_method_is_an_algorithm(method: str, algorithm: str) -> None:
    assert render(speculative_config={"method": method}) == [
        "--speculative-algorithm",
        algorithm,
    ]


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
        ("FLEX_ATTENTION", "12.1", "flex_attention"),
    ],
)
def test_a_backend_is_named_by_the_generation(
    backend: str, capability: str | None, name: str
) -> None:
    assert render(
        capability=capability,
        attention_backend=backend,
        speculative_config={"attention_backend": backend},
    ) == [
        *("--attention-backend", name),
        *("--speculative-draft-attention-backend", name),
    ]


@pytest.mark.parametrize(
    ("dtype", "name"), [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("auto", "auto")]
)
def test_a_cache_in_fp8_says_which(dtype: str, name: str) -> None:
    assert render(kv_cache_dtype=dtype) == ["--kv-cache-dtype", name]


def test_what_sglang_has_no_name_for_is_left_out_and_told() -> None:
    arguments, left_out = render_argv(
        {
            "--speculative-config": {"kv_cache_dtype": "bfloat16"},
            "--port": 8000,
            "--per-request-spec-decode-metrics": "summary",
        },
        "12.1",
    )
    assert arguments == [*COMMAND, "--port", "8000"]
    assert left_out == [
        "--per-request-spec-decode-metrics",
        "--speculative-config.kv_cache_dtype",
    ]
