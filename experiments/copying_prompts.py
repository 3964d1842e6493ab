"""Prompts by kind for measuring copies: of our workload, and of public sets in a folder."""

import json
from pathlib import Path
from random import Random
from typing import Any

from slipstream.measuring.workloads import load_workload
from slipstream.measuring.workloads.agent_tasks import make_agent_task
from slipstream.measuring.workloads.workload import estimate_tokens

KINDS = ("repeat", "edit", "agent", "summary", "json", "chat", "math", "prose")
AGENT = "agent-2k"
LONGEST_TEXT = 2400
REPEAT = "Repeat this Python code word for word. Answer with the code only."
EDITS = (
    "Add a docstring to this Python function and answer with the whole function.",
    "Rename the first argument of this function to value and answer with the whole code.",
)

Body = dict[str, Any]


def list_units(
    kind: str, data: Path, tag: str, *, count: int, tokens: int
) -> list[tuple[str, list[Body]]]:
    """Return so many units of a kind, each with its requests in a row; most have one.

    Every conversation begins with the tag.
    """
    units = _list_units(kind, data, count, tokens)
    return [(name, [_mark(body, tag) for body in bodies]) for name, bodies in units]


def _mark(body: Body, tag: str) -> Body:
    first, *others = body["messages"]
    return body | {"messages": [first | {"content": tag + first["content"]}, *others]}


def _list_units(kind: str, data: Path, count: int, tokens: int) -> list[tuple[str, list[Body]]]:
    if kind == "agent":
        names = [f"{AGENT}-{number:02d}" for number in range(1, count + 1)]
        return [
            (name, [_ask(turn) for turn in make_agent_task(AGENT, name, estimate_tokens)])
            for name in names
        ]
    own = {"json": "json", "prose": "prose"}.get(kind)
    if own is not None:
        bodies = [_ask(one) for one in load_workload([own]).prompts]
    else:
        bodies = [_ask_text(text) for text in _list_texts(kind, data)]
    cut = [body | {"max_tokens": tokens} for body in bodies[:count]]
    return [(f"{kind}-{number:02d}", [body]) for number, body in enumerate(cut, 1)]


def _ask(prompt: Any) -> Body:
    return {"messages": list(prompt.messages), "max_tokens": prompt.max_tokens, **prompt.extra}


def _ask_text(text: str) -> Body:
    return {"messages": [{"role": "user", "content": text[:LONGEST_TEXT]}]}


def _list_texts(kind: str, data: Path) -> list[str]:
    if kind == "math":
        texts = [row["question"] for row in _read(data / "gsm8k_test.jsonl")]
    elif kind == "chat":
        texts = [row["turns"][0] for row in _read(data / "mt_bench.jsonl")]
    elif kind == "summary":
        rows = _read(data / "spec_bench.jsonl")
        texts = [row["turns"][0] for row in rows if row["category"] == "summarization"]
    else:
        codes = [row["code"].replace("\r", "") for row in _read(data / "mbpp.jsonl")]
        codes = [code for code in codes if 150 < len(code) < 600]
        # Not the same functions to repeat and to edit.
        codes = codes[::2] if kind == "repeat" else codes[1::2]
        orders = (REPEAT,) if kind == "repeat" else EDITS
        texts = [
            f"{orders[number % len(orders)]}\n```python\n{code}\n```"
            for number, code in enumerate(codes)
        ]
    Random(28).shuffle(texts)
    return texts


def _read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]
