"""One run with a certificate, shared by what is shown of TLS and by the clients that ask it."""

import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from slipstream.proving_ground import SHIPPED_DRAFTER
from slipstream.serving.access.tls import Certificate
from tests.engine.service import Service
from tests.unit.serving.access.certificates import Pair, make_pair

CACHED_TOKENS = "--enable-prompt-tokens-details"
TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@dataclass(frozen=True)
class Secured:
    """A served run, and the certificate that it was started with."""

    service: Service
    pair: Pair

    def ask(self, path: str) -> httpx.Response:
        context = Certificate(self.pair.file, self.pair.key).pin()
        with httpx.Client(verify=context, trust_env=False, timeout=30) as client:
            return client.get(f"https://127.0.0.1:{self.service.port}{path}")

    def read_certificate(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.service.port))


@pytest.fixture(scope="package")
def secured(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    home = tmp_path_factory.mktemp("secured")
    pair = make_pair(home / "tls", "localhost")
    service = Service(home, target, environment={"HF_TOKEN": "hf_secret", "AWS_REGION": "x"})
    words = (
        "--drafter",
        str(SHIPPED_DRAFTER),
        "--context",
        "2048",
        "--port",
        str(service.port),
        "--detach",
    )
    engine = ("--enforce-eager", *pair.flags, "--enable-ssl-refresh", *TOOLS, CACHED_TOKENS)
    try:
        service.command("serve", str(target), *words, "--", *engine)
        yield Secured(service, pair)
    finally:
        service.end()
