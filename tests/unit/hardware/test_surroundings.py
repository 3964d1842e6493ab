"""Box, container, disk and links are read from a file tree that a test can lay out."""

from pathlib import Path

import pytest

from slipstream.hardware.surroundings import (
    read_container,
    read_disk,
    read_fabric,
    read_product,
)


def lay_out(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_a_jetson_is_named_by_its_device_tree(tmp_path: Path) -> None:
    lay_out(tmp_path, {"proc/device-tree/model": "NVIDIA Jetson AGX Thor Developer Kit\0"})
    assert read_product(tmp_path) == "NVIDIA Jetson AGX Thor Developer Kit"


def test_a_spark_is_named_by_dmi(tmp_path: Path) -> None:
    lay_out(tmp_path, {"sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n"})
    assert read_product(tmp_path) == "NVIDIA_DGX_Spark"


def test_a_nameless_box_stays_unknown(tmp_path: Path) -> None:
    assert read_product(tmp_path) is None


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
