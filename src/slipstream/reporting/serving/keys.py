"""Keys as text, without their secrets."""

from datetime import datetime

from slipstream.reporting.tables import align
from slipstream.serving.access.keys import Key, KeyList, KeyTerms


def render_keys(listed: KeyList, now: datetime) -> str:
    """List keys, one a line."""
    if not listed.keys:
        return f"no keys in {listed.file}"
    rows = [
        (
            key.id,
            f"{key.created:%Y-%m-%d}",
            describe_end(key, now),
            describe_terms(key),
            key.name,
        )
        for key in listed.keys
    ]
    return "\n".join(align([("ID", "CREATED", "EXPIRES", "TERMS", "NAME"), *rows]))


def describe_terms(key: Key) -> str:
    """Write what a key says of its own use, in one word for a script to split."""
    given = {name: getattr(key, name) for name in KeyTerms.model_fields}
    words = [f"{name}={_show(value)}" for name, value in given.items() if value is not None]
    return ",".join(words) or "default"


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return "+".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_end(key: Key, now: datetime) -> str:
    """Return until when a key is valid, as text."""
    if key.expires is None:
        return "never"
    return f"{'' if key.is_valid(now) else 'expired '}{key.expires:%Y-%m-%d}"
