"""The tools of a request, wherever its API has them."""

from collections.abc import Iterator
from typing import Any

Tool = dict[str, Any]


def list_tools(document: dict[str, Any]) -> list[Tool]:
    """List the tools: declared, within a namespace (Responses), or added by a turn (Messages)."""
    tools: list[Tool] = []
    for tool in _list_objects(document.get("tools")):
        inner = list(_list_objects(tool.get("tools")))
        tools += inner or [tool]
    for turn in _list_objects(document.get("messages")):
        for part in _list_objects(turn.get("content")):
            change = part.get("tool")
            added = change.get("definition") if isinstance(change, dict) else None
            if isinstance(added, dict):
                tools.append(added)
    return tools


def _list_objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        yield from (one for one in value if isinstance(one, dict))
