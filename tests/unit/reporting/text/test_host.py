"""What `slipstream probe` shows: a linked Spark, a CPU, and a machine that knows little."""

import pytest

from slipstream.hardware import load_host
from slipstream.reporting.text.host import render_host
from tests.snapshots import read_snapshot


@pytest.mark.parametrize("name", ["gb10-linked-1", "cpu-server", "apple-laptop"])
def test_a_machine_is_shown_as_reviewed(name: str) -> None:
    shown = render_host(load_host(name)) + "\n"
    assert shown == read_snapshot(f"probe-{name}.txt", shown)


def test_every_unknown_is_called_unknown() -> None:
    shown = render_host(load_host("apple-laptop"))
    assert "None" not in shown
    assert "64.0 GiB, unknown available" in shown
