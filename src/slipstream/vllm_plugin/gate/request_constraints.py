"""The constraints that an answer may have: those whose cost can be predicted.

A JSON schema and a list of choices have one (see `schema_cost`). A grammar has none, and of the
patterns only the plain ones do (see `patterns`).
"""

import json
from collections.abc import Iterator
from typing import Any

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.patterns import is_plain, list_patterns
from slipstream.vllm_plugin.gate.request_limits import SCHEMAS, Document, walk
from slipstream.vllm_plugin.gate.request_tools import list_tools

GRAMMARS = ("grammar", "structural_tag")
PATTERNS = ("regex", "whitespace_pattern")


def require_plain_constraints(document: Document, most_characters: int) -> None:
    """Refuse a form that could keep the engine from serving the others."""
    asked = document.get("structured_outputs")
    if isinstance(asked, dict):
        for name in GRAMMARS:
            if asked.get(name) is not None:
                raise _refuse_grammar(name)
        for name in PATTERNS:
            if isinstance(pattern := asked.get(name), str):
                _require_plain(pattern, name)
        _require_plain_schema(asked.get("json"), "json", most_characters)
    for name in SCHEMAS:
        schema = document.get(name)
        if isinstance(schema, dict) and schema.get("type") in GRAMMARS:
            raise _refuse_grammar(name)
        _require_plain_schema(schema, name, most_characters)


def drop_patterns(document: Document, most_characters: int) -> list[str]:
    """Remove ambiguous patterns from tools, which are useful without them."""
    dropped = 0
    for part in _find_patterns(list_tools(document), "tools", most_characters):
        if isinstance(pattern := part.get("pattern"), str) and not is_plain(pattern):
            del part["pattern"]
            dropped += 1
        if isinstance(named := part.get("patternProperties"), dict):
            for pattern in [one for one in named if not is_plain(one)]:
                del named[pattern]
                dropped += 1
    return [f"{dropped} patterns dropped from tools: ambiguous"] if dropped else []


def _require_plain_schema(schema: Any, name: str, most_characters: int) -> None:
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except RecursionError as fault:
            raise Refusal(400, f"{name} is nested too deep", field=name) from fault
        except ValueError:
            return  # The engine will say so.
    for part in _find_patterns(schema, name, most_characters):
        for pattern in list_patterns(part):
            _require_plain(pattern, name)


def _find_patterns(schema: Any, name: str, most_characters: int) -> Iterator[dict[str, Any]]:
    """Yield the objects in a schema that have patterns, as long as it is not too many."""
    read = 0
    for part in walk(schema):
        if isinstance(part, dict):
            read += sum(map(len, list_patterns(part)))
            if read > most_characters:
                what = f"{name}: this server allows up to {most_characters} characters of patterns"
                raise Refusal(400, what, field=name)
            yield part


def _require_plain(pattern: str, name: str) -> None:
    if not is_plain(pattern):
        what = f"{name}: '{pattern[:60]}' can be read in several ways, or not at all"
        hint = "this server takes patterns in which every character says what may come next"
        raise Refusal(400, f"{what}; {hint}", field=name)


def _refuse_grammar(name: str) -> Refusal:
    what = f"{name}: this server takes JSON schemas, choices and plain patterns"
    return Refusal(400, what, field=name)
