"""Odd JSON and odd bodies: each is no sound request."""

from tests.engine.gate.hostile import CHAT, RESPONSES, TEXT, post, wire

INNER = b"GET /metrics HTTP/1.1\r\nHost: engine\r\n\r\n"

ODD_TEXTS = (
    post("a request as a body", CHAT, INNER),
    post("three requests as a body", CHAT, INNER * 3),
    post("a document and a request", CHAT, b"{}" + INNER),
    wire("a request behind a body", ("Content-Length: 2", "Connection: close"), b"[]" + INNER),
    wire(
        "a request in a chunk",
        ("Transfer-Encoding: chunked",),
        b"%x\r\n%s\r\n0\r\n\r\n" % (len(INNER), INNER),
    ),
    post("a mark before a document", CHAT, b"\xef\xbb\xbf{}"),
    post("a comment", CHAT, b'{"n": 1 /* one */}'),
    post("a comma too many", CHAT, b'{"n": 1,}'),
    post("single quotes", CHAT, b"{'n': 1}"),
    post("a name without quotes", CHAT, b"{n: 1}"),
    post("a number with a zero before it", CHAT, b'{"n": 01}'),
    post("a number in sixteens", CHAT, b'{"n": 0x10}'),
    post("a line break in a text", CHAT, b'{"model": "a\nb"}'),
    post("half an escape", CHAT, b'{"model": "\\u12"}'),
    post("a text without an end", TEXT, b'{"prompt": "' + b"\\" * 10_001),
    post("a zero byte for a document", TEXT, b"\x00"),
    post("a thousand names alike", TEXT, b"{" + b'"n": 1, ' * 1000 + b'"n": 1000}'),
    post("JSON lines", RESPONSES, b'{"input": "a"}\n{"input": "b"}\n'),
    post("a number for a document", RESPONSES, b"1e999"),
    post("true for a document", RESPONSES, b"true"),
)
