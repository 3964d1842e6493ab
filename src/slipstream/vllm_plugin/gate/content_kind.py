"""The kind of text that a request asks for, estimated from its fields and its last words.

The kind labels figures and decides nothing about the request itself.
"""

import re
from typing import Any

from slipstream.vllm_plugin.gate.request_limits import Document

MOST_CHARACTERS = 4000
_TRANSLATION = re.compile(
    r"\b(?:translat\w+|übersetz\w+|tradui\w+|traduc\w+|traduz\w+)\b|翻译|翻訳", re.IGNORECASE
)
_CODE = re.compile(
    r"```|^\s*(?:def|class|import|from|func|fn|public|const|let|#include|SELECT|CREATE)\b"
    r"|[;{}]\s*$|\b(?:python|javascript|typescript|rust|c\+\+|sql|regex|unit tests?|function"
    r"|refactor|stack trace|traceback|bug|compile)\b",
    re.IGNORECASE | re.MULTILINE,
)
_STRUCTURED = ("response_format", "structured_outputs", "output_config")


def find_kind(document: Document) -> str:
    """Return 'tools', 'structured', 'translation', 'code', 'prose', or 'other' without any text."""
    if document.get("tools") and document.get("tool_choice") != "none":
        return "tools"
    if any(_asks_for_form(document.get(name)) for name in _STRUCTURED):
        return "structured"
    text = _find_last_text(document)
    if not text.strip():
        return "other"
    if _TRANSLATION.search(text):
        return "translation"
    return "code" if _CODE.search(text) else "prose"


def _asks_for_form(value: Any) -> bool:
    return bool(value) and not (isinstance(value, dict) and value.get("type") == "text")


def _find_last_text(document: Document) -> str:
    """Return the end of what the user said last."""
    said = document.get("messages") or document.get("input") or document.get("prompt") or ""
    if isinstance(said, list):
        users = [one for one in said if isinstance(one, dict) and one.get("role") == "user"]
        last = users[-1] if users else said[-1] if said else ""
        said = last.get("content", "") if isinstance(last, dict) else last
    if isinstance(said, list):
        parts = [one.get("text") for one in said if isinstance(one, dict)]
        said = " ".join(part for part in parts if isinstance(part, str))
    return said[-MOST_CHARACTERS:] if isinstance(said, str) else ""
