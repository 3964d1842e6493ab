"""Tests of a server with a client's requests: streamed, with tool calls, at full length."""

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from slipstream.clients.apis import Api, Choose, Messages, Streamed, read_events
from slipstream.clients.checks import PARSER_HINT, Check
from slipstream.clients.client import Client
from slipstream.clients.served import ServedModel
from slipstream.measuring.client.endpoint import Endpoint, no_answer, open_client
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.own_listener import OwnListener
from slipstream.serving.supervision.engine_session import list_session

ANSWER_TOKENS = 16
# Left free beside a prompt that is as long as the context allows, for the chat template.
SPARE_TOKENS = 64
# A small model may fill a call with blanks, which the grammar lets it.
CALL_TOKENS = 512

_SHORT, _CALIBRATION_WORDS = "Say hello.", 256
_CALL = "Use the tool to set the unit to celsius."


@dataclass(frozen=True, slots=True)
class Tester:
    """Sends a server the requests of one client."""

    client: Client
    served: ServedModel
    tell: Callable[[str], None]

    async def test(self) -> list[Check]:
        """Request a streamed answer, a tool call, and an answer to the longest prompt possible."""
        checks = []
        async with self._open() as asking:
            short = await asking.stream(_SHORT, ANSWER_TOKENS)
            checks.append(_judge_answer("streamed answer", short))
            if short.error is None:
                if self.client.counts_tokens:
                    checks.append(await asking.count(_SHORT, short))
                checks += [await self._test_call(asking), await self._test_choice(asking)]
                checks.append(await self._test_long(asking, short))
        return checks

    async def _test_call(self, asking: "_Asking") -> Check:
        room = (self.served.context or 2 * CALL_TOKENS) // 2
        streamed = await asking.stream(_CALL, min(CALL_TOKENS, room), "forced")
        fault = streamed.error or streamed.find_call_fault()
        if fault is None:
            return Check(what="tool call, forced", works=True, message="arrived whole, in pieces")
        hint = PARSER_HINT if streamed.error is None else None
        return Check(what="tool call, forced", works=False, message=fault, hint=hint)

    async def _test_choice(self, asking: "_Asking") -> Check:
        """Distinguish a model that did not call from a call that was not parsed."""
        what = "tool call, the model's choice"
        streamed = await asking.stream(_CALL, 2 * SPARE_TOKENS, "auto")
        fault = streamed.error or streamed.find_call_fault()
        if fault is None:
            return Check(what=what, works=True, message="the model called it")
        if streamed.error is not None:
            return Check(what=what, works=False, message=fault)
        if "<tool_call" in streamed.text or '"arguments"' in streamed.text:
            message = f"the call came as text: {streamed.text[:80]!r}"
            return Check(what=what, works=False, message=message, hint=PARSER_HINT)
        return Check(what=what, works=None, message=f"accepted, but {fault}")

    async def _test_long(self, asking: "_Asking", short: Streamed) -> Check:
        """Measure how many tokens a word takes, and send as many words as fit."""
        what, context = "long prompt", self.served.context
        medium = await asking.stream("word " * _CALIBRATION_WORDS, 1)
        if medium.error is not None:
            return Check(what=what, works=False, message=medium.error)
        if context is None or short.prompt_tokens is None or medium.prompt_tokens is None:
            message = "the server does not say how long prompts and context are"
            return Check(what=what, works=None, message=message)
        each = max(1.0, (medium.prompt_tokens - short.prompt_tokens) / _CALIBRATION_WORDS)
        room = context - medium.prompt_tokens - ANSWER_TOKENS - SPARE_TOKENS
        words = _CALIBRATION_WORDS + max(0, int(room / each))
        self.tell(f"a prompt of about {int(words * each):,} tokens; this can take minutes")
        began = time.monotonic()
        streamed = await asking.stream("word " * words, ANSWER_TOKENS)
        check = _judge_answer(what, streamed)
        if not check.works:
            return check
        seconds, length = time.monotonic() - began, streamed.prompt_tokens or 0
        message = f"{length:,} of {context:,} tokens, answered after {seconds:.1f} s"
        return Check(what=what, works=True, message=message)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator["_Asking"]:
        served = self.served
        endpoint = Endpoint(served.url, certificate=served.certificate)
        async with open_client(endpoint) as client:
            client.headers.update(self.client.make_headers(served.key.secret))
            yield _Asking(client, self.client.api, served.name, _find_listener(served))


@dataclass(frozen=True, slots=True)
class _Asking:
    """An open HTTP client, with the model's name and the listener that it must reach."""

    client: httpx.AsyncClient
    api: Api
    model: str
    listener: OwnListener | None

    async def stream(self, text: str, tokens: int, choose: Choose | None = None) -> Streamed:
        """Send one request and return the answer, with what is wrong about it."""
        body = {**self.api.ask(text, tokens, choose), "model": self.model, "stream": True}
        streamed = Streamed()
        try:
            async with self.client.stream("POST", self.api.path, **self._make(body)) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    streamed.error = _describe(self.api.path, answer)
                    return streamed
                async for line in answer.aiter_lines():
                    for event in read_events([line]):
                        self.api.read(streamed, event)
        except httpx.ConnectError as fault:
            raise no_answer(self.client.base_url, fault) from fault
        except httpx.HTTPError as fault:
            streamed.error = f"the stream broke: {type(fault).__name__} {fault}".strip()
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            streamed.error = f"an event has another form: {type(fault).__name__} {fault}"
        if streamed.error is None and not streamed.complete:
            streamed.error = "the stream ended without its last event"
        return streamed

    async def count(self, text: str, streamed: Streamed) -> Check:
        """Return the server's token count of a prompt that it has answered before."""
        what, path = "counted tokens", f"{Messages.path}/count_tokens"
        body = {"model": self.model, "messages": Messages().ask(text, 1)["messages"]}
        try:
            answer = await self.client.post(path, **self._make(body))
            if answer.status_code != httpx.codes.OK:
                return Check(what=what, works=False, message=_describe(path, answer))
            counted = answer.json()["input_tokens"]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
            message = f"{path}: {type(fault).__name__} {fault}"
            return Check(what=what, works=False, message=message)
        message = f"{counted} tokens, as the answer said {streamed.prompt_tokens}"
        return Check(what=what, works=counted == streamed.prompt_tokens, message=message)

    def _make(self, body: Any) -> dict[str, Any]:
        trace = {} if self.listener is None else {"trace": self.listener.watch()}
        return {"json": body, "extensions": trace}


def _judge_answer(what: str, streamed: Streamed) -> Check:
    if streamed.error is not None:
        return Check(
            what=what, works=False, message=streamed.error, hint="slipstream logs --access"
        )
    tokens = streamed.prompt_tokens
    message = f"{tokens} prompt tokens, {len(streamed.text)} characters"
    return Check(what=what, works=tokens is not None, message=message)


def _describe(path: str, answer: httpx.Response) -> str:
    return f"{path} answered {answer.status_code}: {' '.join(answer.text.split())[:200]}"


def _find_listener(served: ServedModel) -> OwnListener | None:
    """Return who must be at the other end before a key is sent there."""
    run = served.run
    if run is None or run.engine is None:
        return None
    engine = run.engine
    return OwnListener(Address.of(run.plan), lambda: [one.pid for one in list_session(engine)])
