"""How a hostile request is made."""

import json
from dataclasses import dataclass
from typing import Any

from tests.engine.gate.wire import make_request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
HELLO = {"role": "user", "content": "Say hello."}
OBJECT = {"type": "json_object"}
DEEP = 50_000
PAST_THE_VOCABULARY = 10**6
# A key that has had too many constraints measured within a minute waits.
REFUSED = (400, 429)


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request by name; `raw` has the key's place as {key}."""

    name: str
    raw: bytes
    expected: tuple[int, ...] = (400,)

    def with_key(self, key: str) -> bytes:
        """Return the bytes to send."""
        return self.raw.replace(b"{key}", key.encode(), 1)


def chat(name: str, *expected: int, **fields: Any) -> Hostile:
    """Make a chat of a few tokens with these fields."""
    whole = {"model": "target", "messages": [HELLO], "max_tokens": 4, **fields}
    return post(name, CHAT, whole, *expected)


def text(name: str, *expected: int, **fields: Any) -> Hostile:
    """Make a completion of a few tokens with these fields."""
    whole = {"model": "target", "prompt": "One, two,", "max_tokens": 4, **fields}
    return post(name, TEXT, whole, *expected)


def respond(name: str, *expected: int, **fields: Any) -> Hostile:
    """Make a response of a few tokens with these fields."""
    whole = {"model": "target", "input": "Say hello.", "max_output_tokens": 4, **fields}
    return post(name, RESPONSES, whole, *expected)


def message(name: str, *expected: int, **fields: Any) -> Hostile:
    """Make a message of a few tokens, in Anthropic's form, with these fields."""
    whole = {"model": "target", "messages": [HELLO], "max_tokens": 4, **fields}
    return post(name, MESSAGES, whole, *expected)


def post(name: str, path: str, body: Any, *expected: int, headers: tuple[str, ...] = ()) -> Hostile:
    """Make a request of a document, or of the bytes of a body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw = make_request(path, method="POST", key="{key}", body=content, headers=headers)
    return Hostile(name, raw, expected or (400,))


def wire(name: str, head: tuple[str, ...], body: bytes, *expected: int) -> Hostile:
    """Make a request whose head says something else than its body."""
    lines = (f"POST {CHAT} HTTP/1.1", "Host: engine", "Authorization: Bearer {key}", *head, "", "")
    return Hostile(name, "\r\n".join(lines).encode() + body, expected or (400,))


def constrain(name: str, *expected: int, **constraint: Any) -> Hostile:
    """Make a chat whose answer has to have a form."""
    return chat(name, *(expected or REFUSED), structured_outputs=constraint)


def schema(name: str, *expected: int, **content: Any) -> Hostile:
    """Make a chat whose answer has to keep a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": content}}
    return chat(name, *(expected or REFUSED), response_format=form)


def say(name: str, *parts: Any) -> Hostile:
    """Make a chat of parts that are not text."""
    return chat(name, messages=[{"role": "user", "content": list(parts)}])


def chunked(size: int) -> bytes:
    """Make a body in chunks."""
    return (b"10000\r\n" + b"x" * 65536 + b"\r\n") * (size // 65536) + b"0\r\n\r\n"
