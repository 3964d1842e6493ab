"""Drafts that copy: the same text as without them, in fewer steps, and counted."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from slipstream.measuring.client.endpoint import Endpoint
from slipstream.measuring.client.engine_metrics import EngineCounts, read_engine_counts
from tests.engine.service import Service

pytestmark = [pytest.mark.engine, pytest.mark.beside]

CODE = """def read_entries(path):
    with open(path) as handle:
        entries = json.load(handle)
    for name, amount in entries.items():
        if not isinstance(amount, int):
            raise ValueError("an amount is not a number")
        entries[name] = max(amount, 0)
    return entries


def write_entries(path, entries):
    with open(path, "w") as handle:
        json.dump(entries, handle, indent=2)
"""
REPEAT = f"Repeat the following Python code exactly, without changes:\n```python\n{CODE}```"
EDIT = (
    "Rewrite this Python code with the function read_entries renamed to load_entries. "
    f"Answer with the whole code.\n```python\n{CODE}```"
)
TOKENS = 96
# Where all of an answer is copied it is more than 2.
CLEARLY_MORE = 1.3
LEAST_COPIED = 30


class Answers:
    """Two prompts' texts from one way of serving, and what vLLM counted for them."""

    def __init__(self, service: Service) -> None:
        before = read_engine_counts(Endpoint(service.url))
        answers = [ask(service, text) for text in (REPEAT, EDIT)]
        self.counts = read_engine_counts(Endpoint(service.url)).since(before)
        self.texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        # The engine's own count may have a probe in it.
        self.tokens = sum(answer["usage"]["completion_tokens"] for answer in answers)


def chat(service: Service, text: str, **more: Any) -> str:
    content: str = ask(service, text, **more)["choices"][0]["message"]["content"]
    return content


def ask(service: Service, text: str, **more: Any) -> dict[str, Any]:
    asked = {"messages": [{"role": "user", "content": text}], "max_tokens": TOKENS}
    body = asked | {"temperature": 0} | more
    answer = httpx.post(f"{service.url}/v1/chat/completions", json=body, timeout=300)
    assert answer.status_code == httpx.codes.OK, answer.text
    document: dict[str, Any] = answer.json()
    return document


def count_tokens_per_step(counts: EngineCounts) -> float:
    """Of each step of a sequence one token is the target's own, the others were accepted."""
    tokens = counts.output_tokens or 0
    return tokens / (tokens - (counts.accepted or 0))


def read_kinds(service: Service) -> list[dict[str, Any]]:
    time.sleep(2)  # The state is reported once a second.
    status = json.loads(service.command("status", service.newest[1].id, "--json").stdout)
    return list(status["steering"][0]["kinds"].values())


@pytest.fixture(scope="module")
def service(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    running = Service(tmp_path_factory.mktemp("copying"), target)
    try:
        running.serve("--users", "2")
        yield running
    finally:
        running.end()


@pytest.fixture(scope="module")
def copied(service: Service) -> Answers:
    return Answers(service)


@pytest.fixture(scope="module")
def drafted(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    """Return the answers of the drafter alone."""
    other = Service(tmp_path_factory.mktemp("drafted"), target)
    try:
        other.serve("--users", "2", "--no-copy")
        return Answers(other)
    finally:
        other.end()


@pytest.fixture(scope="module")
def plain(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    other = Service(tmp_path_factory.mktemp("plain"), target)
    options = ("--context", "1024", "--users", "2", "--port", str(other.port), "--detach")
    # Without drafts the plan keeps the checkpoint's bfloat16.
    engine = ("--", "--enforce-eager", "--dtype", "float32")
    try:
        other.command("serve", str(target), "--no-speculation", *options, *engine)
        return Answers(other)
    finally:
        other.end()


def test_copies_change_no_text_and_save_steps(
    copied: Answers, drafted: Answers, plain: Answers
) -> None:
    assert copied.texts == drafted.texts == plain.texts
    assert copied.tokens == plain.tokens
    assert not plain.counts.drafts
    ratio = count_tokens_per_step(copied.counts) / count_tokens_per_step(drafted.counts)
    assert ratio > CLEARLY_MORE


def test_what_is_copied_is_in_the_ledger_and_the_metrics(service: Service, copied: Answers) -> None:
    kinds = read_kinds(service)
    assert sum(kind["copied_accepted"] for kind in kinds) > LEAST_COPIED
    counted = read_engine_counts(Endpoint(service.url))
    for ours, theirs in (
        (("drafts", "copies"), counted.drafts),
        (("drafted", "copied"), counted.drafted),
    ):
        assert sum(kind[name] for kind in kinds for name in ours) == theirs
    folder, _ = service.newest
    lines = [json.loads(line) for line in folder.ledger.read_text().splitlines()]
    for name in ("copies", "copied", "copied_accepted"):
        assert sum(line[name] for line in lines) == sum(kind[name] for kind in kinds)
    metrics = httpx.get(f"{service.url}/metrics").text.splitlines()
    shown = [line for line in metrics if line.startswith("slipstream_ledger_copied")]
    assert sum(float(line.split()[-1]) for line in shown) > 0


def test_a_sampled_request_is_answered(service: Service) -> None:
    assert chat(service, REPEAT, temperature=0.8, seed=7)


def test_a_constrained_answer_keeps_to_its_schema(service: Service) -> None:
    item = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}}
    schema = {"type": "array", "items": item | {"required": ["name"]}, "maxItems": 4}
    shape = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    listed = json.dumps([{"name": name} for name in ("anchor", "basket", "candle", "drum")])
    text = chat(service, f"Answer with this JSON again: {listed}", response_format=shape)
    assert all(set(one) >= {"name"} for one in json.loads(text))
