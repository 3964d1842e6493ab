"""What a checkpoint's files say about conversations: its chat template and its sampling.

The template is read as transformers does: chat_template.jinja, then chat_template.json of a
processor, then the tokenizer's own; of several named ones, that for tools.
"""

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

from pydantic import Field

from slipstream.records import Record

THINKING = "<think>"
# vLLM takes these of generation_config.json for requests that do not name them.
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "max_new_tokens",
)

ReadJson = Callable[[str], dict[str, Any] | None]


class Conversation(Record):
    """How messages become a prompt, and how an answer becomes messages again."""

    # None: there is no template.
    template: str | None = None
    # Fields of the tokenizer's response_template, by which vLLM's `hf` parsers read an answer.
    response_fields: tuple[str, ...] = ()
    # Whether `<think>` is one token; None if the tokenizer's configuration lists no tokens.
    has_thinking_token: bool | None = None
    sampling: dict[str, float] = Field(default_factory=dict)


def parse_conversation(read: Callable[[str], bytes | None], read_json: ReadJson) -> Conversation:
    """Read template, response template and sampling defaults."""
    tokenizer = read_json("tokenizer_config.json") or {}
    response = tokenizer.get("response_template")
    fields = response.get("fields") if isinstance(response, dict) else None
    return Conversation(
        template=_read_template(read, read_json, tokenizer),
        response_fields=tuple(fields) if isinstance(fields, dict) else (),
        has_thinking_token=_find_thinking_token(tokenizer.get("added_tokens_decoder")),
        sampling=_parse_sampling(read_json("generation_config.json") or {}),
    )


def _read_template(
    read: Callable[[str], bytes | None], read_json: ReadJson, tokenizer: Mapping[str, Any]
) -> str | None:
    file = read("chat_template.jinja")
    if file is not None:
        return file.decode(errors="replace")
    processor = read_json("chat_template.json") or {}
    return _choose(processor.get("chat_template")) or _choose(tokenizer.get("chat_template"))


def _choose(stated: object) -> str | None:
    """Return the template; of a list of named ones that for tools, else the default."""
    if isinstance(stated, list):
        named = {one.get("name"): one.get("template") for one in stated if isinstance(one, dict)}
        stated = named.get("tool_use") or named.get("default")
    return stated if isinstance(stated, str) else None


def _find_thinking_token(added: object) -> bool | None:
    if not isinstance(added, dict):
        return None
    tokens = (one.get("content") for one in added.values() if isinstance(one, dict))
    return THINKING in tokens


def _parse_sampling(config: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name in SAMPLING
        if isinstance(value := config.get(name), int | float)
        and not isinstance(value, bool)
        and isfinite(value)
    }
