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
    parameters = {
        "type": "object",
        "properties": properties,
        "required": required.split(),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": LONG * 8, "parameters": parameters},
    }


def one_of(*values: str) -> Schema:
    return {"type": "string", "enum": [*values], "description": LONG}


def many(items: Schema, **bounds: int) -> Schema:
    return {"type": "array", "items": items, "description": LONG, **bounds}


def record(required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": required.split()}


CODING = [
    tool("read", "path", path=TEXT, offset=COUNT, limit=COUNT, pages=TEXT),
    tool("write", "path content", path=TEXT, content=TEXT),
    tool("edit", "path old new", path=TEXT, old=TEXT, new=TEXT, replace_all=FLAG),
    tool(
        "multi_edit",
        "path edits",
        path=TEXT,
        edits=many(record("old new", old=TEXT, new=TEXT, replace_all=FLAG), minItems=1),
    ),
    tool(
        "todo_write",
        "todos",
        todos=many(
            record(
                "content status id",
                content={"type": "string", "minLength": 1},
                status=one_of("pending", "in_progress", "completed"),
                priority=one_of("high", "medium", "low"),
                id=TEXT,
            )
        ),
    ),
    tool("shell", "command", command=TEXT, timeout=COUNT, background=FLAG, description=TEXT),
    tool(
        "search",
        "pattern",
        pattern=TEXT,
        path=TEXT,
        glob=TEXT,
        output=one_of("content", "files", "count"),
        before=COUNT,
        after=COUNT,
        numbers=FLAG,
        ignore_case=FLAG,
        kind=TEXT,
        first=COUNT,
        multiline=FLAG,
    ),
    tool("list_files", "path", path=TEXT, ignore=many({"type": "string"})),
    tool("fetch", "url prompt", url={"type": "string", "format": "uri"}, prompt=TEXT),
    tool(
        "ask",
        "questions",
        questions=many(
            record(
                "question options",
                question=TEXT,
                header={"type": "string", "maxLength": 12},
                options=many(record("label", label=TEXT, description=TEXT), minItems=2, maxItems=4),
                several=FLAG,
            ),
            minItems=1,
            maxItems=4,
        ),
    ),
    *(
        tool(
            f"task_{number}",
            "prompt kind",
            prompt=TEXT,
            kind=one_of("search", "plan", "review", "general"),
            model=one_of("small", "large"),
            files=many({"type": "string"}),
            budget=COUNT,
            notes={"anyOf": [{"type": "string"}, {"type": "null"}]},
        )
        for number in range(10)
    ),
]
BROWSER = [
    tool(
        name,
        "element",
        element=TEXT,
        reference=TEXT,
        button=one_of("left", "right", "middle"),
        modifiers=many(one_of("Alt", "Control", "Meta", "Shift")),
        text=TEXT,
        slowly=FLAG,
        timeout_ms={"type": "number", "exclusiveMinimum": 0, "default": 5000},
        values=many({"type": "string"}),
    )
    for name in (
        *("click", "hover", "type", "press", "select", "drag", "drop", "upload", "screenshot"),
        *("snapshot", "wait", "navigate", "back", "tabs", "evaluate", "console", "requests"),
    )
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
        sort=one_of("created", "updated", "comments"),
        direction=one_of("asc", "desc"),
        page={"type": "integer", "minimum": 1},
        per_page={"type": "integer", "minimum": 1, "maximum": 100},
        since={"type": "string", "format": "date-time"},
    )
    for verb in ("list", "get", "create", "update", "delete")
    for noun in ("issue", "pull", "branch", "release", "comment", "label", "review", "workflow")
]
# One schema, deep and with references, as a data class gives it.
EXTRACTION: Schema = {
    "type": "object",
    "properties": {
        "title": {"type": "string", "maxLength": 80},
        "people": {"type": "array", "items": {"$ref": "#/$defs/Person"}},
        "events": {"type": "array", "items": {"$ref": "#/$defs/Event"}},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "extra": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["title", "people", "events", "confidence", "extra"],
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
TOOL_SETS = {"coding": CODING, "browser": BROWSER, "server": SERVER}
