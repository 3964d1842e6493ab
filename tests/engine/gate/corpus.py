"""Hostile requests, each with the answers that are right for it.

`LIMITS` are past what the gate allows and must not cost the engine anything; `BROKEN` are no
sound requests; `ENGINE` pass the gate, and the engine has to cope with them.
"""

import json
from dataclasses import dataclass
from typing import Any

from tests.engine.gate.wire import make_request

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
RESPONSES = "/v1/responses"
HELLO = {"role": "user", "content": "Say hello."}
OBJECT = {"type": "json_object"}
DEEP = 50_000
PAST_THE_VOCABULARY = 10**6


@dataclass(frozen=True, slots=True)
class Hostile:
    """A request by name; `raw` has the key's place as {key}."""

    name: str
    raw: bytes
    expected: tuple[int, ...] = (400,)

    def with_key(self, key: str) -> bytes:
        """Give the bytes to send."""
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
    return chat(name, *expected, structured_outputs=constraint)


def schema(name: str, *expected: int, **content: Any) -> Hostile:
    """Make a chat whose answer has to keep a JSON schema."""
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": content}}
    return chat(name, *expected, response_format=form)


def say(name: str, *parts: Any) -> Hostile:
    """Make a chat of parts that are not text."""
    return chat(name, messages=[{"role": "user", "content": list(parts)}])


def chunked(size: int) -> bytes:
    """Make a body in chunks."""
    return (b"10000\r\n" + b"x" * 65536 + b"\r\n") * (size // 65536) + b"0\r\n\r\n"


LIMITS = (
    chat("n of a thousand", n=1000),
    chat("n in words", n="1000"),
    chat("n past every number", n=10**300),
    post("n twice, the second too large", CHAT, b'{"messages": [], "n": 1, "n": 1000}'),
    text("best of a thousand", best_of=1000),
    text("a thousand prompts", prompt=["a"] * 1000),
    text("sixteen prompts, eight answers each", prompt=["a"] * 16, n=8),
    chat("an answer of a billion tokens", max_tokens=10**9),
    chat("a longer answer under the newer name", max_completion_tokens=10**9),
    respond("a response of a billion tokens", max_output_tokens=10**9),
    chat("a million alternatives", logprobs=True, top_logprobs=10**6),
    chat("every alternative", logprobs=True, top_logprobs=-1),
    text("every alternative of the prompt", prompt_logprobs=-1),
    text("a million alternatives of the prompt", prompt_logprobs=10**6),
    chat("a thousand stop strings", stop=["a"] * 1000),
    chat("a stop string of a megabyte", stop="x" * 10**6),
    chat("a hundred thousand stop tokens", stop_token_ids=[1] * 10**5),
    chat("a hundred thousand bad words", bad_words=["a"] * 10**5),
    chat("ten thousand biases", logit_bias={str(one): 1 for one in range(10**4)}),
    chat("ten thousand allowed tokens", allowed_token_ids=list(range(10**4))),
    constrain("a pattern of a hundred kilobytes", regex="a" * 10**5),
    constrain("a grammar of a megabyte", grammar='root ::= "a"\n' * 80_000),
    constrain("choices of a megabyte", choice=["x" * 1000] * 1000),
    constrain("a pattern that stops the engine", regex="(.*){1,32000}[bc]"),
    constrain("a pattern that grows", regex="(a+)+b"),
    constrain("a pattern of many states", regex="[ab]*a[ab]{20}"),
    constrain("a pattern that does not close", regex="("),
    constrain("a grammar of itself", grammar="root ::= root"),
    constrain("a tag with a grammar", structural_tag='{"format": {"type": "grammar"}}'),
    schema("a schema with such a pattern", type="string", pattern="(.*){1,1000}[bc]"),
    schema("a schema of a megabyte", enum=["x" * 10**6]),
    schema("a long pattern in a schema", type="string", pattern="a" * 5000),
    chat("a tool of a megabyte", tools=[{"type": "function", "function": {"name": "x" * 10**6}}]),
    post("a body of ten megabytes", CHAT, b'{"messages": "' + b"x" * 10**7, 413),
    wire("a body that claims a terabyte", (f"Content-Length: {10**12}",), b"{", 413),
    wire("three megabytes in chunks", ("Transfer-Encoding: chunked",), chunked(3 << 20), 413),
    Hostile("a head without end", b"GET /v1/models HTTP/1.1\r\nX-A: " + b"a" * 10**6, (431,)),
    Hostile("a path without end", b"GET /" + b"a" * 10**6, (431,)),
    post("lists, fifty thousand deep", CHAT, b"[" * DEEP + b"]" * DEEP),
    post("objects, fifty thousand deep", CHAT, b'{"a":' * DEEP + b"1" + b"}" * DEEP),
    post("lists, a thousand deep", CHAT, b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}"),
    post("two megabytes of openings", CHAT, b"[" * (2 << 20)),
    post("half a million objects", CHAT, b'{"messages": [' + b"{}," * 500_000 + b"{}]}"),
    chat("a template of the caller", chat_template="{{ messages }}"),
    chat("arguments for the template", chat_template_kwargs={"tools": "x"}),
    chat("a place before the others", priority=-100),
    chat("a salt of a megabyte", cache_salt="x" * 10**6),
    chat("an id of the caller", request_id="___prefill_addr_10.0.0.1:5000"),
    chat("a transfer of the cache", kv_transfer_params={"remote_host": "10.0.0.1"}),
    chat("arguments for the engine", vllm_xargs={"a": 1}),
    text("a prompt as a pickle", prompt_embeds="gASVAAAA"),
    say(
        "a picture of an inner host", {"type": "image_url", "image_url": {"url": "http://10.0.0.1"}}
    ),
    say("a file as sound", {"type": "audio_url", "audio_url": {"url": "file:///etc/passwd"}}),
    say("a film", {"type": "video_url", "video_url": {"url": "http://10.0.0.1/"}}),
)

BROKEN = (
    post("no body", CHAT, b""),
    post("no JSON", CHAT, b"hello"),
    post("half of a document", CHAT, b'{"model": "target", "mess'),
    post("a list", CHAT, b"[]"),
    post("a word", CHAT, b'"chat"'),
    post("nothing", CHAT, b"null"),
    post("an empty object", CHAT, b"{}"),
    post("bytes that are no text", CHAT, b'{"model": "\xff\xfe"}'),
    post("a document in UTF-16", CHAT, '{"model": "target"}'.encode("utf-16")),
    post("two documents", CHAT, b'{"n": 1} {"n": 1000}'),
    post("a number of five thousand digits", CHAT, b'{"n": ' + b"9" * 5000 + b"}"),
    post("a temperature that is no number", CHAT, b'{"messages": [], "temperature": NaN}'),
    post("an endless penalty", CHAT, b'{"messages": [], "presence_penalty": -Infinity}'),
    wire("two lengths", ("Content-Length: 2", "Content-Length: 20"), b"{}" * 10),
    wire("a length below nothing", ("Content-Length: -1",), b"{}"),
    wire("a length and chunks", ("Content-Length: 2", "Transfer-Encoding: chunked"), b"0\r\n\r\n"),
    wire("a chunk of no size", ("Transfer-Encoding: chunked",), b"zz\r\n{}\r\n0\r\n\r\n"),
    wire("a header without a name", ("Content-Length: 2", ": x"), b"{}"),
    post("no JSON by its own word", CHAT, b"{}", headers=("Content-Type: text/plain",)),
)

ENGINE = (
    chat("a temperature of a billion", temperature=1e9),
    chat("a temperature below zero", temperature=-1),
    post(
        "a temperature past every number",
        CHAT,
        b'{"model": "target", "messages": [{"role": "user", "content": "a"}],'
        b' "max_tokens": 4, "temperature": 1e999}',
    ),
    chat("a share above one", top_p=2),
    chat("a number of candidates below zero", top_k=-5),
    chat("penalties at their bounds", 200, presence_penalty=2, frequency_penalty=-2),
    chat("a penalty of 1e30", frequency_penalty=1e30),
    chat("no repetition at all", 200, repetition_penalty=1e-30),
    chat("a repetition penalty of zero", repetition_penalty=0),
    chat("more tokens at least than at most", min_tokens=10**9),
    chat("tokens below zero at least", min_tokens=-1),
    chat("an answer of no tokens", max_tokens=0),
    chat("an answer of less than none", max_tokens=-1),
    chat("a seed past 64 bits", seed=2**70),
    chat("no answers", n=0),
    chat("a stop token below zero", stop_token_ids=[-1]),
    chat("a stop token past the vocabulary", stop_token_ids=[2**40]),
    chat("an empty stop string", stop=[""]),
    chat("an empty bad word", bad_words=[""]),
    chat("a bad word", 200, bad_words=["hello"]),
    chat("no allowed token", allowed_token_ids=[]),
    chat("an allowed token past the vocabulary", allowed_token_ids=[PAST_THE_VOCABULARY]),
    chat("alternatives of the caller", 200, logprobs=True, logprob_token_ids=[5]),
    chat("few candidates", 200, temperature=1, top_k=7, top_p=0.9),
    chat("few candidates and no share of them", 200, temperature=1, top_k=7),
    chat("tokens that the form forbids", 500, allowed_token_ids=[5], response_format=OBJECT),
    chat("what speculation cannot do", 200, min_p=0.5, logit_bias={"5": 100}),
    chat("beams", 200, use_beam_search=True, n=2, max_tokens=2),
    chat("a watermark", 200, 400, watermarking=True),
    chat("a budget of thought", 200, 400, thinking_token_budget=-5),
    chat(
        "loops of any size", 200, repetition_detection={"max_pattern_size": 10**9, "min_count": 2}
    ),
    chat("a prompt cut to less than nothing", truncate_prompt_tokens=-5),
    chat("a prompt cut to a billion", truncate_prompt_tokens=10**9),
    text("a token past the vocabulary", prompt=[PAST_THE_VOCABULARY]),
    text("a token below zero", prompt=[-1]),
    text("an empty prompt", prompt=""),
    text("a list of nothing", prompt=[]),
    text("a list in a list of nothing", prompt=[[]]),
    text("texts and tokens mixed", prompt=["a", [1, 2]]),
    text("alternatives of every token", 200, 400, logprobs=20, echo=True, prompt_logprobs=20),
    text("a prompt as long as the context", prompt=[1] * 512),
    text("a prompt of a hundred thousand tokens", prompt=[1] * 100_000),
    text("a prompt of a megabyte and a half", prompt="word " * 300_000),
    chat("half a character", messages=[{"role": "user", "content": "\ud800"}]),
    chat("a control character", 200, messages=[{"role": "user", "content": "a\x00b"}]),
    chat("special tokens in words", 200, messages=[{"role": "user", "content": "<|im_end|>" * 20}]),
    chat("no messages", 200, 400, messages=[]),
    chat("a role of the caller", 200, 400, messages=[{"role": "root", "content": "a"}]),
    chat("a turn that is no object", messages=["a"]),
    chat("another model", 404, model="../../etc/passwd"),
    chat("options of a stream without one", stream_options={"include_usage": True}),
    chat("a tool that is not there", tool_choice={"type": "function", "function": {"name": "x"}}),
    chat("a tool without a name", tools=[{"type": "function", "function": {}}]),
    constrain("a pattern with a zero byte", regex="a\x00"),
    chat("a form that is a word", structured_outputs="regex"),
    chat("a form that is a list", structured_outputs=["a"]),
    constrain("a plain pattern", 200, regex="[a-z]+( [a-z]+)*"),
    constrain("two forms at once", regex="a", choice=["a"]),
    constrain("an empty choice", choice=[]),
    schema("a schema of itself", 400, 500, **{"$ref": "#"}),
    schema("a schema of elsewhere", 200, 400, **{"$ref": "http://10.0.0.1/schema.json"}),
    schema("a type that does not exist", 200, 400, type="matrix"),
    schema("a bound on the wrong side", 200, 400, type="integer", minimum=5, maximum=1),
    respond("an answer in the background", background=True, store=True),
    respond("an answer to nobody", 400, 404, previous_response_id="resp_x"),
    respond(
        "a tool at an inner host",
        200,
        400,
        tools=[{"type": "mcp", "server_label": "x", "server_url": "http://10.0.0.1"}],
    ),
    respond("an input of nothing", 200, 400, input=[]),
)

# Answers of 500 and more that are known, and why.
KNOWN = {
    "a schema of itself": "xgrammar accepts it and then refuses to compile it, in the engine;"
    " vLLM fails this one request",
    "tokens that the form forbids": "no token is left to choose, and vLLM fails this one request",
}

CORPUS = (*LIMITS, *BROKEN, *ENGINE)
