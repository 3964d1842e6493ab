"""Interfaces are read with the RDMA devices behind them, and what is odd is left out."""

import json
from pathlib import Path

import pytest

from slipstream.fleet.far_side.this_machine import read_ephemeral_ports, read_interfaces

ADDRESSES = [
    {"ifname": "lo", "flags": ["LOOPBACK", "UP"], "mtu": 65536, "addr_info": []},
    {
        "ifname": "enp1s0f1np1",
        "flags": ["BROADCAST", "UP"],
        "mtu": 9000,
        "operstate": "UP",
        "addr_info": [
            {"local": "fe80::1", "prefixlen": 64},
            {"local": "fd00::5", "prefixlen": 64},
            {"local": "192.168.177.11", "prefixlen": 24},
        ],
    },
    {"ifname": "enp1s0f0np0", "flags": [], "mtu": 1500, "operstate": "DOWN", "addr_info": []},
]


def make_root(root: Path) -> None:
    for device, interface, state in (
        ("rocep1s0f1", "enp1s0f1np1", "4: ACTIVE"),
        ("rocep1s0f0", "enp1s0f0np0", "1: DOWN"),
    ):
        device_folder = root / "sys/class/infiniband" / device
        (device_folder / "device/net" / interface).mkdir(parents=True)
        port = device_folder / "ports/1"
        for folder in ("gids", "gid_attrs/types"):
            (port / folder).mkdir(parents=True)
        (port / "state").write_text(f"{state}\n")
        entries = [
            ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", "IB/RoCE v1"),
            ("0000:0000:0000:0000:0000:ffff:c0a8:b10b", "RoCE v2"),
        ]
        for index, (gid, kind) in enumerate(entries):
            (port / f"gids/{index}").write_text(f"{gid}\n")
            (port / f"gid_attrs/types/{index}").write_text(f"{kind}\n")
    (root / "sys/class/net/enp1s0f1np1").mkdir(parents=True)
    (root / "sys/class/net/enp1s0f1np1/speed").write_text("200000\n")


def test_a_port_with_a_cable_is_told_from_one_without(tmp_path: Path) -> None:
    make_root(tmp_path)
    cabled, bare = read_interfaces(tmp_path, lambda _: json.dumps(ADDRESSES))
    assert cabled.name == "enp1s0f1np1"
    assert cabled.addresses == ("192.168.177.11/24", "fd00::5/64")
    assert (cabled.up, cabled.mtu, cabled.speed_gbit_per_s) == (True, 9000, 200)
    assert (cabled.rdma_device, cabled.rdma_active, cabled.gid_index) == ("rocep1s0f1", True, 2)
    assert (bare.up, bare.rdma_device, bare.rdma_active) == (False, "rocep1s0f0", False)
    assert bare.gid_index is None


@pytest.mark.parametrize("said", [None, "", "not json", "[1, 2]"])
def test_a_machine_without_ip_has_no_interfaces(tmp_path: Path, said: str | None) -> None:
    assert read_interfaces(tmp_path, lambda _: said) == ()


def test_the_kernels_own_ports_are_read(tmp_path: Path) -> None:
    assert read_ephemeral_ports(tmp_path) is None
    file = tmp_path / "proc/sys/net/ipv4/ip_local_port_range"
    file.parent.mkdir(parents=True)
    file.write_text("32768\t60999\n")
    assert read_ephemeral_ports(tmp_path) == (32768, 60999)
