"""SGLang gets the same plan under its own names, and what it has no name for is told."""

import pytest

from slipstream.engines.sglang import COMMAND, render_argv


def render(*settings: tuple[str, str | None], capability: str | None = None) -> list[str]:
    arguments, left_out = render_argv(settings, capability)
    assert left_out == []
    assert arguments[: len(COMMAND)] == list(COMMAND)
    return arguments[len(COMMAND) :]


def test_settings_take_sglangs_names_in_their_order() -> None:
    assert render(
        ("--model", "maker/target"),
        ("--max-model-len", "8192"),
        ("--tensor-parallel-size", "2"),
        ("--enforce-eager", None),
        ("--no-enable-prefix-caching", None),
        ("--speculative-config.model", "maker/drafter"),
    ) == [
        *("--model-path", "maker/target"),
        *("--context-length", "8192"),
        *("--tp-size", "2"),
        "--disable-cuda-graph",
        "--disable-radix-cache",
        *("--speculative-draft-model-path", "maker/drafter"),
    ]


@pytest.mark.parametrize("k", [1, 7, 15])
def test_the_draft_count_includes_the_anchor(k: int) -> None:
    assert render(("--speculative-config.num_speculative_tokens", str(k))) == [
        "--speculative-num-draft-tokens",
        str(k + 1),
    ]


@pytest.mark.parametrize(
    ("method", "algorithm"),
    [("dflash", "DFLASH"), ("dflash2", "DFLASH"), ("dspark", "DSPARK"), ("eagle3", "EAGLE3")],
)
def test_a_method_is_an_algorithm(method: str, algorithm: str) -> None:
    assert render(("--speculative-config.method", method)) == [
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
    settings = (
        ("--attention-backend", backend),
        ("--speculative-config.attention_backend", backend),
    )
    assert render(*settings, capability=capability) == [
        *("--attention-backend", name),
        *("--speculative-draft-attention-backend", name),
    ]


@pytest.mark.parametrize(
    ("dtype", "name"), [("fp8", "fp8_e4m3"), ("fp8_e4m3", "fp8_e4m3"), ("auto", "auto")]
)
def test_a_cache_in_fp8_says_which(dtype: str, name: str) -> None:
    assert render(("--kv-cache-dtype", dtype)) == ["--kv-cache-dtype", name]


def test_what_sglang_has_no_name_for_is_left_out_and_told() -> None:
    arguments, left_out = render_argv(
        [
            ("--speculative-config.kv_cache_dtype", "bfloat16"),
            ("--port", "8000"),
            ("--per-request-spec-decode-metrics", "summary"),
        ],
        "12.1",
    )
    assert arguments == [*COMMAND, "--port", "8000"]
    assert left_out == [
        "--speculative-config.kv_cache_dtype",
        "--per-request-spec-decode-metrics",
    ]
