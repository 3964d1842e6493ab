"""Pictures in a request: their number, size and source; other media are refused.

A picture comes with its request, or from a host that the owner has listed. vLLM would fetch any
address, follow redirects, and take a picture of another caller by its `uuid`.
"""

import re
from binascii import Error, a2b_base64
from collections.abc import Iterator
from typing import Any

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.picture_sizes import read_size
from slipstream.vllm_plugin.gate.request_limits import CONTAINERS, POOLED_LISTS, Document
from slipstream.vllm_plugin.gate.settings import Media

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
PICTURES = frozenset({"image_url", "input_image", "image"})
CONTENT_FIELDS = (
    *("messages", "input", "system", "previous_input_messages"),
    *("query", *POOLED_LISTS),
)
PICTURE_BYTES = 4096  # A picture is about a thousand tokens.
# Enough for the head of a picture with its profiles and previews.
HEAD_BYTES = 2**18
_HEAD_CHARACTERS = HEAD_BYTES // 3 * 4
# No user, no backslash, nothing that two readers could take for two hosts.
_ADDRESS = re.compile(r"https?://([A-Za-z0-9.-]{1,253})(?::\d{1,5})?(?:[/?][!-\[\]-~]*)?")

Part = dict[str, Any]


def require_text(document: Document) -> None:
    """Refuse every medium."""
    for field, _, marks in _find_media(document):
        what = f"{min(marks)}: this server takes text only"
        hint = "for a model that sees: slipstream serve --pictures"
        raise Refusal(400, f"{what}; {hint}", field=field, reason="media")


def require_pictures(document: Document, media: Media) -> int:
    """Refuse what is not a picture within the limits; return the characters of inline data."""
    characters = 0
    for count, (field, part, marks) in enumerate(_find_media(document), start=1):
        if others := _list_others(part, marks):
            raise _refuse(field, f"{min(others)}: this server takes text and pictures")
        if part.get("uuid") is not None:
            raise _refuse(field, "uuid is for the server to decide")
        if count > media.images:
            raise _refuse(field, f"more than {media.images} pictures in one request")
        address, data = _read_picture(part)
        if data is None:
            _require_listed(address, media.hosts, field)
        else:
            characters += len(data)
            _require_small(data, media, field)
    if characters // 4 * 3 > media.request_bytes:
        what = f"the pictures have {characters // 4 * 3} bytes together"
        raise Refusal(413, f"{what}; this server allows up to {media.request_bytes}")
    return characters


def estimate_prompt_bytes(document: Document, body_bytes: int) -> int:
    """Return the bytes of text that a body stands for, by about four to a token."""
    pictures = [_read_picture(part)[1] or "" for _, part, _ in _find_media(document)]
    return body_bytes - sum(map(len, pictures)) + PICTURE_BYTES * len(pictures)


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
    return [one for one in marks - PICTURES if one == kind or part.get(one) is not None]


def _read_picture(part: Part) -> tuple[str, str | None]:
    """Return the address of a picture, and its data if it is inline."""
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
        what = f"this server takes pictures as inline data (base64) and {allowed}"
        raise _refuse(field, what)


def _require_small(data: str, media: Media, field: str) -> None:
    if len(data) // 4 * 3 > media.image_bytes:
        what = f"a picture has {len(data) // 4 * 3} bytes"
        raise Refusal(413, f"{what}; this server allows up to {media.image_bytes}", field=field)
    try:
        size = read_size(a2b_base64(data[:_HEAD_CHARACTERS]))
    except (Error, ValueError):
        size = None
    if size is None:
        raise _refuse(field, "a picture is not a PNG, JPEG, GIF or WebP in base64")
    if size[0] * size[1] > media.pixels:
        what = f"a picture has {size[0]} x {size[1]} pixels"
        raise _refuse(field, f"{what}; this server allows up to {media.pixels}")


def _refuse(field: str, message: str) -> Refusal:
    return Refusal(400, message, field=field, reason="media")
