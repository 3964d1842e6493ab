"""The tag that the engine's core gets with a request: whose, of what kind, drafted, kept or not.

A client cannot write it: `vllm_xargs`, in which it travels, is refused in a body. What a client may
say is a header, which every client library can send with every API and which is about its own
request only.
"""

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.callers.key_ring import SUPERVISOR, Caller, Headers
from slipstream.vllm_plugin.gate.requests.content import find_kind
from slipstream.vllm_plugin.gate.requests.limits import Document
from slipstream.vllm_plugin.gate.routes import SCOPES

DRAFTS = b"x-slipstream-drafts"


def wants_drafts(headers: Headers) -> bool:
    """Return whether a request leaves drafting on; another word is refused."""
    wanted = headers.get(DRAFTS, b"on").strip().lower()
    if wanted not in (b"on", b"off"):
        raise Refusal(400, "the header X-Slipstream-Drafts must be on or off")
    return wanted == b"on"


def make_tag(
    document: Document,
    caller: Caller,
    path: str,
    identity: str,
    settings: GateSettings,
    drafts: bool,
) -> str:
    """Return the tag of a request; its client, its key or its kind can turn drafts off."""
    kind = find_kind(document)
    plain = not drafts or caller.terms.drafts == "off" or kind in settings.plain_kinds
    # The supervisor asks whether drafts are accepted.
    how = "plain" if plain and caller is not SUPERVISOR else "-"
    keep = "-" if caller.terms.learning == "off" or caller is SUPERVISOR else "keep"
    return " ".join((identity, caller.id, kind, SCOPES[f"POST {path}"], how, keep))
