"""An engine that speaks TLS is known by its own certificate, and nothing else is spoken to."""

import asyncio
import os
import shutil
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from slipstream.errors import InvalidInputError
from slipstream.serving.access.addresses import Address
from slipstream.serving.access.own_listener import OwnListener
from slipstream.serving.access.tls import TlsCertificate
from slipstream.serving.supervision.generation import Asker
from slipstream.vllm_plugin.gate.answers import Receive, Scope, Send
from tests.unit.planning.bare_plans import bare_plan
from tests.unit.serving.access.certificates import NOW, Pair, make_pair

SECRET = "the supervisor's key"


class Listener:
    """A real server with a certificate, which remembers every header that reached it."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.port = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.keys += [value for name, value in scope["headers"] if name == b"authorization"]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


def bind(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()
    return listener


@contextmanager
def listen(
    pair: Pair | None, authority: Pair | None = None, *, uds: Path | None = None
) -> Iterator[Listener]:
    app = Listener()
    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        ssl_certfile=pair.file if pair else None,
        ssl_keyfile=pair.key if pair else None,
        ssl_ca_certs=str(authority.file) if authority else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) if uds is None else bind(uds) as listener:
        app.port = 0 if uds else int(listener.getsockname()[1])
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield app
        finally:
            server.should_exit = True
            thread.join()


def ask(address: Address) -> bool | None:
    """Ask for health as the supervisor does, with its key."""

    async def ask() -> bool | None:
        assert address.certificate is not None
        tls = address.certificate.pin()
        asker = Asker(OwnListener(address, lambda: [os.getpid()]), "m", SECRET, tls)
        # Whatever the supervisor sends later: its key must not leave with this request.
        asker._client.headers["authorization"] = f"Bearer {SECRET}"
        try:
            return await asker.is_healthy()
        finally:
            await asker.close()

    return asyncio.run(ask())


def find_address(pair: Pair, port: int) -> Address:
    return Address.of(bare_plan("--host", "127.0.0.1", "--port", str(port), *pair.flags))


def test_an_engine_with_its_own_certificate_is_reached_by_https(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    with listen(pair) as engine:
        address = find_address(pair, engine.port)
        assert address.url == f"https://127.0.0.1:{engine.port}"
        assert ask(address) is True
    assert engine.keys == [f"Bearer {SECRET}".encode()]


@pytest.mark.parametrize("kind", ["of its own", "of the same authority", "none"])
def test_another_certificate_at_the_port_gets_no_key(tmp_path: Path, kind: str) -> None:
    authority = make_pair(tmp_path / "authority", "authority", is_authority=True)
    ours = make_pair(tmp_path / "ours", issuer=authority)
    ours.file.write_bytes(ours.pem + authority.pem)  # a full chain, as certbot writes it
    issuer = authority if kind == "of the same authority" else None
    other = make_pair(tmp_path / "other", issuer=issuer)
    with listen(None if kind == "none" else other) as stranger:
        assert ask(find_address(ours, stranger.port)) is False
    assert stranger.keys == []
    with listen(ours) as engine:
        assert ask(find_address(ours, engine.port)) is True


def test_a_certificate_that_expired_is_still_ours(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, days=-1)
    with listen(pair) as engine:
        assert ask(find_address(pair, engine.port)) is True


def test_a_renewed_certificate_is_expected_and_the_one_before_still_is(tmp_path: Path) -> None:
    before, after = make_pair(tmp_path / "before"), make_pair(tmp_path / "after")
    served = tmp_path / "cert.pem"
    shutil.copy(before.file, served)
    pinned = TlsCertificate(served, before.key).pin()

    def reach(pair: Pair) -> int:
        with listen(pair) as engine, httpx.Client(verify=pinned, trust_env=False) as client:
            return client.get(f"https://127.0.0.1:{engine.port}/health").status_code

    assert reach(before) == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        reach(after)
    served.write_text("half a file")
    assert reach(before) == 200
    shutil.copy(after.file, served)
    assert reach(after) == 200
    assert reach(before) == 200


def test_an_engine_that_asks_for_certificates_is_shown_its_own_and_nobody_else_gets_in(
    tmp_path: Path,
) -> None:
    authority = make_pair(tmp_path / "authority", "authority", is_authority=True)
    pair = make_pair(tmp_path / "ours", issuer=authority)
    asking = ("--ssl-ca-certs", str(authority.file), "--ssl-cert-reqs", "2")
    with listen(pair, authority) as engine:
        port = str(engine.port)
        address = Address.of(bare_plan("--host", "127.0.0.1", "--port", port, *pair.flags, *asking))
        assert address.certificate is not None
        assert address.certificate.check(NOW) == ()
        assert ask(address) is True
        assert ask(find_address(pair, engine.port)) is False
    assert engine.keys == [f"Bearer {SECRET}".encode()]


def test_a_certificate_that_the_engine_itself_would_not_accept_is_refused_before_it_starts(
    tmp_path: Path,
) -> None:
    authority = make_pair(tmp_path / "authority", "authority", is_authority=True)
    other = make_pair(tmp_path / "other")
    certificate = TlsCertificate(other.file, other.key, authority=authority.file)
    with pytest.raises(InvalidInputError, match=r"the engine cannot serve with .*certificate"):
        certificate.check(NOW)


def test_a_socket_with_a_certificate_is_reached_too(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    address = Address.of(bare_plan("--uds", str(tmp_path / "it"), *pair.flags))
    assert (address.url, address.socket) == ("https://localhost", str(tmp_path / "it"))
    with listen(pair, uds=tmp_path / "it"):
        assert ask(address) is True


def test_a_sound_pair_of_files_is_accepted_without_a_word(tmp_path: Path) -> None:
    pair = make_pair(tmp_path)
    certificate = TlsCertificate(pair.file, pair.key)
    assert certificate.check(NOW) == ()
    assert certificate.read_names() == ("llm.example.org",)
    both = tmp_path / "both.pem"
    both.write_bytes(pair.pem + pair.key.read_bytes())
    assert TlsCertificate(both).check(NOW) == ()


@pytest.mark.parametrize(("days", "said"), [(-1, "has expired, on"), (5, "expires on")])
def test_a_certificate_near_its_end_is_a_warning(tmp_path: Path, days: float, said: str) -> None:
    pair = make_pair(tmp_path, days=days)
    (warning,) = TlsCertificate(pair.file, pair.key).check(NOW)
    assert said in warning


def test_files_that_no_engine_could_serve_with_are_refused_before_it_starts(tmp_path: Path) -> None:
    pair, other = make_pair(tmp_path / "one"), make_pair(tmp_path / "two")
    locked = make_pair(tmp_path / "three", password=b"secret")
    empty = tmp_path / "empty.pem"
    empty.write_text("nothing")
    faults = {
        "cannot read the certificate .*: No such file": TlsCertificate(tmp_path / "none", pair.key),
        "has no certificate in PEM format": TlsCertificate(empty, pair.key),
        "no such file or directory": TlsCertificate(pair.file, tmp_path / "none"),
        "key values mismatch": TlsCertificate(pair.file, other.key),
        "key.pem: ": TlsCertificate(locked.file, locked.key),
        "no cipher": TlsCertificate(pair.file, pair.key, "NONSENSE"),
    }
    for message, certificate in faults.items():
        with pytest.raises(InvalidInputError, match=message) as caught:
            certificate.check(NOW)
        assert caught.value.hint


def test_a_plan_without_a_certificate_speaks_http() -> None:
    assert TlsCertificate.of(bare_plan("--port", "8000")) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ssl-keyfile", "k"), "--ssl-keyfile without a certificate"),
        (("--ssl-certfile", "c", "--ssl-cert-reqs", "2"), "no authority for them is set"),
    ],
)
def test_what_cannot_work_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        TlsCertificate.of(bare_plan(*words))
