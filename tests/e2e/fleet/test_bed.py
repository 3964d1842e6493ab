"""The machines that the fleet's tests run on are separate, reach each other, and leave nothing."""

from pathlib import Path

import pytest

from tests.fleet_bed.bed import explain_absence, run_bed

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(bool(explain_absence()), reason=explain_absence() or ""),
]


def test_machines_reach_each_other_by_ssh_and_leave_nothing_behind() -> None:
    with run_bed(["one", "two"], {"COLOUR": "dark blue"}) as bed:
        script = 'hostname; echo "$COLOUR $HOME"; ssh two hostname; sleep 999 >/dev/null 2>&1 &'
        said = bed.control.run(["ssh", "one", script])
        assert said.stdout.split("\n")[:3] == ["one", f"dark blue {bed['one'].home}", "two"]
        assert list(bed["one"].list_processes().values()) == ["sleep 999"]
        left = next(iter(bed["one"].list_processes()))

        carrier = ["cat", "/sys/class/net/link0/carrier"]
        assert bed["one"].run(carrier).stdout == "1\n"
        bed.cut("one")
        assert bed["one"].run(carrier).stdout == "0\n"
        assert bed.control.run(["ssh", "one", "true"]).returncode == 0
        folder = bed.folder
    assert not folder.exists()
    assert not Path(f"/proc/{left}").exists()
