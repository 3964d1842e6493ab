"""The parts of a request that the engine compiles into a grammar, and whether it can afford them.

vLLM 0.32 compiles tools only where it holds the answer to them: `tool_choice` is "required" or
names a tool (`get_json_schema_from_tools` in vllm/tool_parsers/utils.py), or a tool is `strict`
(`resolve_tool_strictness` in vllm/tool_parsers/structural_tag_registry.py). The tools that an agent
merely offers are text in the prompt. `guided_json` and its kin are ignored by this engine.
"""

import json
from collections.abc import Iterator
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.request_limits import SCHEMAS, Document, walk
from slipstream.vllm_plugin.gate.request_tools import list_tools
from slipstream.vllm_plugin.gate.schema_cost import (
    COSTLY_FORMAT,
    LENGTHS,
    Cost,
    weigh,
    weigh_choices,
    weigh_regex,
)
from slipstream.vllm_plugin.gate.schema_faults import require_sound

NOT_COMPILED = (None, "text", "json_object")


class Form(NamedTuple):
    """A constraint on the answer, by the field that requests it."""

    field: str
    value: Any

    def weigh(self, most: float = inf) -> Cost:
        """Return what the engine pays for it; past `most` it is enough to know that."""
        if self.field == "regex":
            return weigh_regex(str(self.value))
        judge = weigh_choices if self.field == "choice" else weigh
        return judge(self.value, most)

    def require_sound(self) -> None:
        """Refuse what the engine would fail to compile."""
        for schema in self._list_schemas():
            require_sound(schema, self.field)

    def _list_schemas(self) -> Iterator[Any]:
        if self.field == "json":
            yield self.value
        elif self.field == "tools":
            functions = map(_read_function, self.value)
            schemas = [one.get("parameters") or one.get("input_schema") for one in functions]
            yield from (schema for schema in schemas if isinstance(schema, dict))
        elif isinstance(self.value, dict):
            for holder in (self.value.get("json_schema"), self.value.get("format")):
                if isinstance(holder, dict) and isinstance(holder.get("schema"), dict):
                    yield holder["schema"]


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
        if isinstance(value, dict) and _is_compiled(value):
            forms.append(Form(field, value))
    if tools := list(_find_compiled_tools(document)):
        forms.append(Form("tools", tools))
    return forms


def require_tokens_left(document: Document) -> None:
    """Refuse a choice of tokens beside a form: where both leave none, vLLM 0.32 answers 500."""
    if not document.get("allowed_token_ids"):
        return
    if held := [*(form.field for form in list_forms(document)), *_find_json_objects(document)]:
        what = f"allowed_token_ids beside {held[0]} can leave no token to choose"
        raise Refusal(400, f"{what}; send one of them", field="allowed_token_ids")


def digest_forms(forms: list[Form]) -> bytes:
    """Return a digest of constraints, as the engine's cache of grammars distinguishes them."""
    return sha256(json.dumps(forms).encode()).digest()


def require_affordable_forms(document: Document, most: int) -> list[str]:
    """Refuse the faulty and the costly; tools lose their lengths first; return what was lost."""
    dropped: list[str] = []
    units = 0
    for form in list_forms(document):
        cost = form.weigh(most)
        if form.field == "tools" and cost.units > most and (count := _lighten(form.value)):
            what = f"{count} lengths and formats dropped from tools"
            dropped.append(f"{what}: at least {cost.units} units, up to {most}")
            cost = form.weigh(most)
        units += cost.units
        if units > most:
            what = f"{form.field}: compiling this costs at least {units} units"
            why = f"most of them for {cost.mostly}; this server allows up to {most}"
            raise Refusal(400, f"{what}, {why}", field=form.field, reason="costly_schema")
        form.require_sound()
    return dropped


def _lighten(tools: list[dict[str, Any]]) -> int:
    """Remove optional parts of a tool's schema; return how much was removed."""
    dropped = 0
    for part in walk(tools):
        if isinstance(part, dict):
            costly = [name for name in LENGTHS if isinstance(part.get(name), int | float)]
            costly += ["format"] * (part.get("format") == COSTLY_FORMAT)
            for name in costly:
                del part[name]
            dropped += len(costly)
    return dropped


def _find_json_objects(document: Document) -> list[str]:
    asked = document.get("structured_outputs")
    named = ["json_object"] if isinstance(asked, dict) and asked.get("json_object") else []
    values = {field: document.get(field) for field in SCHEMAS}
    return named + [
        field
        for field, value in values.items()
        if isinstance(value, dict) and any(one.get("type") == "json_object" for one in _nest(value))
    ]


def _find_compiled_tools(document: Document) -> Iterator[dict[str, Any]]:
    tools = list_tools(document)
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
    """Return the part with the name: OpenAI's chats have it one level deeper than the others."""
    function = tool.get("function")
    return function if isinstance(function, dict) else tool


def _is_strict(tool: dict[str, Any]) -> bool:
    """Return whether a tool's schema is enforced; the engine accepts "true" and 1, too."""
    return any(part.get("strict") not in (None, False) for part in (tool, _read_function(tool)))


def _is_compiled(value: dict[str, Any]) -> bool:
    """Return whether a form is a schema; Anthropic's `output_config` need not name its kind."""
    return any(one.get("type") not in NOT_COMPILED or "schema" in one for one in _nest(value))


def _nest(value: dict[str, Any]) -> list[dict[str, Any]]:
    """List the form and the one within it: `text` and `output_config` hold theirs in `format`."""
    return [one for one in (value, value.get("format")) if isinstance(one, dict)]


def _parse(schema: Any) -> Any:
    """Read a schema that came as text; one that cannot be read is the engine's to refuse."""
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except (ValueError, RecursionError):
        return schema
