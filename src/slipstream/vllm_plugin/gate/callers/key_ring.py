"""Authentication by the keys of the key file, of which only hashes are known.

The file may be replaced at any time. Without one, a gate on the loopback is open, unless keys are
required; a gate that has seen keys never opens again because their file went away.

The supervisor's own key generates a few tokens and nothing else: it passes while the server is
about to stop, so whoever got hold of it must gain little.
"""

import hmac
import logging
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from hmac import compare_digest

from slipstream.serving.access.gate_file import (
    GENERATING,
    POOLING,
    GateSettings,
    KeyDefaults,
    is_loopback,
)
from slipstream.serving.access.keys import KEYS_HINT, Key, KeyTerms
from slipstream.vllm_plugin.gate.answers import Refusal
from slipstream.vllm_plugin.gate.requests.limits import Document, require_number
from slipstream.vllm_plugin.gate.routes import MODELS, SCOPES
from slipstream.vllm_plugin.gate.settings import WatchedFile

Headers = Mapping[bytes, bytes]
NO_TERMS = KeyDefaults(routes=None, concurrent_requests=None)

PROBE_ROUTES = ("POST /v1/completions", MODELS, "GET /metrics")
PROBE_TOKENS = 64
CONCURRENT_PROBES = 4
PROBE_BYTES = 2**14
# The one that `slipstream.serving.supervision.generation` sends: it is not measured.
PROBE_SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
PROBE_FIELDS = frozenset(
    {"model", "prompt", "max_tokens", "temperature", "top_p", "seed", "ignore_eos"}
    | {"structured_outputs", "top_k", "logprobs", "echo"}
    | {"presence_penalty", "frequency_penalty", "repetition_penalty"}
)
_PAGE_FROM_HERE = re.compile(rb"https?://(?:localhost|127\.\d+\.\d+\.\d+|\[::1\])(?::\d+)?")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated caller, the salt of its prefix cache, and its limits."""

    id: str
    cache_salt: str | None = None
    terms: KeyDefaults = NO_TERMS
    others: int = 0  # Other keys that may use the engine.


TERMS = {*KeyTerms.model_fields}
ENGINE_SCOPES = {SCOPES[route] for route in (*GENERATING, *POOLING)}
ANYONE = Caller("anyone")
SUPERVISOR = Caller(
    "supervisor", terms=NO_TERMS.model_copy(update={"concurrent_requests": CONCURRENT_PROBES})
)


# A key with its digest.
_Entry = tuple[bytes, Key]


class KeyRing:
    """Identifies callers by their key."""

    def __init__(self, settings: GateSettings, *, clock: Callable[[], float] = time.time) -> None:
        self._may_be_open = is_loopback(settings.host)
        self._defaults = settings.keys
        self.follow(settings)
        self._probe = bytes.fromhex(settings.probe_sha256 or "")
        self._file = WatchedFile(settings.keys_file, _parse_keys, absent=None)
        self._clock = clock

    def follow(self, settings: GateSettings) -> None:
        """Apply newer settings; a gate that requires keys keeps doing so."""
        self._defaults = settings.keys
        self._may_be_open = self._may_be_open and not settings.keys_required

    @property
    def is_open(self) -> bool:
        if self._file.read() is not None:
            self._may_be_open = False
        return self._may_be_open

    def is_probe(self, route: str, headers: Headers) -> bool:
        """Return whether this is the supervisor at a route of its own, whichever are served."""
        digests = [sha256(one).digest() for one in _list_given(headers)]
        return route in PROBE_ROUTES and self._is_supervisor(digests)

    def _is_supervisor(self, digests: list[bytes]) -> bool:
        return any([compare_digest(digest, self._probe) for digest in digests])

    def require_caller(self, headers: Headers) -> Caller:
        """Return the caller, or refuse one without a valid key."""
        given = _list_given(headers)
        digests = [sha256(one).digest() for one in given]
        if self._is_supervisor(digests):
            return SUPERVISOR
        if self.is_open:
            _require_no_foreign_page(headers)
            return ANYONE
        keys = self._file.read() or ()
        found = [entry for digest in digests if (entry := self._find(keys, digest)) is not None]
        if not found:
            what = "this key is unknown or has expired" if given else "a key is required"
            how = "Authorization: Bearer KEY, or x-api-key: KEY"
            raise Refusal(401, f"{what}: {how}", headers=((b"www-authenticate", b"Bearer"),))
        digest, key = found[0]
        salt = hmac.digest(digest, b"prefix cache", "sha256").hex()
        own = key.model_dump(include=TERMS, exclude_none=True)
        terms = self._defaults.model_copy(update=own)
        return Caller(key.id, salt, terms, self._count_others(keys, key.id))

    def _count_others(self, keys: tuple[_Entry, ...], caller: str) -> int:
        now = datetime.fromtimestamp(self._clock(), UTC)
        others = {
            key.id
            for _, key in keys
            if key.is_valid(now) and (key.routes is None or ENGINE_SCOPES & {*key.routes})
        }
        return len(others - {caller})

    def _find(self, keys: tuple[_Entry, ...], digest: bytes) -> _Entry | None:
        """Compare with every key, whichever is found, so that time tells nothing."""
        now, found = datetime.fromtimestamp(self._clock(), UTC), None
        for entry in keys:
            if compare_digest(entry[0], digest) & entry[1].is_valid(now):
                found = entry
        return found


def require_scope(caller: Caller, route: str) -> None:
    if caller is SUPERVISOR and route not in PROBE_ROUTES:
        raise Refusal(403, "this key allows probes only", reason="scope")
    allowed = caller.terms.routes
    if allowed is not None and SCOPES.get(route) not in allowed:
        what = f"this key does not allow {route}; it allows {', '.join(allowed)}"
        raise Refusal(403, what, reason="scope")


def require_probe(body: bytes, document: Document) -> None:
    """Refuse a request that is no probe: too long, too many tokens, or with other fields."""
    if len(body) > PROBE_BYTES or not isinstance(document.get("prompt"), str):
        raise Refusal(403, f"a probe has one prompt, in at most {PROBE_BYTES} bytes")
    if unknown := document.keys() - PROBE_FIELDS:
        raise Refusal(403, f"a probe has no {min(unknown)[:40]}", field=min(unknown)[:40])
    if document.get("structured_outputs") not in (None, {"json": PROBE_SCHEMA}):
        raise Refusal(403, "a probe has one form only", field="structured_outputs")
    if document.get("max_tokens") is None:
        raise Refusal(403, "a probe sets max_tokens", field="max_tokens")
    require_number(document, "max_tokens", PROBE_TOKENS, least=1)


def _require_no_foreign_page(headers: Headers) -> None:
    """Refuse requests that pages of other sites send from a browser on this machine."""
    origin = headers.get(b"origin")
    if origin is not None and not _PAGE_FROM_HERE.fullmatch(origin):
        raise Refusal(403, "pages of other sites may not use a server without keys")


def _list_given(headers: Headers) -> list[bytes]:
    """List the keys that a request brings, the one that counts first.

    Anthropic's clients may send both headers, one of them with a key of Anthropic's own.
    """
    scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
    bearer = given.strip() if scheme.lower() == b"bearer" else b""
    keys = (bearer, headers.get(b"x-api-key", b""))
    return [key for key in keys if key]


def _parse_keys(content: bytes) -> tuple[_Entry, ...] | None:
    """Read one key a line; a file with a faulty line lets nobody in."""
    try:
        keys = [Key.model_validate_json(line) for line in content.splitlines() if line.strip()]
        return tuple((bytes.fromhex(key.sha256), key) for key in keys)
    except ValueError:
        _log.error("the key file cannot be used, and every key is refused: see `%s`", KEYS_HINT)
        return ()
