"""The parts of a request that the engine compiles into a grammar.

vLLM 0.32 compiles tools only where it holds the answer to them: `tool_choice` is "required" or
names a tool (`get_json_schema_from_tools` in vllm/tool_parsers/utils.py), or a tool is `strict`
(`resolve_tool_strictness` in vllm/tool_parsers/structural_tag_registry.py). The tools that an agent
merely offers are text in the prompt. `guided_json` and its kin are ignored by this engine.
"""

import json
from typing import Any, NamedTuple

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.requests.limits import SCHEMAS, Document, list_tools, walk

KINDS = ("json", "regex", "choice")
GRAMMARS = ("grammar", "structural_tag")
# What a tool can do without, and what takes the longest to compile.
OPTIONAL = ("minLength", "maxLength", "pattern", "format")

Tool = dict[str, Any]


class ConstraintForm(NamedTuple):
    """A constraint on the answer, by the field that requests it."""

    field: str
    kind: str
    text: str


def list_forms(document: Document) -> list[ConstraintForm]:
    """List what the engine will compile for a request."""
    structured = document.get("structured_outputs")
    found = (
        [(kind, kind, structured.get(kind)) for kind in KINDS]
        if isinstance(structured, dict)
        else []
    )
    found += [(field, "json", _find_schema(document.get(field))) for field in SCHEMAS]
    if tools := find_compiled_tools(document):
        found.append(("tools", "json", _join(tools)))
    return [
        ConstraintForm(field, kind, value if isinstance(value, str) else json.dumps(value))
        for field, kind, value in found
        if value is not None
    ]


def require_forms(document: Document) -> None:
    """Refuse grammars and tags: whether the next token is soon found, nobody can tell of them."""
    structured = document.get("structured_outputs")
    named = [
        name
        for name in GRAMMARS
        if isinstance(structured, dict) and structured.get(name) is not None
    ]
    values = {field: document.get(field) for field in SCHEMAS}
    named += [
        field
        for field, value in values.items()
        if isinstance(value, dict) and value.get("type") in GRAMMARS
    ]
    if named:
        what = f"{named[0]}: this server takes JSON schemas, choices and plain patterns"
        raise Refusal(400, what, field=named[0])


def require_tokens_left(document: Document) -> None:
    """Refuse a choice of tokens beside a form: where both leave none, vLLM 0.32 answers 500."""
    if document.get("allowed_token_ids") and (held := _find_held(document)):
        what = f"allowed_token_ids together with {held} can leave no allowed token"
        raise Refusal(400, f"{what}; send only one of them", field="allowed_token_ids")


def find_compiled_tools(document: Document) -> list[Tool]:
    """Return the tools that the engine holds an answer to."""
    tools = list_tools(document)
    choice = document.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "none":
        return []
    if kind in (None, "auto"):
        return [*filter(_is_strict, tools)]
    name = _read_function(choice).get("name") if isinstance(choice, dict) else None
    return [tool for tool in tools if name and _read_function(tool).get("name") == name] or tools


def lighten(tools: list[Tool]) -> int:
    """Remove lengths, patterns and formats from tools; return how many."""
    dropped = 0
    for part in walk(tools):
        # A property may have such a name, too: its value is a schema.
        names = [one for one in OPTIONAL if isinstance(part, dict) and _is_bare(part.get(one))]
        for name in names:
            del part[name]
        dropped += len(names)
    return dropped


def _is_bare(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _find_schema(value: Any) -> Any:
    """Return the schema of a chat, or of `text` and `output_config`, which have it in `format`."""
    for name in ("json_schema", "format") if isinstance(value, dict) else ():
        if isinstance(holder := value.get(name), dict) and holder.get("schema") is not None:
            return holder["schema"]
    return None


def _find_held(document: Document) -> str | None:
    structured = document.get("structured_outputs")
    if isinstance(structured, dict) and any(value is not None for value in structured.values()):
        return "structured_outputs"
    for field in SCHEMAS:
        value = document.get(field)
        forms = (value, value.get("format")) if isinstance(value, dict) else ()
        if any(isinstance(one, dict) and one.get("type", "text") != "text" for one in forms):
            return field
    return "tools" if find_compiled_tools(document) else None


def _join(tools: list[Tool]) -> dict[str, Any]:
    """Return the schema of calls to any of the tools, as vLLM makes it."""
    functions, definitions = [*map(_read_function, tools)], {}
    branches = []
    for function in functions:
        schema = function.get("parameters") or function.get("input_schema") or {"type": "object"}
        if isinstance(schema, dict):
            inner = schema.get("$defs")
            definitions.update(inner if isinstance(inner, dict) else {})
            schema = {name: value for name, value in schema.items() if name != "$defs"}
        name = {"type": "string", "enum": [function.get("name")]}
        properties = {"name": name, "parameters": schema}
        branches.append({"properties": properties, "required": [*properties]})
    calls = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": branches}}
    return {**calls, "$defs": definitions}


def _read_function(tool: Tool) -> Tool:
    """Return the part with the name: OpenAI's chats have it one level deeper than the others."""
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _is_strict(tool: Tool) -> bool:
    """Return whether a tool's schema is enforced; the engine accepts "true" and 1, too."""
    return any(part.get("strict") not in (None, False) for part in (tool, _read_function(tool)))
