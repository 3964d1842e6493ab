"""The limits of a request, refused before the engine sees it.

A number must be written as one: the engine would also take "1000" for a thousand.
"""

import json
import math
import re
from collections.abc import Iterator
from typing import Any

from slipstream.serving.access.gate_file import GateLimits
from slipstream.vllm_plugin.gate.answers import Refusal

Document = dict[str, Any]

LISTS = (
    *("stop_token_ids", "bad_words", "allowed_token_ids", "logprob_token_ids", "logit_bias"),
    *("include", "metadata", "tools"),
)
# Of the routes that give vectors and scores: a sequence each.
POOLED_LISTS = ("documents", "queries", "items", "data_1", "data_2", "text_1", "text_2")
# Whose values the engine makes grammars of.
SCHEMAS = ("response_format", "text", "output_config")

# Lists of turns, or of their parts.
TURNS = ("messages", "input", "system", "previous_input_messages")
# A text, or its tokens by their numbers, which are quick to check.
TOKENIZED = ("prompt", "input", "tokens")
# With limits of their own, which are shorter than a context: most templates do not write them.
CONSTRAINTS = (*SCHEMAS, "structured_outputs")
# Digits per bit of a number.
_DIGITS = 0.30103

SALT_CHARACTERS = 128

CONTAINERS = (dict, list)
# Without its end, too: to look for that from every quote again would take forever.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def require_parsable(body: bytes, most: int, most_tokens: int) -> None:
    """Refuse a body that would take long to parse, before it is parsed."""
    if _count_openings(body) <= most and body.count(b",") <= most + most_tokens:
        return
    bare = _STRING.sub(b"", body)
    if _count_openings(bare) > most:
        raise Refusal(400, f"the body has more than {most} objects and lists")
    if bare.count(b",") > most + most_tokens:
        raise Refusal(400, f"the body has more than {most} values and {most_tokens} tokens")


def require_within_limits(document: Document, body: bytes, limits: GateLimits) -> None:
    """Refuse what is too deep, too many, too long or too large."""
    _require_few_values(document, limits.values)
    _require_shallow(document, body, limits.depth)
    tokens = _find_tokens(document)
    for field in TURNS:
        lists = [one for one in walk(document.get(field)) if isinstance(one, list)]
        count = sum(len(one) for one in lists if id(one) not in tokens)
        _require_most(count, limits.turns, "turns and parts", field)
    for field in ("n", "best_of"):
        require_number(document, field, limits.n)
    for field in ("logprobs", "top_logprobs", "prompt_logprobs"):
        require_number(document, field, limits.top_logprobs, least=0)
    _require_few_sequences(document, limits)
    for field in ("stop", "stop_sequences"):
        _require_few_stops(document, field, limits)
    for field in LISTS:
        if isinstance(items := document.get(field), list | dict):
            _require_most(len(items), limits.list_items, "entries", field)
    _require_small_constraints(document, body, limits)


def require_few_inputs(document: Document, limits: GateLimits) -> None:
    """Refuse a list of too many texts; one of numbers is a single text in tokens."""
    for field in ("input", *POOLED_LISTS):
        items = document.get(field)
        if isinstance(items, list) and not (items and isinstance(items[0], int)):
            _require_most(len(items), limits.list_items, "texts", field)


def require_number(
    document: Document, field: str, most: int, *, least: float = float("-inf")
) -> None:
    """Refuse a field that is not a number, or not within its bounds; none is fine."""
    value = document.get(field)
    if value is None:
        return
    if not isinstance(value, int | float):
        raise Refusal(400, f"{field} is not a number", field=field)
    if not least <= value <= most:
        allowed = f"{least:g} to {most}" if math.isfinite(least) else f"at most {most}"
        raise Refusal(400, f"{field} is {value}, and may be {allowed}", field=field)


def require_short_salt(document: Document) -> None:
    """Refuse a cache salt that is not a short text; with one, a caller only shares less."""
    salt = document.get("cache_salt")
    if salt is None:
        return
    text = isinstance(salt, str) and salt.isascii() and salt.isprintable()
    if not text or not 1 <= len(salt) <= SALT_CHARACTERS:
        what = f"cache_salt is not a text of 1 to {SALT_CHARACTERS} printable characters"
        raise Refusal(400, what, field="cache_salt")


def require_short_text(document: Document, most: int) -> None:
    """Refuse a text that no context can hold: the engine would read it whole, even to cut it.

    A chat template may write any field, names and numbers, too.
    """
    for field, value in document.items():
        if field in CONSTRAINTS or _is_tokenized(field, value):
            continue
        several = isinstance(value, list) and any(isinstance(one, str | list) for one in value)
        length = max(map(_count_characters, value if several else [value]))
        _require_most(length, most, "characters of text", field[:40])


def list_tools(document: Document) -> list[Document]:
    """List the tools: declared, within a namespace (Responses), or added by a turn (Messages)."""
    tools: list[Document] = []
    for tool in _list_objects(document.get("tools")):
        tools += [*_list_objects(tool.get("tools"))] or [tool]
    for turn in _list_objects(document.get("messages")):
        for part in _list_objects(turn.get("content")):
            change = part.get("tool")
            added = change.get("definition") if isinstance(change, dict) else None
            tools += [added] if isinstance(added, dict) else []
    return tools


def walk(value: Any) -> Iterator[Any]:
    """Yield every list and object in a value, itself too if it is one."""
    waiting = [value] if isinstance(value, CONTAINERS) else []
    while waiting:
        yield (one := waiting.pop())
        children = one.values() if isinstance(one, dict) else one
        waiting += [child for child in children if isinstance(child, CONTAINERS)]


def _count_characters(value: Any) -> int:
    count = _count_leaf(value)
    for container in walk(value):
        if isinstance(container, dict):
            count += sum(map(len, container))
            container = container.values()
        count += sum(map(_count_leaf, container))
    return count


def _count_leaf(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    return int(value.bit_length() * _DIGITS) + 1 if isinstance(value, int) else 0


def _is_tokenized(field: str, value: Any) -> bool:
    """Return whether a field has one text or several by the numbers of their tokens."""
    if field not in TOKENIZED or not isinstance(value, list):
        return False
    texts = [one for one in value if isinstance(one, list)]
    return all(map(_is_tokens, texts if len(texts) == len(value) else [value]))


def _require_few_values(document: Document, most: int) -> None:
    """Refuse more values than are quick to check; a list of tokens is one."""
    tokens = _find_tokens(document)
    count = sum(len(one) for one in walk(document) if id(one) not in tokens)
    if count > most:
        raise Refusal(400, f"the body has {count} values; this server allows up to {most}")


def _find_tokens(document: Document) -> set[int]:
    """Return the identities of the lists of tokens; in a turn there are none."""
    given = [one for name in TOKENIZED if isinstance(one := document.get(name), list)]
    lists = [one for field in given for one in (field, *field) if isinstance(one, list)]
    return {id(one) for one in lists if _is_tokens(one)}


def _is_tokens(value: list[Any]) -> bool:
    return {*map(type, value)} == {int}


def _list_objects(value: Any) -> list[Document]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _count_openings(body: bytes) -> int:
    return body.count(b"{") + body.count(b"[")


def _require_shallow(document: Document, body: bytes, most: int) -> None:
    if _count_openings(body) <= most:
        return
    level: list[Any] = [document]
    for _ in range(most):
        level = [
            child
            for one in level
            for child in (one.values() if isinstance(one, dict) else one)
            if isinstance(child, CONTAINERS)
        ]
        if not level:
            return
    raise Refusal(400, f"the body is nested more than {most} deep")


def count_sequences(document: Document) -> int:
    """Count the answers that a request asks for, each of which takes a seat in the engine."""
    return _count_prompts(document) * max(1, int(document.get("n") or 1))


def _count_prompts(document: Document) -> int:
    prompt = document.get("prompt")
    several = isinstance(prompt, list) and not (prompt and isinstance(prompt[0], int))
    return len(prompt) if several and prompt else 1


def _require_few_sequences(document: Document, limits: GateLimits) -> None:
    prompts = _count_prompts(document)
    _require_most(prompts, limits.prompts, "prompts", "prompt")
    _require_most(count_sequences(document), limits.sequences, "answers in one request", "n")


def _require_few_stops(document: Document, field: str, limits: GateLimits) -> None:
    stops = document.get(field)
    texts = [stops] if isinstance(stops, str) else stops if isinstance(stops, list) else []
    _require_most(len(texts), limits.stop_strings, "stop strings", field)
    for text in texts:
        if isinstance(text, str):
            _require_most(len(text), limits.stop_characters, "characters in a stop string", field)


def _require_small_constraints(document: Document, body: bytes, limits: GateLimits) -> None:
    structured = document.get("structured_outputs")
    if structured is not None:
        if not isinstance(structured, dict):  # vLLM 0.32 answers 500.
            field = "structured_outputs"
            raise Refusal(400, f"{field} is not an object", field=field)
        for name in ("regex", "whitespace_pattern"):
            _require_short(structured, name, limits.regex_characters)
        _require_short(structured, "grammar", limits.grammar_characters)
        for name in ("json", "choice", "structural_tag"):
            _require_small_schema(structured.get(name), name, body, limits)
    for name in SCHEMAS:
        _require_small_schema(document.get(name), name, body, limits)
    for tool in list_tools(document):
        _require_small_schema(tool, "tools", body, limits)


def _require_small_schema(schema: Any, name: str, body: bytes, limits: GateLimits) -> None:
    """No part is larger than the whole, and a small body is not measured."""
    if len(body) > limits.schema_bytes:
        size = len(schema if isinstance(schema, str) else json.dumps(schema))
        _require_most(size, limits.schema_bytes, "bytes of schema", name)
    if len(body) > limits.regex_characters:
        for part in walk(schema):
            if isinstance(part, dict):
                _require_short(part, "pattern", limits.regex_characters)


def _require_short(document: Document, field: str, most: int) -> None:
    if isinstance(text := document.get(field), str):
        _require_most(len(text), most, "characters", field)


def _require_most(count: float, most: int, what: str, field: str) -> None:
    if count > most:
        raise Refusal(400, f"{field}: {count} {what}; this server allows up to {most}", field=field)
