"""The limits of the supervisor's own key: generate a few tokens, and nothing else.

The key passes while the server is about to stop, so whoever got hold of it must gain little.
"""

from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.request_limits import Document, require_number

ROUTE = "POST /v1/completions"
MOST_TOKENS = 64
MOST_REQUESTS = 4
BODY_BYTES = 2**14
# The one that `slipstream.serving.supervision.generation` sends: it is not measured.
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FIELDS = frozenset(
    {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "ignore_eos"}
    | {"structured_outputs"}
)


def require_probe_route(route: str) -> None:
    """Refuse every route but the one that a probe takes."""
    if route != ROUTE:
        raise Refusal(403, "this key is for probes only", reason="scope")


def require_probe(body: bytes, document: Document) -> None:
    """Refuse a request that is no probe: too long, too many tokens, or with other fields."""
    if len(body) > BODY_BYTES or not isinstance(document.get("prompt"), str):
        raise Refusal(403, f"a probe has one prompt, in at most {BODY_BYTES} bytes")
    if unknown := document.keys() - FIELDS:
        raise Refusal(403, f"a probe has no {min(unknown)[:40]}", field=min(unknown)[:40])
    if document.get("structured_outputs") not in (None, {"json": SCHEMA}):
        raise Refusal(403, "a probe has one form only", field="structured_outputs")
    if document.get("max_tokens") is None:
        raise Refusal(403, "a probe says how many tokens it wants", field="max_tokens")
    require_number(document, "max_tokens", MOST_TOKENS, least=1)
