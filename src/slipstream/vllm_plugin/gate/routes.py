"""The routes that the gate knows, and what each needs from the engine.

A route is a method and a path; an id within a path is written `{id}`, so that logs, metrics and
scopes have one name for it.
"""

import re

from slipstream.serving.access.gate_file import ROUTES

# By the scope that a key needs.
SCOPES: dict[str, str] = {route: scope for scope, routes in ROUTES.items() for route in routes}
SCOPES["GET /metrics"] = "metrics"
MODELS = "GET /v1/models"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
CANCEL = "POST /v1/responses/{id}/cancel"
POOLING = frozenset({"/v1/embeddings", "/v1/rerank", "/v1/score", "/pooling"})
# The API server answers these by itself: they take no seat in the engine and make no tokens.
WITHOUT_ENGINE = frozenset({"/v1/messages/count_tokens", "/tokenize", "/detokenize"})
_ANTHROPIC = re.compile(r"/v1/messages(?:/|$)")
_RESPONSE = re.compile(r"/v1/responses/resp_[A-Za-z0-9_-]{1,80}(/cancel)?")


def name_route(method: str, path: str) -> str:
    """Return the route's name, which is what was asked for unless an id is in it."""
    found = _RESPONSE.fullmatch(path)
    return f"{method} /v1/responses/{{id}}{found[1] or ''}" if found else f"{method} {path}"


def is_anthropic(path: str) -> bool:
    """Return whether a path is of the Anthropic API, whose errors have their own form."""
    return _ANTHROPIC.match(path) is not None
