"""The list of models, without their folders and without those of other keys."""

import json

from slipstream.vllm_plugin.gate.answers import Message, Send


def show_names_only(send: Send, allowed: tuple[str, ...] | None) -> Send:
    """Filter the engine's list on its way to the client; anything else passes unchanged."""
    start: Message = {}
    parts: list[bytes] = []

    async def send_changed(message: Message) -> None:
        nonlocal start
        if message["type"] == "http.response.start":
            start = message
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            came = b"".join(parts)
            body = _hide(came, allowed) if start["status"] == 200 else came
            await send({**start, "headers": _with_length(start, came, body)})
            await send({"type": "http.response.body", "body": body, "more_body": False})

    return send_changed


def _hide(body: bytes, allowed: tuple[str, ...] | None) -> bytes:
    try:
        document = json.loads(body)
        listed = [{**one, "root": one["id"]} for one in document["data"]]
    except (ValueError, TypeError, LookupError):
        return body
    document["data"] = [one for one in listed if allowed is None or one["id"] in allowed]
    return json.dumps(document).encode()


def _with_length(start: Message, came: bytes, body: bytes) -> list[tuple[bytes, bytes]]:
    headers = list(start.get("headers", ()))
    if body is came:
        return headers
    kept = [one for one in headers if one[0].lower() != b"content-length"]
    return [*kept, (b"content-length", str(len(body)).encode())]
