"""Request ids: our own for every request, and the client's if it is harmless.

Only ours reaches the engine: two clients may send the same id, and some of vLLM's connectors read
addresses out of it. A client gets its own id back, and ours in the `id` of a chat or completion.
"""

import os
import re
from collections.abc import Iterable

HEADER = b"x-request-id"
_HARMLESS = re.compile(rb"[A-Za-z0-9._:=-]{1,64}")
_TRACE = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")


def make_id() -> str:
    """Return an id that no other request has."""
    return os.urandom(8).hex()


def read_client_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the id that the client sent, unless it is long, odd or not the only one."""
    return _read_only(headers, HEADER, _HARMLESS)


def read_trace_id(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the trace that the request belongs to, by the W3C header that vLLM reads, too."""
    return _read_only(headers, b"traceparent", _TRACE)


def _read_only(
    headers: Iterable[tuple[bytes, bytes]], name: bytes, form: re.Pattern[bytes]
) -> str | None:
    given = [value for one, value in headers if one == name]
    found = form.fullmatch(given[0]) if len(given) == 1 else None
    return None if found is None else found[found.lastindex or 0].decode()
