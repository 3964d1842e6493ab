"""Whatever a body of a size that is allowed says, checking it holds up nobody for long.

vLLM's own application answers, without an engine behind it: what is measured is the gate, vLLM's
validation and its words about the errors. The weekly test asks a real server. Other bodies are
chosen in every weekly run; `BODIES_SEED` repeats those of one, which prints it.
"""

import asyncio
import gc
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.serving.access.gate_file import ROUTES
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.requests.limits import CONSTRAINTS
from tests.engine.gate.bodies import ANYWHERE, list_bodies
from tests.engine.gate.gated_server import Gated, probe
from tests.engine.gate.wire import exchange, make_request
from tests.slowness import measure_slowness
from tests.unit.vllm_plugin.gate.pieces import Engine, call, make_gate, make_scope

pytestmark = [pytest.mark.engine, pytest.mark.filterwarnings("ignore")]

MOST_SECONDS = 0.25
GENERATING = ("chat", "completions", "responses", "messages", "tokenize", "detokenize")
POOLING = ("embeddings", "rerank", "score", "pooling")
# Of each route, chosen at random, beside the largest of each field.
BODIES = int(os.environ.get("BODIES", "100"))
SEED = os.environ.get("BODIES_SEED", "0")
LARGEST = re.compile(r"\.\w+ (text|tokens)")
# Constraints have a limit of their own.
LONG = re.compile(rf"(?!\.({'|'.join(CONSTRAINTS)})\b)\S+ (text|keys with 0)")
# Less than a schema or a tool may have: no other limit is in the way.
TEXT, SHORTER = dict(ANYWHERE)["text"], "a b " * 10_000
MOST_CHARACTERS = 4000


def list_paths(scopes: Iterable[str]) -> set[str]:
    return {
        route.partition(" ")[2]
        for name in scopes
        for route in ROUTES[name]
        if route.startswith("POST") and "{" not in route
    }


def build(task: str) -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.openai.api_server import build_app
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args([])
    model = SimpleNamespace(get_pooling_task=lambda _: None if task == "generate" else task)
    made = build_app(arguments, (task,), model)
    gc.freeze()  # As vLLM does: what is there for good is not looked through again.
    return made


@pytest.fixture(scope="module")
def application() -> Any:
    return build("generate")


@pytest.fixture(scope="module")
def pooling_application() -> Any:
    return build("embed")


def list_requests(application: Any, paths: set[str]) -> Iterator[tuple[str, Any]]:
    for route in application.routes:
        if getattr(route, "path", None) in paths and route.body_field is not None:
            yield route.path, route.body_field.field_info.annotation


def choose(application: Any, paths: set[str]) -> Iterator[tuple[str, str, bytes]]:
    sys.stdout.write(f"\nBODIES_SEED={SEED}")
    for path, request in list_requests(application, paths):
        count = sum(1 for _ in list_bodies(request))
        chosen = {*random.Random(SEED).sample(range(count), min(BODIES, count))}
        for number, (name, document) in enumerate(list_bodies(request)):
            if number in chosen or LARGEST.fullmatch(name):
                yield path, name, dump(document)


def dump(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def send(gate: Gate, application: Any, path: str, body: bytes) -> None:
    scope = make_scope(path.encode(), method="POST", app=application)
    scope["headers"] = [(b"content-type", b"application/json")]
    message = {"type": "http.request", "body": body, "more_body": False}
    with suppress(AttributeError):  # There is no engine behind the routes.
        asyncio.run(call(gate, scope, message))


def make_judging(folder: Path, app: Any, application: Any, paths: set[str]) -> Gate:
    gate = make_gate(folder, app, routes=tuple(f"POST {path}" for path in paths))
    gate._read_engine(application)
    # Of all routes, since others may be opened while it serves.
    read = {path for path, _ in list_requests(application, list_paths(ROUTES))}
    assert paths <= gate._shapes._types.keys() == read
    return gate


def time_one(gate: Gate, application: Any, path: str, body: bytes) -> float:
    gc.collect()
    began = time.thread_time()
    send(gate, application, path, body)
    return time.thread_time() - began


def measure(folder: Path, application: Any, paths: set[str]) -> float:
    """Return the longest time of the event loop that a body takes; a slow one has three tries."""
    gate = make_judging(folder, application, application, paths)
    seconds: dict[tuple[str, str], float] = {}
    for path, name, body in choose(application, paths):
        tries = [time_one(gate, application, path, body)]
        if tries[0] > MOST_SECONDS / 2:
            tries += [time_one(gate, application, path, body) for _ in range(2)]
        seconds[path, name] = min(tries)
    slowest = sorted(seconds, key=lambda one: seconds[one], reverse=True)
    sys.stdout.write(f"\n{len(seconds)} bodies, the slowest (ms of the event loop):\n")
    for one in slowest[:12]:
        sys.stdout.write(f"  {seconds[one] * 1000:6.1f}  {' '.join(one)[:150]}\n")
    return seconds[slowest[0]]


def limit() -> float:
    return MOST_SECONDS * measure_slowness()


def pass_on(folder: Path, application: Any, paths: set[str]) -> int:
    """Send a long text, or many names, at every place of every class; return the most passed on."""
    engine = Engine()
    gate = make_judging(folder, engine, application, paths)
    gate._longest_text = MOST_CHARACTERS
    passed, sent = Counter[str](), 0
    for path, request in list_requests(application, paths):
        for name, document in list_bodies(request):
            if LONG.fullmatch(name):
                body = dump(document).replace(TEXT.encode(), SHORTER.encode())
                send(gate, application, path, body)
                sent += 1
                passed[f"{path} {name}"] = sum(map(len, engine.bodies))
                engine.bodies.clear()
    sys.stdout.write(f"\n{sent} bodies; most characters passed on: {passed.most_common(3)}\n")
    return max(passed.values())


def test_no_body_of_vllms_own_classes_holds_the_event_loop(
    tmp_path: Path, application: Any
) -> None:
    assert measure(tmp_path, application, list_paths(GENERATING)) < limit()


def test_no_body_of_a_pooling_model_holds_the_event_loop(
    tmp_path: Path, pooling_application: Any
) -> None:
    assert measure(tmp_path, pooling_application, list_paths(POOLING)) < limit()


def test_no_field_of_vllms_own_classes_brings_more_text_than_the_context_holds(
    tmp_path: Path, application: Any, pooling_application: Any
) -> None:
    assert pass_on(tmp_path, application, list_paths(GENERATING)) < MOST_CHARACTERS
    assert pass_on(tmp_path, pooling_application, list_paths(POOLING)) < MOST_CHARACTERS


@pytest.mark.weekly
def test_no_body_holds_up_a_real_server(gated: Gated, application: Any) -> None:
    slowest: list[tuple[float, str]] = []
    statuses: Counter[int] = Counter()
    with probe(gated) as waits:
        for path, name, body in choose(application, list_paths(GENERATING)):
            sent = make_request(path, method="POST", key=gated.attacker, body=body)
            waits[:] = [0.0]
            statuses[exchange(gated.port, sent).status] += 1
            slowest.append((max(waits), f"{path} {name}"))
    slowest.sort(reverse=True)
    sys.stdout.write(f"\n{len(slowest)} bodies, by status {dict(statuses)}; longest /livez:\n")
    for seconds, name in slowest[:12]:
        sys.stdout.write(f"  {seconds * 1000:6.0f} ms  {name[:150]}\n")
    assert slowest[0][0] < limit()
