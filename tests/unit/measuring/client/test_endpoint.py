"""A server's address is taken in the forms people write, and its key is never shown."""

from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.client.endpoint import KEY_VARIABLE, Endpoint, read_key


@pytest.mark.parametrize("tail", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1(tail: str) -> None:
    assert Endpoint(f"http://127.0.0.1:8000{tail}").base == "http://127.0.0.1:8000"
    assert Endpoint(f"https://some.where/api{tail}").base == "https://some.where/api"


@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "127.0.0.1", "ftp://x", "http://", "http://x:port"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="is not the address of a server"):
        _ = Endpoint(url).base


def test_the_key_goes_into_a_header_and_nowhere_else() -> None:
    endpoint = Endpoint("http://x", key="sk-secret")
    assert endpoint.headers == {"Authorization": "Bearer sk-secret"}
    assert "secret" not in repr(endpoint)
    assert Endpoint("http://x").headers == {}


def test_a_keys_file_beats_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text("sk-file\n")
    assert read_key(file, {KEY_VARIABLE: "sk-variable"}) == "sk-file"
    assert read_key(None, {KEY_VARIABLE: " sk-variable\n"}) == "sk-variable"
    assert read_key(None, {}) is None


@pytest.mark.parametrize("content", [b"", b" \n", b"two\nlines", "ключ".encode(), b"\xff"])
def test_a_file_without_a_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(InvalidInputError, match="key") as failed:
        read_key(tmp_path / "key", {})
    assert "two" not in str(failed.value)


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="gone"):
        read_key(tmp_path / "gone", {})
