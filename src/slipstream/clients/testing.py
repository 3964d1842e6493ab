"""Tests of a server with a client's requests: streamed, with tool calls, at full length."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from slipstream.clients.apis import COUNT_PATH, Choose, Messages, Streamed
from slipstream.clients.connection import PARSER_HINT, Client, ConnectionCheck, ServedModel
from slipstream.measuring.client.endpoint import Endpoint, no_answer, open_client

ANSWER_TOKENS = 16
# Left free beside a prompt that is as long as the context allows, for the chat template.
SPARE_TOKENS = 64
# A small model may fill a call with blanks, which the grammar lets it.
CALL_TOKENS = 512

_SHORT, _CALIBRATION_WORDS = "Say hello.", 256
_CALL = "Use the tool to set the unit to celsius."
# What vLLM refuses a tool call with where it has no parser.
_NO_PARSER = "--tool-call-parser"


@dataclass(frozen=True, slots=True)
class Tester:
    client: Client
    served: ServedModel
    report: Callable[[str], None]

    async def test(self) -> list[ConnectionCheck]:
        """Request a streamed answer, a tool call, and an answer to the longest prompt possible."""
        served = self.served
        endpoint = Endpoint(served.url, certificate=served.certificate)
        async with open_client(endpoint) as http:
            http.headers.update(self.client.make_headers(served.key.secret))
            short = await self._stream(http, _SHORT, ANSWER_TOKENS)
            checks = [_check_answer("streamed answer", short)]
            if short.error is None:
                if f"POST {COUNT_PATH}" in self.client.routes:
                    checks.append(await self._test_count(http, short))
                checks += [await self._test_call(http), await self._test_choice(http)]
                checks.append(await self._test_long(http, short))
        return checks

    async def _test_call(self, http: httpx.AsyncClient) -> ConnectionCheck:
        room = (self.served.context or 2 * CALL_TOKENS) // 2
        streamed = await self._stream(http, _CALL, min(CALL_TOKENS, room), "forced")
        fault = streamed.error or streamed.find_call_fault()
        hint = PARSER_HINT if fault and (streamed.error is None or _NO_PARSER in fault) else None
        message = fault or "complete, in several chunks"
        return ConnectionCheck(
            what="tool call, forced", works=fault is None, message=message, hint=hint
        )

    async def _test_choice(self, http: httpx.AsyncClient) -> ConnectionCheck:
        """Distinguish a model that did not call from a call that was not parsed."""
        streamed = await self._stream(http, _CALL, 2 * SPARE_TOKENS, "auto")
        fault = streamed.error or streamed.find_call_fault()
        as_text = "<tool_call" in streamed.text or '"arguments"' in streamed.text
        works: bool | None = fault is None
        message, hint = fault or "the model called it", None
        if fault and streamed.error is None and as_text:
            message, hint = f"the call came as text: {streamed.text[:80]!r}", PARSER_HINT
        elif fault and streamed.error is None:
            works, message = None, f"accepted, but {fault}"
        elif fault and _NO_PARSER in fault:
            hint = PARSER_HINT
        what = "tool call, the model's choice"
        return ConnectionCheck(what=what, works=works, message=message, hint=hint)

    async def _test_long(self, http: httpx.AsyncClient, short: Streamed) -> ConnectionCheck:
        """Measure how many tokens a word takes, and send as many words as fit."""
        what, context = "long prompt", self.served.context
        medium = await self._stream(http, "word " * _CALIBRATION_WORDS, 1)
        if medium.error is not None:
            return ConnectionCheck(what=what, works=False, message=medium.error)
        if context is None or short.prompt_tokens is None or medium.prompt_tokens is None:
            message = "the server does not report the length of prompts and context"
            return ConnectionCheck(what=what, works=None, message=message)
        each = max(1.0, (medium.prompt_tokens - short.prompt_tokens) / _CALIBRATION_WORDS)
        room = context - medium.prompt_tokens - ANSWER_TOKENS - SPARE_TOKENS
        words = _CALIBRATION_WORDS + max(0, int(room / each))
        self.report(f"a prompt of about {int(words * each):,} tokens; this can take minutes")
        began = time.monotonic()
        streamed = await self._stream(http, "word " * words, ANSWER_TOKENS)
        check = _check_answer(what, streamed)
        if not check.works:
            return check
        seconds, length = time.monotonic() - began, streamed.prompt_tokens or 0
        message = f"{length:,} of {context:,} tokens, answered after {seconds:.1f} s"
        return ConnectionCheck(what=what, works=True, message=message)

    async def _test_count(self, http: httpx.AsyncClient, short: Streamed) -> ConnectionCheck:
        counted = None
        body = {"model": self.served.name, "messages": Messages().ask(_SHORT, 1)["messages"]}
        try:
            answer = await http.post(COUNT_PATH, **self._make(body))
            message = _describe(COUNT_PATH, answer)
            if answer.status_code == httpx.codes.OK:
                counted = answer.json()["input_tokens"]
                message = f"{counted} tokens; the answer reported {short.prompt_tokens}"
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as fault:
            message = f"{COUNT_PATH}: {type(fault).__name__} {fault}"
        works = counted is not None and counted == short.prompt_tokens
        return ConnectionCheck(what="counted tokens", works=works, message=message)

    async def _stream(
        self, http: httpx.AsyncClient, text: str, tokens: int, choose: Choose | None = None
    ) -> Streamed:
        """Send one request and return the answer, with what is wrong about it."""
        api, streamed = self.client.api, Streamed()
        body = {**api.ask(text, tokens, choose), "model": self.served.name, "stream": True}
        try:
            async with http.stream("POST", api.path, **self._make(body)) as answer:
                if answer.status_code != httpx.codes.OK:
                    await answer.aread()
                    streamed.error = _describe(api.path, answer)
                    return streamed
                async for line in answer.aiter_lines():
                    if line.startswith("data:") and (event := line[5:].strip()) != "[DONE]":
                        api.read(streamed, json.loads(event))
        except httpx.ConnectError as fault:
            raise no_answer(http.base_url, fault) from fault
        except httpx.HTTPError as fault:
            streamed.error = f"the stream broke: {type(fault).__name__} {fault}".strip()
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            streamed.error = f"an event has an unexpected form: {type(fault).__name__} {fault}"
        if streamed.error is None and not streamed.complete:
            streamed.error = "the stream ended without its last event"
        return streamed

    def _make(self, body: Any) -> dict[str, Any]:
        watch = self.served.watch()
        return {"json": body, "extensions": {"trace": watch} if watch else {}}


def _check_answer(what: str, streamed: Streamed) -> ConnectionCheck:
    error, tokens = streamed.error, streamed.prompt_tokens
    message = error or f"{tokens} prompt tokens, {len(streamed.text)} characters"
    works = error is None and tokens is not None
    hint = "slipstream logs --access" if error else None
    return ConnectionCheck(what=what, works=works, message=message, hint=hint)


def _describe(path: str, answer: httpx.Response) -> str:
    return f"{path} answered {answer.status_code}: {' '.join(answer.text.split())[:200]}"
