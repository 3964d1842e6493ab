"""The content of a request: its images, within limits, and the kind of text that it asks for.

An image comes with its request, or from a host that the owner has listed; other media are refused.
vLLM would fetch any address, follow redirects, and take an image of another caller by its `uuid`.
Width and height are read from the head here. Pillow would need 270 ms of the event loop for one of
60 kB: it unpacks all texts before the image.

The kind labels figures and decides nothing about the request itself.
"""

import re
from binascii import Error, a2b_base64
from collections.abc import Iterator
from struct import unpack, unpack_from
from typing import Any

from slipstream.serving.access.gate_file import GateMedia
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.requests.limits import CONTAINERS, POOLED_LISTS, Document

MEDIA = frozenset(
    {
        *(
            f"{medium}_{form}"
            for medium in ("image", "audio", "video")
            for form in ("url", "embeds")
        ),
        *("image", "image_pil", "input_image", "input_audio", "input_video", "prompt_embeds"),
        *("file", "input_file", "file_data", "file_id", "file_url", "document"),
        *("computer_screenshot", "computer_call_output", "image_generation_call"),
    }
)
IMAGES = frozenset({"image_url", "input_image", "image"})
CONTENT_FIELDS = (
    *("messages", "input", "system", "previous_input_messages"),
    *("query", *POOLED_LISTS),
)
IMAGE_BYTES = 4096  # An image is about a thousand tokens.
# Enough for the head of an image with its profiles and previews.
HEAD_BYTES = 2**18
_HEAD_CHARACTERS = HEAD_BYTES // 3 * 4
# No user, no backslash, nothing that two readers could take for two hosts.
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?::\d{1,5})?(?:[/?][!-\[\]-~]*)?")

MOST_PARTS = 1000
_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = (0xC4, 0xC8, 0xCC)  # Among the markers of JPEG's frames.
_START_OF_SCAN = 0xDA
# Whose end tells the kind.
MOST_CHARACTERS = 4000
_TRANSLATION = re.compile(
    r"\b(?:translat\w+|übersetz\w+|tradui\w+|traduc\w+|traduz\w+)\b|翻译|翻訳", re.IGNORECASE
)
_CODE = re.compile(
    r"```|^[ \t]*+(?:def|class|import|from|func|fn|public|const|let|#include|SELECT|CREATE)\b"
    r"|[;{}][ \t]*+$|\b(?:python|javascript|typescript|rust|c\+\+|sql|regex|unit tests?|function"
    r"|refactor|stack trace|traceback|bug|compile)\b",
    re.IGNORECASE | re.MULTILINE,
)
_STRUCTURED = ("response_format", "structured_outputs", "output_config")

Part = dict[str, Any]
Size = tuple[int, int]


def require_text(document: Document) -> None:
    """Refuse every medium."""
    for field, _, marks in _find_media(document):
        what = f"{min(marks)}: this server takes text only"
        hint = "for a multimodal model: slipstream serve --images"
        raise Refusal(400, f"{what}; {hint}", field=field, reason="media")


def require_images(document: Document, media: GateMedia) -> int:
    """Refuse what is not an image within the limits; return the characters of inline data."""
    characters = 0
    for count, (field, part, marks) in enumerate(_find_media(document), start=1):
        if others := _list_others(part, marks):
            raise _refuse(field, f"{min(others)}: this server takes text and images")
        if part.get("uuid") is not None:
            raise _refuse(field, "uuid may not be set by clients")
        if count > media.images:
            raise _refuse(field, f"more than {media.images} images in one request")
        address, data = _read_image(part)
        if data is None:
            _require_listed(address, media.hosts, field)
        else:
            characters += len(data)
            _require_small(data, media, field)
    if characters // 4 * 3 > media.request_bytes:
        what = f"the images have {characters // 4 * 3} bytes together"
        raise Refusal(413, f"{what}; this server allows up to {media.request_bytes}")
    return characters


def measure_images(document: Document) -> list[int]:
    """Return the characters of data that each image has in the body."""
    return [len(_read_image(part)[1] or "") for _, part, _ in _find_media(document)]


def _find_media(document: Document) -> Iterator[tuple[str, Part, frozenset[str]]]:
    """Search the turns and the parts of their content, however deeply nested."""
    for field in CONTENT_FIELDS:
        waiting = [document.get(field)]
        while waiting:
            one = waiting.pop()
            if isinstance(one, list):
                waiting += [part for part in one if isinstance(part, CONTAINERS)]
            elif isinstance(one, dict):
                kind = one.get("type")
                marks = MEDIA & one.keys()
                if isinstance(kind, str) and kind in MEDIA:
                    marks |= {kind}
                if marks:
                    yield field, one, frozenset(marks)
                waiting += (one.get("content"), one.get("output"))


def _list_others(part: Part, marks: frozenset[str]) -> list[str]:
    """List what marks a part as another medium; OpenAI's clients send the empty ones, too."""
    kind = part.get("type")
    return [one for one in marks - IMAGES if one == kind or part.get(one) is not None]


def _read_image(part: Part) -> tuple[str, str | None]:
    """Return the address of an image, and its data if it is inline."""
    if part.get("type") == "image":
        source = part.get("source")
        source = source if isinstance(source, dict) else {}
        if source.get("type") != "url":
            return "", str(source.get("data") or "")
        address = source.get("url")
    else:
        address = part.get("image_url")
        address = address.get("url") if isinstance(address, dict) else address
    text = str(address or "")
    if text[:5].lower() != "data:":
        return text, None
    kind, _, data = text.partition(",")
    return kind, data if kind.endswith(";base64") else ""


def _require_listed(address: str, hosts: tuple[str, ...], field: str) -> None:
    found = _ADDRESS.fullmatch(address)
    if found is None or found[1].lower() not in hosts:
        allowed = f"addresses of {', '.join(hosts)}" if hosts else "no addresses"
        what = f"this server takes images as inline data (base64) and {allowed}"
        raise _refuse(field, what)


def _require_small(data: str, media: GateMedia, field: str) -> None:
    if len(data) // 4 * 3 > media.image_bytes:
        what = f"an image has {len(data) // 4 * 3} bytes"
        raise Refusal(413, f"{what}; this server allows up to {media.image_bytes}", field=field)
    try:
        size = read_size(a2b_base64(data[:_HEAD_CHARACTERS]))
    except (Error, ValueError):
        size = None
    if size is None:
        raise _refuse(field, "an image is not a PNG, JPEG, GIF or WebP in base64")
    if size[0] * size[1] > media.pixels:
        what = f"an image has {size[0]} x {size[1]} pixels"
        raise _refuse(field, f"{what}; this server allows up to {media.pixels}")


def _refuse(field: str, message: str) -> Refusal:
    return Refusal(400, message, field=field, reason="media")


def read_size(head: bytes) -> Size | None:
    """Return width and height of a PNG, JPEG, GIF or WebP, None for anything else."""
    try:
        sizes = list(_list_sizes(head))
    except (IndexError, ValueError):
        return None
    if not sizes:
        return None
    return max(width for width, _ in sizes), max(height for _, height in sizes)


def _list_sizes(head: bytes) -> Iterator[Size]:
    if head.startswith(_PNG):
        yield from _read_png(head)
    elif head.startswith(b"\xff\xd8"):
        yield from _read_jpeg(head)
    elif head.startswith((b"GIF87a", b"GIF89a")):
        yield from _read_gif(head)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        yield _read_webp(head)


def _read_png(head: bytes) -> Iterator[Size]:
    at = len(_PNG)
    for _ in range(MOST_PARTS):
        length, kind = int.from_bytes(head[at : at + 4]), head[at + 4 : at + 8]
        if kind in (b"IDAT", b""):
            return
        if kind == b"IHDR":
            yield _unpack(">II", head, at + 8)
        at += length + 12


def _read_jpeg(head: bytes) -> Iterator[Size]:
    at = 2
    for _ in range(MOST_PARTS):
        at = head.index(b"\xff", at)
        while head[at] == 0xFF:
            at += 1
        marker = head[at]
        if marker == _START_OF_SCAN:
            return
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAME:
            height, width = _unpack(">HH", head, at + 4)
            yield width, height
        stands_alone = marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD9
        at += 1 if stands_alone else 1 + int.from_bytes(head[at + 1 : at + 3])


def _read_gif(head: bytes) -> Iterator[Size]:
    """Yield the size of the screen and of the first frame, which may reach beyond it."""
    yield _unpack("<HH", head, 6)
    flags, at = head[10], 13
    at += 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0
    for _ in range(MOST_PARTS):
        if head[at] == 0x2C:
            left, top, width, height = unpack("<HHHH", head[at + 1 : at + 9].ljust(8, b"\0"))
            yield left + width, top + height
            return
        if head[at] != 0x21:
            return
        at += 2
        while size := head[at]:
            at += size + 1
        at += 1


def _read_webp(head: bytes) -> Size:
    kind = head[12:16]
    if kind == b"VP8X":
        return (
            1 + int.from_bytes(head[24:27], "little"),
            1 + int.from_bytes(head[27:30], "little"),
        )
    if kind == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 " and head[23:26] == b"\x9d\x01\x2a":
        width, height = _unpack("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError("not a WebP image")


def _unpack(form: str, head: bytes, at: int) -> Size:
    if len(head) < at + (8 if form == ">II" else 4):
        raise ValueError("the image ends within its head")
    first, second = unpack_from(form, head, at)
    return first, second


def find_kind(document: Document) -> str:
    """Return 'tools', 'structured', 'translation', 'code', 'prose', or 'other' without any text."""
    if document.get("tools") and document.get("tool_choice") != "none":
        return "tools"
    if any(_asks_for_form(document.get(name)) for name in _STRUCTURED):
        return "structured"
    text = _find_last_text(document)
    if not text.strip():
        return "other"
    if _TRANSLATION.search(text):
        return "translation"
    return "code" if _CODE.search(text) else "prose"


def _asks_for_form(value: Any) -> bool:
    return bool(value) and not (isinstance(value, dict) and value.get("type") == "text")


def _find_last_text(document: Document) -> str:
    """Return the end of what the user said last."""
    content = document.get("messages") or document.get("input") or document.get("prompt") or ""
    if isinstance(content, list):
        users = [one for one in content if isinstance(one, dict) and one.get("role") == "user"]
        last = users[-1] if users else content[-1] if content else ""
        content = last.get("content", "") if isinstance(last, dict) else last
    if isinstance(content, list):
        parts = [one.get("text") for one in content if isinstance(one, dict)]
        content = " ".join(part for part in parts if isinstance(part, str))
    return content[-MOST_CHARACTERS:] if isinstance(content, str) else ""
