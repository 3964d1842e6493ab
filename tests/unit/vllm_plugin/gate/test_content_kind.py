"""The kind of a request, by its fields and its last words."""

from typing import Any

import pytest

from slipstream.vllm_plugin.gate.content_kind import find_kind

TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def ask(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (ask("Write a Python function that sorts a list."), "code"),
        (ask("What does this do?\n```\nfor x in y: pass\n```"), "code"),
        (ask("Tell me a story about a lighthouse."), "prose"),
        (ask("Translate into French: where is the station?"), "translation"),
        (ask("hi", tools=[TOOL]), "tools"),
        (ask("Tell me a story.", tools=[TOOL], tool_choice="none"), "prose"),
        (ask("List three.", response_format={"type": "json_object"}), "structured"),
        (ask("List three.", response_format={"type": "text"}), "prose"),
        (ask([{"type": "text", "text": "Explain this traceback"}]), "code"),
        ({"prompt": "Once upon a time"}, "prose"),
        ({"prompt": [1, 2, 3]}, "other"),
        ({"input": [{"role": "user", "content": "Refactor it."}]}, "code"),
        ({"input": "Tell me a story."}, "prose"),
        ({}, "other"),
        (ask(None), "other"),
        ({"messages": [None, 7]}, "other"),
        ({"messages": "Tell me."}, "prose"),
    ],
)
def test_a_request_has_a_kind(document: dict[str, Any], kind: str) -> None:
    assert find_kind(document) == kind


def test_a_long_text_is_judged_by_its_end() -> None:
    assert find_kind(ask("def f(): pass\n" * 100_000 + "Tell me a story. " * 400)) == "prose"
