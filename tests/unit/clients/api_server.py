"""A server that speaks the three APIs, as a program: it takes what is wrong with it as JSON,
prints its port, and then one line a request.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL, CONTEXT, TOOL = "the-model", 65_536, "set_unit"
ARGUMENTS = ('{"unit": ', '"celsius"}')


class Handler(BaseHTTPRequestHandler):
    wrong: dict[str, Any]

    def do_GET(self) -> None:
        self._note(None)
        listed = [{"id": self.wrong.get("name", MODEL), "max_model_len": CONTEXT}]
        self._answer(200, json.dumps({"data": listed}))

    def do_POST(self) -> None:
        self.path = self.path.partition("?")[0]
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._note(body)
        if self.wrong.get("refuse") == self.path:
            self._answer(404, self.wrong.get("words", "not found"))
            return
        if self.wrong.get("calls") == "no parser" and body.get("tools"):
            self._answer(400, '"auto" tool choice requires --tool-call-parser to be set')
            return
        asked = str(body.get("input") or body["messages"][0]["content"])
        tokens = len(asked.split()) + 5
        if events := self.wrong.get("events"):
            self._answer(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events))
            return
        if self.path.endswith("/count_tokens"):
            self._answer(200, json.dumps({"input_tokens": self.wrong.get("counted", tokens)}))
            return
        calls = self._find_calls(body)
        text = self.wrong.get("text", "Hello.") if not calls else ""
        if self.path == "/v1/messages":
            events = messages(text, calls, tokens)
        else:
            events = (responses if self.path == "/v1/responses" else chat)(text, calls, tokens)
        if self.wrong.get("cut"):
            events = events[:-2]
        self._answer(200, "".join(f"data: {json.dumps(event)}\n\n" for event in events))

    def _find_calls(self, body: dict[str, Any]) -> list[tuple[str, ...]]:
        forced = body.get("tool_choice") is not None
        if not body.get("tools") or self.wrong.get("calls") == "as text":
            return []
        if not forced and self.wrong.get("calls") == "forced only":
            return []
        return [tuple(self.wrong.get("arguments", ARGUMENTS))]

    def _note(self, body: Any) -> None:
        line = {"route": f"{self.command} {self.path}", "headers": dict(self.headers), "body": body}
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    def _answer(self, status: int, content: str) -> None:
        self.send_response(status)
        self.send_header("x-request-id", "stand-in")
        self.send_header("content-length", str(len(content.encode())))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_: Any) -> None:
        """Keep stderr clean."""


def chat(text: str, calls: list[tuple[str, ...]], tokens: int) -> list[Any]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": text}]
    for number, pieces in enumerate(calls):
        named: dict[str, Any] = {"name": TOOL}
        for piece in pieces:
            function = {**named, "arguments": piece}
            deltas.append({"tool_calls": [{"index": number, "function": function}]})
            named = {}
    events = [{"choices": [{"delta": delta, "finish_reason": None}]} for delta in deltas]
    usage = {"prompt_tokens": tokens, "completion_tokens": 2}
    end = {"choices": [{"delta": {}, "finish_reason": "stop"}]}
    return [*events, end, {"choices": [], "usage": usage}]


def responses(text: str, calls: list[tuple[str, ...]], tokens: int) -> list[Any]:
    items = [
        {"type": "function_call", "name": TOOL, "call_id": str(n), "arguments": "".join(pieces)}
        for n, pieces in enumerate(calls)
    ]
    return [
        {"type": "response.created"},
        {"type": "response.output_text.delta", "delta": text},
        *({"type": "response.output_item.done", "item": item} for item in items),
        {"type": "response.completed", "response": {"usage": {"input_tokens": tokens}}},
    ]


def messages(text: str, calls: list[tuple[str, ...]], tokens: int) -> list[Any]:
    delta = {"type": "text_delta", "text": text}
    cached = tokens // 2
    usage = {"input_tokens": tokens - cached, "cache_read_input_tokens": cached}
    events: list[Any] = [
        {"type": "message_start", "message": {"usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}},
        {"type": "content_block_delta", "index": 0, "delta": delta},
    ]
    for number, pieces in enumerate(calls, start=1):
        block = {"type": "tool_use", "name": TOOL}
        events.append({"type": "content_block_start", "index": number, "content_block": block})
        for piece in pieces:
            part = {"type": "input_json_delta", "partial_json": piece}
            events.append({"type": "content_block_delta", "index": number, "delta": part})
    return [
        *events,
        {"type": "message_delta", "usage": {"output_tokens": 2}},
        {"type": "message_stop"},
    ]


if __name__ == "__main__":
    Handler.wrong = json.loads(sys.argv[1])
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()
