"""A server's address, key and model name, and the calls that are not timed."""

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from slipstream.errors import EngineError, InvalidInputError
from slipstream.serving.access.tls import TlsCertificate

KEY_VARIABLE = "SLIPSTREAM_API_KEY"
SILENCE_SECONDS = 600
CONNECT_SECONDS = 10
BODY_CHARACTERS = 2000

LOG_HINT = "look into the server's log"
_CERTIFICATE_HINT = "export SSL_CERT_FILE=CERTIFICATE, with the server's or its authority's in PEM"
KEY_HINT = f"put the server's key into {KEY_VARIABLE}"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server's address, with or without /v1; the default model is its first one.

    A run of ours is known by its own certificate, every other server by an authority.
    """

    url: str
    key: str | None = field(default=None, repr=False)
    model: str | None = None
    certificate: TlsCertificate | None = None

    @property
    def base(self) -> httpx.URL:
        try:
            base = httpx.URL(self.url.rstrip("/").removesuffix("/v1"))
        except httpx.InvalidURL:
            base = httpx.URL()
        if base.scheme not in ("http", "https") or not base.host:
            raise InvalidInputError(
                f"'{self.url}' is not the address of a server",
                hint="write it as http://127.0.0.1:8000",
            )
        return base

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    def make_context(self) -> ssl.SSLContext | None:
        """Return what TLS trusts, None without it; SSL_CERT_FILE names a private authority."""
        if self.base.scheme != "https":
            return None
        # Reading all authorities takes 50 ms.
        return self.certificate.pin() if self.certificate else httpx.create_ssl_context()


def read_key(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Read the key that a server wants: from a file, or else from the environment."""
    try:
        key = environment.get(KEY_VARIABLE, "") if file is None else file.read_text()
    except (OSError, UnicodeDecodeError) as fault:
        raise InvalidInputError(f"cannot read the key in {file}: {fault}", hint=KEY_HINT) from None
    key = key.strip()
    if (file and not key) or not key.isascii() or not key.isprintable():
        raise InvalidInputError(f"no key in {file or KEY_VARIABLE}", hint=KEY_HINT)
    return key or None


def open_client(endpoint: Endpoint) -> httpx.AsyncClient:
    """Open a client for calls that are not timed to the millisecond."""
    return httpx.AsyncClient(
        base_url=endpoint.base,
        headers=endpoint.headers,
        timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx.Limits(max_connections=None),
        trust_env=False,  # a proxy would be measured along
        verify=endpoint.make_context() or False,
    )


def read_served_model(endpoint: Endpoint) -> tuple[str, int | None]:
    """Return the name of the first model, and its context if the server reports it."""

    async def ask() -> tuple[str, int | None]:
        async with open_client(endpoint) as client:
            return await read_model(client)

    return asyncio.run(ask())


async def read_model(client: httpx.AsyncClient) -> tuple[str, int | None]:
    listed = await call(client, "GET", "/v1/models")
    try:
        first = listed["data"][0]
        name, context = str(first["id"]), first.get("max_model_len")
    except (LookupError, TypeError, AttributeError):
        name, context = "", None
    if not name or not name.isprintable():
        raise InvalidInputError(
            f"{client.base_url} lists no model",
            hint="name the address of an OpenAI-compatible server",
        )
    return name, context if isinstance(context, int) and context > 0 else None


async def call(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    """Call the server and return the JSON of its answer; raise if it is an error."""
    answer = await send(client, method, path, body)
    details = (answer.text[:BODY_CHARACTERS],)
    if answer.status_code != httpx.codes.OK:
        refused = answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)
        raise EngineError(
            f"{path} of {client.base_url} answered {answer.status_code}",
            details=details,
            hint=KEY_HINT if refused else LOG_HINT,
        )
    try:
        return answer.json()
    except ValueError as fault:
        raise EngineError(
            f"{path} of {client.base_url} answered with something other than JSON",
            details=details,
            hint=LOG_HINT,
        ) from fault


async def send(
    client: httpx.AsyncClient, method: str, path: str, body: Any = None
) -> httpx.Response:
    """Call the server and return any answer."""
    try:
        return await client.request(method, path, json=body)
    except httpx.HTTPError as fault:
        raise no_answer(client.base_url, fault) from fault


def no_answer(base: httpx.URL, fault: Exception) -> EngineError:
    why = f"{type(fault).__name__} {fault}".strip()
    hint = _CERTIFICATE_HINT if "CERTIFICATE_VERIFY_FAILED" in why else LOG_HINT
    return EngineError(f"no answer from {base}: {why}", hint=hint)
