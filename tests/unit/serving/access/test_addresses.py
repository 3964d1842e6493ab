"""An address that cannot be had is told at once, and a socket that nobody serves is in no way."""

import socket
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.access.addresses import Address
from slipstream.serving.supervision.engine_process import choose_port
from tests.unit.planning.bare_plans import bare_plan


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::1", "http://[::1]:8000"),
    ],
)
def test_a_client_on_this_machine_has_its_url(host: str, url: str) -> None:
    address = Address.of(bare_plan("--host", host, "--port", "8000"))
    assert (address.url, address.host, address.socket) == (url, host, None)


def test_a_free_port_is_free_and_a_taken_one_is_told() -> None:
    port = choose_port(None)
    address = Address.of(bare_plan("--host", "127.0.0.1", "--port", str(port)))
    address.require_free()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(InvalidInputError, match=f"port {port}: Address already in use"):
            address.require_free()


def test_an_address_that_is_none_of_this_machine_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="cannot listen"):
        Address.of(bare_plan("--host", "192.0.2.1", "--port", "8000")).require_free()


def test_a_stale_socket_is_removed_and_a_served_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "it"
    address = Address.of(bare_plan("--uds", str(path)))
    address.require_free()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        with pytest.raises(InvalidInputError, match="another server is listening"):
            address.require_free()
        assert path.exists()
    address.require_free()
    assert not path.exists()


def test_a_file_in_the_place_of_a_socket_stays(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_text("mine")
    with pytest.raises(InvalidInputError, match="cannot listen"):
        Address.of(bare_plan("--uds", str(path))).require_free()
    assert path.read_text() == "mine"
