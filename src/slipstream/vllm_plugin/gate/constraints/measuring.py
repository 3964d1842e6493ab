"""Has a new constraint compiled in a child process first, and remembers what came of it.

What the engine compiles cannot be interrupted, and it goes on after its client has left. So a
constraint reaches the engine only if it was compiled here within its limits; what was measured
lately is free, whoever sent it. A key has so much measured in a minute, and keys take turns.
"""

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from itertools import count
from math import ceil
from typing import Any, NamedTuple

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import Refusal, try_later
from slipstream.vllm_plugin.gate.callers.key_ring import ANYONE, Caller
from slipstream.vllm_plugin.gate.constraints.forms import (
    ConstraintForm,
    find_compiled_tools,
    lighten,
    list_forms,
)
from slipstream.vllm_plugin.gate.requests.limits import Document

WORKER = "slipstream.vllm_plugin.gate.constraints.worker"
BACKEND = "xgrammar"
CHILDREN = 2
MOST_WAITING = 64
# On a machine that has other things to do: a child has a low priority.
MOST_SECONDS = 60.0
MINUTE = 60.0
# Half of what plans let vLLM keep (VLLM_XGRAMMAR_CACHE_MB): what is remembered is still in there.
REMEMBERED_BYTES = 32 * 2**20
LEAST_BYTES = 2**16

# When a key had something measured, and the milliseconds that it took.
_Recent = deque[tuple[float, float]]
_log = logging.getLogger(__name__)


class Unmeasured(Exception):
    """Nothing could be found out about a constraint."""


class ConstraintVerdict(NamedTuple):
    """What came of a constraint: 'fits', 'costly' or 'faulty', what it took, and why."""

    outcome: str
    milliseconds: int
    size: int = 0
    why: str = ""


FITS = ConstraintVerdict("fits", 0)


class Constraints:
    """Admits requests whose constraints were measured, and those without any."""

    def __init__(self) -> None:
        self.worker = WorkerProcess()
        self._clock = time.monotonic
        self._waiting: Counter[str] = Counter()
        self._turns: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._children = asyncio.Semaphore(CHILDREN)
        self._known: OrderedDict[bytes, ConstraintVerdict] = OrderedDict()
        self._known_bytes = 0
        self._recent: dict[str, _Recent] = {}

    def check(
        self, document: Document, settings: GateSettings
    ) -> tuple[list[ConstraintForm], list[str]]:
        """Refuse what does not fit; return what is to be measured, and what tools have lost."""
        forms = list_forms(document)
        verdict = self._recall(forms, settings) if forms else FITS
        dropped = _lighten(document, verdict)
        if dropped:
            forms = list_forms(document)
            verdict = self._recall(forms, settings)
        if verdict is None:
            return forms, dropped
        if verdict.outcome != FITS.outcome:
            field, reason = forms[0].field, f"{verdict.outcome}_schema"
            raise Refusal(400, f"{field}: {verdict.why}", field=field, reason=reason)
        return [], dropped

    async def measure(
        self, caller: Caller, forms: list[ConstraintForm], settings: GateSettings
    ) -> bool:
        """Have forms measured when it is their key's turn, unless that was done meanwhile."""
        most, field = settings.limits.schema_units, forms[0].field
        async with self._take_turn(caller.id, settings.retry_after_seconds):
            if self._recall(forms, settings) is not None:
                return True
            began, spent = self._clock(), float(most)
            recent = self._require_pace(caller, began, field, settings)
            try:
                verdict = await self.worker.measure(forms, most)
                spent = verdict.milliseconds
            except Unmeasured as fault:
                what, seconds = f"{field}: {fault}", settings.retry_after_seconds
                raise try_later(503, what, seconds, reason="unmeasured") from fault
            finally:  # Whoever leaves has had so much, too.
                recent.append((began, min(spent, (self._clock() - began) * 1000)))
            self._remember(_digest(forms, settings), verdict)
            return True

    @asynccontextmanager
    async def _take_turn(self, key: str, retry_after_seconds: int) -> AsyncIterator[None]:
        """Wait for one of the children: each key for one at a time, so the keys take turns."""
        if self._waiting[key] >= MOST_WAITING:
            what = f"{MOST_WAITING} new schemas of this key wait to be measured"
            raise try_later(429, what, retry_after_seconds, reason="new_schemas")
        self._waiting[key] += 1
        try:
            async with self._turns[key], self._children:
                yield
        finally:
            self._waiting[key] -= 1

    def _require_pace(
        self, caller: Caller, now: float, field: str, settings: GateSettings
    ) -> _Recent:
        """Refuse what is too much of a key within a minute; return what it had in that."""
        recent = self._recent.setdefault(caller.id, deque())
        while recent and recent[0][0] <= now - MINUTE:
            recent.popleft()
        spent = sum(milliseconds for _, milliseconds in recent)
        limits = {
            "new schemas": (len(recent), settings.new_schemas_per_minute),
            "ms for new schemas": (spent, settings.schema_units_per_minute),
        }
        for what, (used, most) in limits.items():
            if used >= most and caller is not ANYONE:
                message = f"{field}: this key may have {most} {what} within a minute"
                wait = max(1, ceil(recent[0][0] + MINUTE - now))
                refusal = try_later(429, message, wait, reason="new_schemas")
                refusal.field = field
                raise refusal
        return recent

    def _recall(
        self, forms: list[ConstraintForm], settings: GateSettings
    ) -> ConstraintVerdict | None:
        if (digest := _digest(forms, settings)) in self._known:
            self._known.move_to_end(digest)
        return self._known.get(digest)

    def _remember(self, digest: bytes, verdict: ConstraintVerdict) -> None:
        self._known[digest] = verdict
        self._known_bytes += max(LEAST_BYTES, verdict.size)
        while self._known_bytes > REMEMBERED_BYTES and len(self._known) > 1:
            _, oldest = self._known.popitem(last=False)
            self._known_bytes -= max(LEAST_BYTES, oldest.size)


def _lighten(document: Document, verdict: ConstraintVerdict | None) -> list[str]:
    """Remove optional parts from tools that do not fit; return what the client is told of it."""
    if verdict is None or verdict.outcome == FITS.outcome:
        return []
    lost = lighten(find_compiled_tools(document))
    what = f"{lost} lengths, patterns and formats dropped from tools: {verdict.outcome}"
    return [what] if lost else []


def _digest(forms: list[ConstraintForm], settings: GateSettings) -> bytes:
    """Return what tells forms apart, as the engine's cache does; with other limits all are new."""
    texts = [(form.kind, form.text) for form in forms]
    return sha256(json.dumps([settings.limits.schema_units, texts]).encode()).digest()


class WorkerProcess:
    """The process that compiles, started with the first constraint and again if it ends."""

    def __init__(self) -> None:
        self._first: bytes | None = None
        self._missing = "this server has not started"
        self.process: subprocess.Popen[bytes] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self.reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._numbers = count()
        self._answers: dict[int, asyncio.Future[ConstraintVerdict]] = {}

    def prepare(self, config: Any) -> None:
        """Take the vocabulary from the engine's configuration; without it all are refused."""
        try:
            self._first = describe_vocabulary(config)
        except Exception as fault:  # noqa: BLE001 whatever tokenizers raise
            self._missing = f"constraints cannot be measured: {fault}"
            _log.error("slipstream gate: %s", self._missing)

    def close(self) -> None:
        """End the process, and with it what it does."""
        if self._writer is not None:
            self._writer.close()

    async def measure(
        self, forms: list[ConstraintForm], most_milliseconds: int
    ) -> ConstraintVerdict:
        """Have forms compiled; a caller that is cancelled ends the job."""
        job, pairs = next(self._numbers), [(form.kind, form.text) for form in forms]
        answer: asyncio.Future[ConstraintVerdict] = asyncio.get_running_loop().create_future()
        self._answers[job] = answer
        try:
            async with asyncio.timeout(MOST_SECONDS):
                await self._start()
                self._send({"id": job, "forms": pairs, "most_milliseconds": most_milliseconds})
                return await answer
        except (TimeoutError, OSError) as fault:
            raise Unmeasured("it could not be measured in time") from fault
        finally:
            del self._answers[job]
            if answer.cancelled() or not answer.done():
                self._send({"cancel": job})

    def _send(self, line: dict[str, Any]) -> None:
        if self._writer is not None:
            self._writer.write(json.dumps(line).encode() + b"\n")

    async def _start(self) -> None:
        if self._first is None:
            raise Unmeasured(self._missing)
        async with self._starting:
            if self._writer is not None:
                return
            ours, its = socket.socketpair()
            with its:
                environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                command, file = (sys.executable, "-P", "-m", WORKER), its.fileno()
                self.process = subprocess.Popen(command, stdin=file, stdout=file, env=environment)
            reader, self._writer = await asyncio.open_connection(sock=ours)
            self._writer.write(self._first)
            self.reading = asyncio.create_task(self._read(reader, self.process))

    async def _read(self, reader: asyncio.StreamReader, process: "subprocess.Popen[bytes]") -> None:
        with suppress(OSError):
            while line := await reader.readline():
                found = json.loads(line)
                answer = self._answers.get(found.pop("id"))
                if answer is not None and not answer.done():
                    answer.set_result(ConstraintVerdict(**found))
        self.close()
        self._writer = None
        process.kill()
        process.wait()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(Unmeasured("the process that measures has ended"))
                _log.warning("slipstream gate: the process that measures constraints has ended")


def describe_vocabulary(config: Any) -> bytes:
    """Return the vocabulary as vLLM's backend reads it, and its style, as the worker's first line.

    xgrammar's grammars are those that every plan has; other backends are not measured.
    """
    chosen = config.structured_outputs_config
    if chosen.backend != BACKEND:
        raise Unmeasured(f"the engine uses {chosen.backend}, and not {BACKEND}")
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend

    model = config.model_config
    tokenizer = cached_tokenizer_from_config(model)
    backend = XgrammarBackend(config, tokenizer=tokenizer, vocab_size=model.get_vocab_size())
    info = backend.compiler.compile_grammar('root ::= "a"').tokenizer_info
    first = {"vocabulary": info.serialize_json(), "compact": chosen.disable_any_whitespace}
    return json.dumps(first).encode() + b"\n"
