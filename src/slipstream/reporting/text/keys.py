"""Keys as text: what is known of them, never the keys themselves."""

from datetime import datetime

from slipstream.reporting.text.tables import align
from slipstream.serving.access.keys import Key, KeyList


def render_keys(listed: KeyList, now: datetime) -> str:
    """List keys, one a line."""
    if not listed.keys:
        return f"no keys in {listed.file}"
    rows = [
        (key.id, f"{key.created:%Y-%m-%d}", describe_end(key, now), key.name) for key in listed.keys
    ]
    return "\n".join(align([("ID", "CREATED", "EXPIRES", "NAME"), *rows]))


def describe_end(key: Key, now: datetime) -> str:
    """Say until when a key opens the server."""
    if key.expires is None:
        return "never"
    return f"{'' if key.is_valid(now) else 'expired '}{key.expires:%Y-%m-%d}"
