"""Tool sets as agents send them: many tools, long descriptions, arrays of objects, some enums."""

from typing import Any

Schema = dict[str, Any]

LONG = (
    "Use it for one thing at a time and read the result before you go on. Paths are absolute. "
    "If it fails, say what you tried and why, and do not try the very same thing again. "
)
TEXT: Schema = {"type": "string", "description": LONG}
COUNT: Schema = {"type": "integer", "minimum": 0, "maximum": 100_000, "description": LONG}
FLAG: Schema = {"type": "boolean", "default": False, "description": LONG}


def tool(name: str, required: str, **properties: Schema) -> Schema:
    """Make a function of the chat API; `required` names properties, apart by spaces."""
    parameters = {**record(required, **properties), "additionalProperties": False}
    function = {"name": name, "description": LONG * 8, "parameters": parameters}
    return {"type": "function", "function": function}


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": [*values], "description": LONG}


def many(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, "description": LONG, **bounds}


def record(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


EDIT = record("old new", old=TEXT, new=TEXT, replace_all=FLAG)
OPTIONS = many(record("label", label=TEXT, description=TEXT), minItems=2, maxItems=4)
QUESTION = record("question options", question=TEXT, header={**TEXT, "maxLength": 12})
QUESTION["properties"] |= {"options": OPTIONS, "several": FLAG}
TODO = record("content id", content={"type": "string", "minLength": 1}, id=TEXT)
TODO["properties"] |= {"status": one_of("pending", "in_progress", "completed")}
CODING = [
    tool("read", "path", path=TEXT, offset=COUNT, limit=COUNT, pages=TEXT),
    tool("multi_edit", "path edits", path=TEXT, edits=many(EDIT, minItems=1)),
    tool("todo_write", "todos", todos=many(TODO)),
    tool("shell", "command", command=TEXT, timeout=COUNT, background=FLAG, description=TEXT),
    tool("fetch", "url prompt", url={"type": "string", "format": "uri"}, prompt=TEXT),
    tool("ask", "questions", questions=many(QUESTION, minItems=1, maxItems=4)),
]
FILTER: Schema = {
    "anyOf": [
        record("field equals", field={"const": "state"}, equals=one_of("open", "closed")),
        record("field after", field={"const": "created"}, after={"type": "string"}),
        record("field any_of", field={"const": "label"}, any_of=many({"type": "string"})),
    ]
}
SERVER = [
    tool(
        f"{verb}_{noun}",
        "owner repository",
        owner={"type": "string", "minLength": 1},
        repository={"type": "string", "minLength": 1},
        number={"type": ["integer", "null"]},
        title=TEXT,
        body=TEXT,
        labels=many({"type": "string"}, maxItems=100),
        filters=many(FILTER),
        modifiers=many(one_of("Alt", "Control", "Meta", "Shift")),
        notes={"anyOf": [{"type": "string"}, {"type": "null"}]},
        timeout_ms={"type": "number", "exclusiveMinimum": 0, "default": 5000},
        per_page={"type": "integer", "minimum": 1, "maximum": 100},
        since={"type": "string", "format": "date-time"},
    )
    for verb in ("list", "get", "create", "update", "delete")
    for noun in ("issue", "pull", "branch", "release", "comment", "label", "review", "workflow")
]
# One schema, deep and with references, as a data class gives it.
EXTRACTION: Schema = {
    **record(
        "title people events confidence extra",
        title={"type": "string", "maxLength": 80},
        people={"type": "array", "items": {"$ref": "#/$defs/Person"}},
        events={"type": "array", "items": {"$ref": "#/$defs/Event"}},
        confidence={"type": "number", "minimum": 0, "maximum": 1},
        extra={"type": "object", "additionalProperties": {"type": "string"}},
    ),
    "additionalProperties": False,
    "$defs": {
        "Person": record(
            "name",
            name={"type": "string", "minLength": 1},
            email={"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
            born={"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            roles=many(one_of("author", "editor", "reader")),
            reports_to={"anyOf": [{"$ref": "#/$defs/Person"}, {"type": "null"}]},
        ),
        "Event": {"oneOf": [{"$ref": "#/$defs/Meeting"}, {"$ref": "#/$defs/Decision"}]},
        "Meeting": record("kind", kind={"const": "meeting"}, at={"type": "string"}, room=TEXT),
        "Decision": record("kind", kind={"const": "decision"}, what=TEXT, votes=COUNT),
    },
}
TOOL_SETS = {"coding": CODING, "server": SERVER}
