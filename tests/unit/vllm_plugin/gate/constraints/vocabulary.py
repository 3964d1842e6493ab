"""A small vocabulary, and the worker's process with it: what the engine has is made of xgrammar."""

import asyncio
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import pytest

from slipstream.vllm_plugin.gate.constraints.forms import ConstraintForm
from slipstream.vllm_plugin.gate.constraints.measuring import ConstraintVerdict, WorkerProcess

TOKENS = 6000
LONG_MILLISECONDS = 30_000


@cache
def describe_vocabulary() -> bytes:
    """Make characters, JSON's signs, numbers and words."""
    xgrammar = pytest.importorskip("xgrammar")
    rng = random.Random(0)
    parts = ["an", "be", "ch", "de", "er", "fo", "gi", "ho", "in", "ka", "le", "mo", "ne", "st"]
    tokens = [chr(code) for code in range(32, 127)]
    tokens += ['",', '":', '": "', '", "', '"}', '"]', "},", "[{", '{"', "]}", "</s>"]
    tokens += [str(number) for number in range(10, 100)]
    while len(tokens) < TOKENS:
        word = "".join(rng.choices(parts, k=rng.randint(1, 4)))
        tokens.append(rng.choice(("", " ", " ")) + word + rng.choice(("", "", "", "s", ".", ",")))
    tokens = [*dict.fromkeys(tokens)]
    info = xgrammar.TokenizerInfo(tokens, stop_token_ids=[tokens.index("</s>")])
    first = {"vocabulary": info.serialize_json(), "compact": False}
    return json.dumps(first).encode() + b"\n"


@asynccontextmanager
async def running_worker() -> AsyncIterator[WorkerProcess]:
    """Yield a worker that measures with this vocabulary, and wait for its end."""
    worker = WorkerProcess()
    worker._first = describe_vocabulary()
    try:
        yield worker
    finally:
        worker.close()
        if worker.reading is not None:
            await worker.reading


def measure_all(
    forms: dict[str, ConstraintForm], most_milliseconds: int = LONG_MILLISECONDS
) -> dict[str, ConstraintVerdict]:
    """Measure forms by name, one after the other."""

    async def run() -> dict[str, ConstraintVerdict]:
        async with running_worker() as worker:
            return {
                name: await worker.measure([form], most_milliseconds)
                for name, form in forms.items()
            }

    return asyncio.run(run())


def measure_schemas(
    schemas: dict[str, Any], most_milliseconds: int = LONG_MILLISECONDS
) -> dict[str, ConstraintVerdict]:
    forms = {name: ConstraintForm("json", "json", json.dumps(one)) for name, one in schemas.items()}
    return measure_all(forms, most_milliseconds)
