"""Command lines for vLLM, made from the table of its arguments in every spelling it has."""

import json
from typing import Any

from hypothesis import strategies as some

from slipstream.engines.vllm_tables import VERSION, read_arguments

TABLE = read_arguments(VERSION)
# Objects whose keys or values vLLM checks further: only what it takes for sure.
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "--compilation-config": [{"cudagraph_mode": "PIECEWISE"}, {"mode": 3}],
    "--speculative-config": [
        {"method": "ngram", "num_speculative_tokens": 3},
        {"model": "me/d", "method": "dflash", "attention_backend": "TRITON_ATTN"},
    ],
    "--attention-config": [{"backend": "FLASH_ATTN"}],
    "--hf-overrides": [{"max_position_embeddings": 131072}],
    "--limit-mm-per-prompt": [{"image": 2}, {"image": 0, "video": 0}],
    "--override-generation-config": [{"temperature": 0.6}],
    "--default-chat-template-kwargs": [{"enable_thinking": False}],
    "--model-loader-extra-config": [{"enable_multithread_load": True}],
}
TEXTS = some.text(
    some.characters(codec="ascii", categories=("L", "N"), include_characters="_/.:- "),
    min_size=1,
    max_size=12,
).filter(lambda text: not text.startswith("-") and text.strip() == text and text != "None")
# Names that vLLM looks up or opens while it parses.
LEFT_OUT = ("--config", "--lora-modules", "--log-config-file", "--tokenizer-mode")


def values(flag: str, row: dict[str, Any]) -> some.SearchStrategy[str] | None:
    """Return texts of a value that vLLM takes, None for an argument that is left out."""
    if "choices" in row:
        return some.sampled_from([str(choice) for choice in row["choices"]])
    if flag in OBJECTS:
        return some.sampled_from([json.dumps(value) for value in OBJECTS[flag]])
    sizes = some.integers(1, 10**9).map(str) | some.builds(
        "{}{}".format, some.integers(1, 999), some.sampled_from("kKmMgG")
    )
    return {
        "integer": some.integers(-5, 10**6).map(str),
        "number": some.floats(0, 1e6).map(str),
        "text": TEXTS,
        "size": sizes | some.just("1.5k"),
        "size-or-auto": sizes | some.sampled_from(["auto", "-1"]),
    }.get(row["kind"])


@some.composite
def command_lines(draw: some.DrawFn) -> list[str]:
    """Draw a few arguments, each in one of its spellings."""
    words: list[str] = []
    for flag in draw(some.lists(some.sampled_from(sorted(TABLE)), min_size=1, max_size=6)):
        words += _draw_argument(draw, flag, TABLE[flag])
    return words


def _draw_argument(draw: some.DrawFn, flag: str, row: dict[str, Any]) -> list[str]:
    if flag in LEFT_OUT:
        return []
    if row["kind"] == "switch":
        return [_respell(draw, draw(some.sampled_from([*row["flags"], row.get("negation", flag)])))]
    if (texts := values(flag, row)) is None:
        return []
    name = _respell(draw, draw(some.sampled_from(row["flags"])))
    if flag in OBJECTS and draw(some.booleans()):
        given = draw(some.sampled_from(OBJECTS[flag]))
        return [word for key, value in given.items() for word in (f"{name}.{key}", _write(value))]
    if row.get("values") == "many":
        return [name, *draw(some.lists(texts, min_size=1, max_size=3))]
    text = draw(texts)
    return [f"{name}={text}"] if text.startswith("-") or draw(some.booleans()) else [name, text]


def _write(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _respell(draw: some.DrawFn, name: str) -> str:
    """Write a long name with underscores now and then."""
    if name.startswith("--") and draw(some.booleans()):
        return "--" + name[2:].replace("-", "_")
    return name
