"""What the load balancer's machine keeps: states of servers, and a unit for the next boot."""

from pathlib import Path

import pytest

from slipstream.fleet.balancer import control
from slipstream.fleet.balancer.haproxy import CONFIGURATION, SERVER_STATES
from slipstream.fleet.record import find_folder

STATE = "2 gates {id} {name} {address} 2 1 1 1 9 6 3 4 6 0 0 0 - {port} - 0 0 - - 0\n"


def write(folder: Path, *servers: str) -> None:
    lines = [f"    server {server} id 1 check" for server in servers]
    (folder / CONFIGURATION).write_text("\n".join(["backend gates", *lines, ""]))


def test_a_server_that_moved_is_not_looked_for_at_its_old_port(tmp_path: Path) -> None:
    write(tmp_path, "a 10.0.0.1:8000", "b 10.0.0.2:8005", "c [fd00::3]:8000")
    states = [
        STATE.format(id=number, name=name, address=address, port=8000)
        for number, (name, address) in enumerate(
            [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("c", "fd00::3"), ("gone", "10.0.0.4")], 1
        )
    ]
    head = "1\n# be_id be_name srv_id srv_name srv_addr srv_op_state\n"
    (tmp_path / SERVER_STATES).write_text(head + "".join(states))
    control._forget_moved(tmp_path)
    kept = (tmp_path / SERVER_STATES).read_text()
    assert kept == head + states[0] + states[2]


@pytest.mark.parametrize("place", [find_folder("lab"), "elsewhere/lab"])
def test_the_keeper_of_a_fleet_is_started_at_boot_until_it_is_stopped(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "loginctl").write_text('#!/bin/sh\necho "$1" > "$HOME/asked"\n')
    (tmp_path / "loginctl").chmod(0o700)
    folder = tmp_path / place / "balancer"
    folder.mkdir(parents=True)
    control._start_at_boot(folder, ["/usr/bin/python", "-m", "keeper", "/a b", "$HOME"])
    name, units = "slipstream-balancer-lab.service", tmp_path / ".config/systemd/user"
    if place.startswith("elsewhere"):
        assert not units.exists()
        return
    assert (units / "default.target.wants" / name).readlink() == units / name
    unit = (units / name).read_text().splitlines()
    assert 'ExecStart=/usr/bin/python -m keeper "/a b" $$HOME' in unit
    assert "WantedBy=default.target" in unit
    assert (tmp_path / "asked").read_text() == "enable-linger\n"
    control.stop(folder)
    assert [path for path in units.rglob("*") if not path.is_dir()] == []
