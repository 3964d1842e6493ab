"""The machines that ship are whole, sourced, what they claim to be, and can serve or not."""

from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.hardware import Host, find_obstacle, list_machines, load_host, name_kind
from slipstream.hardware.host import KINDS

CAPABILITIES = {
    "a100-40": "8.0",
    "a100-80": "8.0",
    "b200": "10.0",
    "b300": "10.3",
    "gb10": "12.1",
    "gb10-linked-1": "12.1",
    "gh200": "9.0",
    "h100": "9.0",
    "h200": "9.0",
    "jetson-thor": "11.0",
    "l4": "8.9",
    "l40s": "8.9",
    "mi300x": None,
    "rtx-3090": "8.6",
    "rtx-4080-super": "8.9",
    "rtx-4090": "8.9",
    "rtx-5090": "12.0",
    "rtx-pro-6000": "12.0",
    "strix-halo": None,
}
UNIFIED = ("gb10", "gb10-linked-1", "jetson-thor", "strix-halo")


def test_every_kind_of_machine_is_there() -> None:
    assert set(list_machines()) == {*CAPABILITIES, "apple-laptop", "cpu-server"}
    assert set(KINDS.values()) == set(CAPABILITIES) - {"gb10-linked-1"}


@pytest.mark.parametrize("name", list_machines())
def test_a_machine_says_its_source_and_can_serve_unless_a_mac(name: str) -> None:
    host = load_host(name)
    assert host.origin.startswith(("captured by", "reconstructed: "))
    assert (find_obstacle(host) is None) is (name != "apple-laptop")


@pytest.mark.parametrize(("name", "capability"), CAPABILITIES.items())
def test_a_machine_has_the_capability_of_its_chip(name: str, capability: str) -> None:
    assert load_host(name).accelerators[0].compute_capability == capability


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_machine_has_a_kind_of_its_own_name_and_one_memory_if_unified(name: str) -> None:
    host = load_host(name)
    (one,) = host.accelerators
    assert name_kind(host) == name.removesuffix("-linked-1")
    assert (one.memory_kind == "unified") is (name in UNIFIED)
    assert (one.memory_total_bytes == host.memory.total_bytes) is (name in UNIFIED)
    assert host.on_rocm is (name in ("mi300x", "strix-halo"))
    assert None not in (one.memory_available_bytes, one.memory_bandwidth_bytes_per_s)


@pytest.mark.parametrize(
    ("accelerator", "kind"),
    [
        ("NVIDIA H100 NVL", "h100"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("NVIDIA GH200 120GB", "gh200"),
        ("NVIDIA H200 NVL", "h200"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA L40", None),
        ("NVIDIA GB200", "b200"),
        ("NVIDIA GeForce RTX 4080", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "rtx-pro-6000"),
    ],
)
def test_the_kind_is_told_from_the_name(accelerator: str, kind: str | None) -> None:
    host = load_host("h100")
    one = host.accelerators[0].model_copy(update={"name": accelerator})
    assert name_kind(host.model_copy(update={"accelerators": (one,)})) == kind


def test_linked_sparks_have_an_active_link_and_a_lone_one_has_none() -> None:
    linked = load_host("gb10-linked-1").fabric
    assert [port.rate_gbit_per_s for port in linked if port.active] == [200, 200]
    assert load_host("gb10").fabric == ()


@pytest.mark.parametrize(
    ("changes", "lack"),
    [
        ({"features": ()}, "lacks avx2"),
        ({"architecture": "riscv64", "model": None}, "no CPU build for riscv64"),
    ],
)
def test_a_cpu_that_vllm_cannot_use_is_refused(changes: dict[str, Any], lack: str) -> None:
    host = load_host("cpu-server")
    processor = host.processor.model_copy(update=changes)
    obstacle = find_obstacle(host.model_copy(update={"processor": processor}))
    assert obstacle is not None
    assert lack in obstacle.message


@pytest.mark.parametrize(
    ("name", "machines", "accelerators", "link"),
    [
        ("h100", 1, 1, None),
        ("h100x1", 1, 1, None),
        ("h100x8", 1, 8, "nvlink"),
        ("rtx-5090x2", 1, 2, "pcie"),
        ("1x-h100x2", 1, 2, "nvlink"),
        ("2x-gb10", 2, 1, None),
        ("4x-h100x8", 4, 8, "nvlink"),
    ],
)
def test_a_name_says_how_many(name: str, machines: int, accelerators: int, link: str) -> None:
    host = load_host(name)
    assert (host.machines, len(host.accelerators)) == (machines, accelerators)
    assert [one.index for one in host.accelerators] == list(range(accelerators))
    assert {one.link for one in host.accelerators} == {link}
    assert any(port.active for port in host.fabric) is (machines > 1)
    assert Host.model_validate_json(host.to_json()) == host


def test_linked_sparks_have_the_rate_of_their_ports() -> None:
    ports = load_host("2x-gb10").fabric
    assert [port.rate_gbit_per_s for port in ports if port.active] == [200, 200]


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("gb10x2", "--host 2x-gb10"),
        ("cpu-serverx2", "--host 2x-cpu-server"),
        ("h300", "probe --json"),
        ("0x-h100", "probe --json"),
        ("h100x0", "probe --json"),
        ("h100x100", "probe --json"),
        ("~no-such-user", "probe --json"),
        ("h" * 300, "probe --json"),
        ("h100\0", "probe --json"),
        ("RTX 4090", "--host rtx-4090"),
        ("4090", "--host rtx-4090"),
        ("DGX Spark", "--host gb10"),
    ],
)
def test_a_name_that_is_no_machine_is_refused_with_what_to_type(name: str, part: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        load_host(name)
    assert part in refused.value.hint


def test_the_names_and_how_to_count_are_in_the_refusal() -> None:
    with pytest.raises(InvalidInputError) as refused:
        load_host("h1000")
    assert "h100" in refused.value.details[0]
    assert "Nx-NAME" in refused.value.details[1]
