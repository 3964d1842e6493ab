"""The parts of a request that the engine compiles into a grammar, and whether it can afford them.

vLLM 0.32 compiles tools only where it holds the answer to them: `tool_choice` is "required" or
names a tool (`get_json_schema_from_tools` in vllm/tool_parsers/utils.py), or a tool is `strict`
(`resolve_tool_strictness` in vllm/tool_parsers/structural_tag_registry.py). The tools that an agent
merely offers are text in the prompt. `guided_json` and its kin are ignored by this engine.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.request_limits import SCHEMAS, Document, walk
from slipstream.vllm_plugin.gate.schema_cost import (
    LENGTHS,
    UNAFFORDABLE_FORMAT,
    Cost,
    weigh,
    weigh_choices,
    weigh_regex,
)

NOT_COMPILED = (None, "text", "json_object")


class Form(NamedTuple):
    """What an answer is held to, by the field that asks for it."""

    field: str
    value: Any

    def weigh(self) -> Cost:
        """Give what the engine pays for it."""
        if self.field == "regex":
            return weigh_regex(str(self.value))
        return weigh_choices(self.value) if self.field == "choice" else weigh(self.value)


def list_forms(document: Document) -> list[Form]:
    """List what the engine will compile for a request."""
    forms = []
    asked = document.get("structured_outputs")
    if isinstance(asked, dict):
        for field in ("json", "regex", "choice"):
            if asked.get(field) is not None:
                forms.append(Form(field, _parse(asked[field]) if field == "json" else asked[field]))
    for field in SCHEMAS:
        value = document.get(field)
        if isinstance(value, dict) and _read_kind(value) not in NOT_COMPILED:
            forms.append(Form(field, value))
    if tools := list(_find_compiled_tools(document)):
        forms.append(Form("tools", tools))
    return forms


def digest_forms(forms: list[Form]) -> bytes:
    """Tell one constraint from another, as the engine's cache of grammars does."""
    return sha256(json.dumps(forms).encode()).digest()


def require_affordable_forms(document: Document, most: int) -> list[str]:
    """Refuse what costs the engine too much; tools lose their lengths first. Give what was lost."""
    dropped = _lighten_tools(document, most)
    units = 0
    for form in list_forms(document):
        _require_no_costly_format(form)
        cost = form.weigh()
        units += cost.units
        if units > most:
            what = (
                f"{form.field}: compiling this costs {units} units, most of them for {cost.mostly}"
            )
            raise Refusal(400, f"{what}; this server allows up to {most}", field=form.field)
    return dropped


def _lighten_tools(document: Document, most: int) -> list[str]:
    """Take out what a tool means something without, as long as it is too much."""
    tools = list(_find_compiled_tools(document))
    parts = [part for part in walk(tools) if isinstance(part, dict)]
    formats = [part for part in parts if part.get("format") == UNAFFORDABLE_FORMAT]
    for part in formats:
        del part["format"]
    warnings = [f"{len(formats)} formats dropped from tools: {UNAFFORDABLE_FORMAT}"] * bool(formats)
    if (units := weigh(tools).units) <= most:
        return warnings
    lengths = [(part, name) for part in parts for name in LENGTHS if _is_number(part.get(name))]
    for part, name in lengths:
        del part[name]
    if lengths:
        warnings.append(f"{len(lengths)} lengths dropped from tools: {units} units, up to {most}")
    return warnings


def _require_no_costly_format(form: Form) -> None:
    for part in walk(form.value):
        if isinstance(part, dict) and part.get("format") == UNAFFORDABLE_FORMAT:
            what = (
                f"{form.field}: the format {UNAFFORDABLE_FORMAT} takes up to 59 ms for every token"
            )
            hint = "this server takes the formats that take up to 1 ms"
            raise Refusal(400, f"{what}; {hint}", field=form.field)


def _find_compiled_tools(document: Document) -> Iterator[dict[str, Any]]:
    tools = document.get("tools")
    tools = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    choice = document.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    if kind == "none":
        return
    if kind in (None, "auto"):
        yield from filter(_is_strict, tools)
        return
    name = _read_function(choice).get("name") if isinstance(choice, dict) else None
    named = [tool for tool in tools if _read_function(tool).get("name") == name]
    yield from named if name is not None and named else tools


def _read_function(tool: dict[str, Any]) -> dict[str, Any]:
    """Give the part with the name: OpenAI's chats have it one level deeper than the others."""
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _is_strict(tool: dict[str, Any]) -> bool:
    """Say whether a tool's arguments are held to its schema; the engine takes "true" and 1, too."""
    return any(part.get("strict") not in (None, False) for part in (tool, _read_function(tool)))


def _read_kind(value: dict[str, Any]) -> Any:
    inner = value.get("format")
    return value.get("type") or (inner.get("type") if isinstance(inner, dict) else None)


def _parse(schema: Any) -> Any:
    """Read a schema that came as text; one that cannot be read is the engine's to refuse."""
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return schema


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)
