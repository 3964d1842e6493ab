"""In a container the server is reachable and closed, or not reachable."""

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest

from slipstream.errors import InvalidInputError
from slipstream.hardware import Host, load_host
from slipstream.hardware.host import Container
from slipstream.serving.access.keys import read_keys
from slipstream.serving.service.container import (
    decide_bind,
    is_host_network,
    read_variable_key,
    require_readable,
    without_key,
    write_key,
)

NOW = datetime(2026, 11, 15, tzinfo=UTC)
SECRET = "0f" * 32


def host_in(container: Container | None) -> Host:
    return load_host("cpu-server").model_copy(update={"container": container})


def make_network(folder: Path, *, of_the_host: bool) -> Path:
    """Lay out interfaces: a pair of a container has no device, a card has one."""
    for name in ("lo", "eth0"):
        (folder / name).mkdir()
    if of_the_host:
        (folder / "eth0" / "device").mkdir()
    return folder


@pytest.mark.parametrize(
    ("container", "has_key", "of_the_host", "bind"),
    [
        *(("none", has_key, False, None) for has_key in (True, False)),
        *((None, has_key, False, None) for has_key in (True, False)),
        *((kind, True, True, "0.0.0.0") for kind in get_args(Container) if kind != "none"),
        *((kind, True, False, "0.0.0.0") for kind in get_args(Container) if kind != "none"),
        ("docker", False, True, None),
    ],
)
def test_with_a_key_every_address_is_served_and_without_one_the_loopback_of_the_host(
    tmp_path: Path, container: Container | None, has_key: bool, of_the_host: bool, bind: str | None
) -> None:
    network = make_network(tmp_path, of_the_host=of_the_host)
    assert decide_bind(host_in(container), has_key=has_key, interfaces=network) == bind


def test_without_a_key_a_network_of_its_own_is_refused_with_what_to_type(tmp_path: Path) -> None:
    network = make_network(tmp_path, of_the_host=False)
    with pytest.raises(InvalidInputError, match="there is no valid key") as caught:
        decide_bind(host_in("docker"), has_key=False, interfaces=network)
    assert caught.value.hint == (
        "docker run --rm --log-driver none -v slipstream:/var/lib/slipstream IMAGE keys new, "
        "then -v slipstream:/var/lib/slipstream here too"
    )


def test_a_network_that_cannot_be_seen_is_not_taken_for_the_hosts(tmp_path: Path) -> None:
    assert not is_host_network(tmp_path / "nothing")


def test_the_variable_is_kept_by_its_hash(tmp_path: Path) -> None:
    key = read_variable_key({"VLLM_API_KEY": f"{SECRET}\n"}, NOW)
    assert key is not None
    write_key(tmp_path / "keys.json", key)
    assert read_keys(tmp_path / "keys.json") == (key,)
    assert key.sha256 == sha256(SECRET.encode()).hexdigest()
    assert SECRET not in (tmp_path / "keys.json").read_text()


@pytest.mark.parametrize("variable", ["MODEL_PATH", "DFLASH_DRAFTER"])
def test_a_model_that_this_user_cannot_read_is_refused_with_all_its_closed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (tmp_path / name).touch()
    require_readable({variable: str(tmp_path)})
    monkeypatch.setattr("os.access", lambda path, _: Path(path).suffix != ".safetensors")
    with pytest.raises(InvalidInputError, match="cannot read the model") as caught:
        require_readable({variable: str(tmp_path)})
    assert [Path(path).name for path in caught.value.details] == ["a.safetensors", "b.safetensors"]
    assert caught.value.hint.startswith("chmod -R a+rX ")


@pytest.mark.parametrize("name", ["", "off", "z-lab/Qwen3.5-27B-DFlash"])
def test_what_is_not_a_folder_is_not_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    asked: list[str] = []
    monkeypatch.setattr("os.access", lambda path, _: asked.append(path))
    require_readable({"DFLASH_DRAFTER": name})
    assert asked == []


@pytest.mark.parametrize("environment", [{}, {"VLLM_API_KEY": ""}, {"VLLM_API_KEY": " "}])
def test_an_empty_variable_is_no_key(environment: dict[str, str]) -> None:
    assert read_variable_key(environment, NOW) is None


def test_a_key_that_can_be_guessed_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInputError, match="8 characters") as caught:
        read_variable_key({"VLLM_API_KEY": "changeme"}, NOW)
    assert "changeme" not in f"{caught.value.message} {caught.value.hint}"
    assert "openssl rand -hex 32" in caught.value.hint


def test_the_engine_does_not_get_the_key() -> None:
    assert without_key({"VLLM_API_KEY": SECRET, "HOME": "/home"}) == {"HOME": "/home"}
