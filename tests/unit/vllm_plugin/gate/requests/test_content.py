"""Images pass within limits, inline or from listed hosts; a request has a kind of text."""

import itertools
import json
import re
import struct
import time
from base64 import b64encode
from collections import deque
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.serving.access.gate_file import GateMedia
from slipstream.vllm_plugin import gate as gate_package
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.requests.content import MOST_CHARACTERS, find_kind, read_size
from tests.unit.vllm_plugin.gate.callers.test_key_ring import keyed_gate
from tests.unit.vllm_plugin.gate.pieces import CHAT, Engine, ask, make_gate

MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
HOSTS = ("images.example.org",)
LISTED = "https://images.example.org/a.png"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {}}}


def png(*sizes: tuple[int, int]) -> bytes:
    heads = [struct.pack(">I4sII5x4x", 13, b"IHDR", *size) for size in sizes]
    return b"\x89PNG\r\n\x1a\n" + b"".join(heads) + struct.pack(">I4s", 0, b"IDAT")


def jpeg(*sizes: tuple[int, int], before: bytes = b"") -> bytes:
    frames = [struct.pack(">BBHBHH", 0xFF, 0xC2, 11, 8, h, w) + b"\x01\x01\x11\0" for w, h in sizes]
    return b"\xff\xd8" + before + b"".join(frames) + b"\xff\xda\0\x08"


def gif(screen: tuple[int, int], corner: tuple[int, int], frame: tuple[int, int]) -> bytes:
    comment = b"\x21\xfe\x02hi\0"
    table = b"\0" * 6
    shown = b"\x2c" + struct.pack("<HHHH", *corner, *frame)
    return b"GIF89a" + struct.pack("<HH", *screen) + b"\x80\0\0" + table + comment + shown


def webp(chunk: bytes) -> bytes:
    return b"RIFF\0\0\0\0WEBP" + chunk


EXIF = b"\xff\xe1" + struct.pack(">H", 6) + b"\xff\xc0ab"
THUMBNAIL = b"\xff\xff\xe2" + struct.pack(">H", 20) + jpeg((9, 9))[:18]


@pytest.mark.parametrize(
    ("head", "size"),
    [
        (png((640, 480)), (640, 480)),
        (png((1, 1), (9000, 70)), (9000, 70)),
        (jpeg((640, 480)), (640, 480)),
        (jpeg((640, 480), before=EXIF + THUMBNAIL), (640, 480)),
        (jpeg((1, 1), (9000, 70), before=b"junk\xff\x01"), (9000, 70)),
        (gif((640, 480), (0, 0), (640, 480)), (640, 480)),
        (gif((1, 1), (10, 20), (30, 40)), (40, 60)),
        (webp(b"VP8X" + b"\0" * 8 + b"\x7f\x02\0\xdf\x01\0"), (640, 480)),
        (webp(b"VP8L" + b"\0" * 4 + b"\x2f" + (639 | 479 << 14).to_bytes(4, "little")), (640, 480)),
        (webp(b"VP8 " + b"\0" * 7 + b"\x9d\x01\x2a\x80\x02\xe0\x01"), (640, 480)),
    ],
)
def test_the_declared_size_is_found(head: bytes, size: tuple[int, int]) -> None:
    assert read_size(head) == size
    assert read_size(head + b"\0" * 999) == size


@pytest.mark.parametrize(
    "head",
    [
        *(b"", b"BM" + b"\0" * 60, b"II*\0" + b"\0" * 60, b"%!PS-Adobe-3.0 EPSF-3.0"),
        *(b"<svg width='9' height='9'/>", b"\x89PNG\r\n\x1a\n", png((640, 480))[:20], jpeg()),
        *(jpeg((640, 480))[:6], b"GIF89a\0", webp(b"ANIM"), webp(b"VP8 " + b"\0" * 20)),
    ],
)
def test_what_is_no_image_has_no_size(head: bytes) -> None:
    assert read_size(head) is None


@given(
    st.sampled_from([b"\x89PNG\r\n\x1a\n", b"\xff\xd8", b"GIF89a", b"RIFFxxxxWEBP"]), st.binary()
)
def test_no_bytes_are_too_odd(start: bytes, rest: bytes) -> None:
    size = read_size(start + rest)
    assert size is None or all(0 <= length < 2**32 for length in size)


def encode(image: bytes) -> str:
    return b64encode(image).decode()


def inline(image: bytes) -> str:
    return f"data:image/png;base64,{encode(image)}"


def chat(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}


def show(address: Any) -> dict[str, Any]:
    return chat({"type": "image_url", "image_url": {"url": address}})


def message(*parts: Any) -> dict[str, Any]:
    return {**chat(*parts), "max_tokens": 9}


def source(image: bytes) -> dict[str, Any]:
    data = {"type": "base64", "media_type": "image/png", "data": encode(image)}
    return {"type": "image", "source": data}


def respond(*parts: Any) -> dict[str, Any]:
    return {"model": "m", "input": [{"role": "user", "content": list(parts)}]}


def seeing(folder: Path, engine: Engine, *, limits: Any = None, **media: Any) -> Gate:
    own = GateMedia(**{"hosts": HOSTS, **media})
    return make_gate(folder, engine, text_only=False, media=own, limits=limits)


SMALL = png((64, 48))
PASSING = [
    (CHAT, show(inline(SMALL))),
    (CHAT, chat({"type": "text", "text": "?"}, {"image_url": inline(SMALL)})),
    (CHAT, show(f"DATA:;base64,{encode(jpeg((64, 48)))}")),
    (CHAT, show(LISTED)),
    (CHAT, show("http://IMAGES.example.org:8080/a?b=c")),
    (MESSAGES, message(source(SMALL))),
    (MESSAGES, message({"type": "tool_result", "content": [source(SMALL)]})),
    (MESSAGES, message({"type": "image", "source": {"type": "url", "url": LISTED}})),
    (RESPONSES, respond({"type": "input_image", "image_url": inline(SMALL), "file_id": None})),
    (RESPONSES, {"input": [{"type": "function_call_output", "output": respond()["input"]}]}),
]


def read_message(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize(("path", "document"), PASSING)
def test_an_image_within_limits_passes_as_it_came(
    tmp_path: Path, engine: Engine, path: str, document: dict[str, Any]
) -> None:
    answer = ask(seeing(tmp_path, engine), path, json=document)
    assert (answer.status_code, "x-slipstream-warning" in answer.headers) == (200, False)
    assert {**engine.document, "request_id": 0} == {**document, "request_id": 0}


@pytest.mark.parametrize(
    "address",
    [
        *("http://10.0.0.1/", "http://127.0.0.1:8000/v1/models", "http://[::1]/"),
        *("http://metadata.google.internal/", "https://example.org/"),
        *("https://images.example.org.evil.net/", "https://images.example.org@evil.net/"),
        *("https://evil.net#@images.example.org/", "https://evil.net\\@images.example.org/"),
        *("https://images.example.org\\@evil.net/", "https://images.example.org/a b"),
        *("https://images.example.org\n.evil.net/", "https://images.example.org#x"),
        *("ftp://images.example.org/", "file:///etc/passwd", "FILE:///etc/passwd"),
        *("//images.example.org/", "images.example.org", "", None, 5),
    ],
)
def test_an_address_that_is_not_listed_is_not_fetched(tmp_path: Path, address: Any) -> None:
    engine = Engine()
    gate = seeing(tmp_path, engine)
    foreign = {"type": "image", "source": {"type": "url", "url": address}}
    seen = {"type": "input_image", "image_url": address}
    for path, document in (
        (CHAT, show(address)),
        (MESSAGES, message(foreign)),
        (RESPONSES, respond(seen)),
    ):
        answer = ask(gate, path, json=document)
        assert answer.status_code == 400
        assert "images.example.org" in read_message(answer)
    assert engine.scopes == []


def test_without_a_list_no_address_is_fetched(tmp_path: Path) -> None:
    answer = ask(seeing(tmp_path, Engine(), hosts=()), json=show(LISTED))
    assert (answer.status_code, "and no addresses" in read_message(answer)) == (400, True)


NO_IMAGE = "an image is not a PNG, JPEG, GIF or WebP in base64"
BEYOND = "this server takes text and images"


@pytest.mark.parametrize(
    ("part", "status", "what"),
    [
        ({"type": "image_url", "image_url": inline(png((9999, 9999)))}, 400, "9999 x 9999 pixels"),
        ({"type": "image_url", "image_url": inline(png((1, 1), (9999, 9999)))}, 400, "pixels"),
        (
            {"type": "image_url", "image_url": inline(SMALL + b"x" * 6000)},
            413,
            "bytes; this server allows up to 6000",
        ),
        ({"type": "image_url", "image_url": inline(b"II*\0" * 99)}, 400, NO_IMAGE),
        ({"type": "image_url", "image_url": "data:image/png,abc"}, 400, NO_IMAGE),
        ({"type": "image_url", "image_url": "data:image/png;base64,a"}, 400, NO_IMAGE),
        ({"type": "image_url", "image_url": "data:"}, 400, NO_IMAGE),
        ({"type": "image", "source": {"type": "file", "file_id": "f"}}, 400, NO_IMAGE),
        ({"type": "image_url", "image_url": inline(SMALL), "uuid": "of another"}, 400, "uuid"),
        ({"type": "text", "text": "", "uuid": "1", "image_url": None}, 400, "uuid"),
        ({"type": "input_image", "file_id": "file-1"}, 400, f"file_id: {BEYOND}"),
        ({"type": "image_embeds", "image_embeds": "AAAA"}, 400, BEYOND),
        ({"type": "input_audio", "input_audio": {"data": ""}}, 400, BEYOND),
        ({"type": "video_url", "video_url": {"url": LISTED}}, 400, BEYOND),
        ({"type": "document", "source": {}}, 400, BEYOND),
    ],
)
def test_what_is_not_an_image_within_limits_is_refused(
    tmp_path: Path, engine: Engine, part: dict[str, Any], status: int, what: str
) -> None:
    answer = ask(seeing(tmp_path, engine, image_bytes=6000), json=chat(part))
    assert (answer.status_code, what in read_message(answer)) == (status, True), answer.text
    assert engine.scopes == []


def test_so_many_images_of_so_many_bytes_pass_and_no_more(tmp_path: Path) -> None:
    image = {"image_url": inline(SMALL)}
    size = len(image["image_url"].partition(",")[2]) // 4 * 3
    gate = seeing(tmp_path, Engine(), images=3, request_bytes=2 * size)
    answers = [ask(gate, json=chat(*[image] * count)) for count in (2, 3, 4)]
    assert [answer.status_code for answer in answers] == [200, 413, 400]


def test_the_body_may_be_larger_by_its_images_only(tmp_path: Path, engine: Engine) -> None:
    gate = seeing(tmp_path, engine, limits={"body_bytes": 1000}, request_bytes=9000)
    large = show(inline(SMALL + b"x" * 6000))
    assert ask(gate, json=large).status_code == 200
    text = chat({"type": "text", "text": "x" * 8000})
    beside = ask(gate, json=text)
    assert (beside.status_code, len(engine.scopes)) == (413, 1)
    assert ask(gate, json=chat({"type": "text", "text": "x" * 20_000})).status_code == 413


def test_images_of_all_requests_have_a_limit_together(tmp_path: Path) -> None:
    gate = seeing(tmp_path, Engine(), limits={"body_bytes": 1000}, waiting_bytes=4000)
    statuses = [
        ask(gate, json=show(inline(SMALL + b"x" * size))).status_code
        for size in (3000, 3000, 6000, 3000)
    ]
    assert statuses == [200, 200, 503, 200]


def test_an_image_is_not_charged_by_its_bytes(tmp_path: Path) -> None:
    engine = Engine(chunks=(b'{"usage":{"prompt_tokens":900}}',))
    gate, (key,) = keyed_gate(tmp_path, engine, {"tokens_per_minute": 3000}, text_only=False)
    large = {**show(inline(SMALL + b"x" * 10**6)), "max_tokens": 9}
    assert [ask(gate, key=key, json=large).status_code for _ in range(2)] == [200, 200]


def test_a_seeing_server_takes_text_as_ever(tmp_path: Path, engine: Engine) -> None:
    document = chat({"type": "text", "text": "data:image/png;base64,AAAA file:///etc/passwd"})
    assert ask(seeing(tmp_path, engine), json=document).status_code == 200
    assert json.loads(engine.bodies[0]) == document


def say(text: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        (say("Write a Python function that sorts a list."), "code"),
        (say("What does this do?\n```\nfor x in y: pass\n```"), "code"),
        (say("Tell me a story about a lighthouse."), "prose"),
        (say("Translate into French: where is the station?"), "translation"),
        (say("hi", tools=[TOOL]), "tools"),
        (say("Tell me a story.", tools=[TOOL], tool_choice="none"), "prose"),
        (say("List three.", response_format={"type": "json_object"}), "structured"),
        (say("List three.", response_format={"type": "text"}), "prose"),
        (say([{"type": "text", "text": "Explain this traceback"}]), "code"),
        ({"prompt": "Once upon a time"}, "prose"),
        ({"prompt": [1, 2, 3]}, "other"),
        ({"input": [{"role": "user", "content": "Refactor it."}]}, "code"),
        ({"input": "Tell me a story."}, "prose"),
        ({}, "other"),
        (say(None), "other"),
        ({"messages": [None, 7]}, "other"),
        ({"messages": "Tell me."}, "prose"),
    ],
)
def test_a_request_has_a_kind(document: dict[str, Any], kind: str) -> None:
    assert find_kind(document) == kind


def test_a_long_text_is_judged_by_its_end() -> None:
    assert find_kind(say("def f(): pass\n" * 100_000 + "Tell me a story. " * 400)) == "prose"


HOSTILE = (
    *("\n", " ", "\t ", "; ", "{ \n", "def ", "\n\t", "x\n ", "```", "translat", "c++ c"),
    *("import\t", "unit tes", "class\n", "#", "\u00fcbersetz ", "trad"),
)


@pytest.mark.parametrize("piece", HOSTILE, ids=repr)
def test_the_kind_is_found_in_a_time_that_grows_with_the_text(piece: str) -> None:
    """A pattern that began with any white space took 2.4 s for 4,000 newlines."""

    def measure(characters: int) -> float:
        document = {"prompt": (piece * characters)[:characters] + "x"}
        began = time.process_time()
        for _ in range(5):
            find_kind(document)
        return time.process_time() - began

    quarter, whole = measure(MOST_CHARACTERS // 4), measure(MOST_CHARACTERS)
    assert whole < max(0.1, 8 * quarter)


def list_patterns() -> dict[str, re.Pattern[Any]]:
    """List every pattern of a module of the gate, by its name."""
    modules = [
        import_module(one.name)
        for one in walk_packages(gate_package.__path__, f"{gate_package.__name__}.")
        if not one.ispkg
    ]
    return {
        f"{module.__name__.rpartition('.')[2]}.{name}": value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, re.Pattern)
    }


PATTERNS = list_patterns()


@pytest.mark.parametrize("name", PATTERNS)
def test_every_pattern_of_the_gate_takes_a_time_that_grows_with_the_text(name: str) -> None:
    """Texts repeat what the pattern itself says, and what is within its brackets."""
    pattern = PATTERNS[name]
    source = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode()
    words = {
        *re.findall(r"[\w\"`:/{\[-]+", source),
        *'\n \t"\\{}[],;:.-/<(a0=',
        '\\"',
        '":"',
        "\n ",
    }
    pieces = {*words, *("".join(two) for two in itertools.product(words, '\n "\\a0.')), *HOSTILE}
    for most, piece in itertools.product((2**12, 2**15), pieces):
        text = (piece * most)[:most] + "\x00"
        hostile: Any = text if isinstance(pattern.pattern, str) else text.encode()
        began = time.process_time()
        deque(pattern.finditer(hostile), maxlen=0)
        pattern.fullmatch(hostile)
        assert time.process_time() - began < 0.02 + most * 1e-5, (most, piece)
