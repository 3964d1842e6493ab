"""A wheel of the package that runs is made here and installed there, without an index."""

import csv
import hashlib
import io
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import pytest

from slipstream import __version__
from slipstream.errors import MissingPartError
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.installing import install, make_wheel
from tests.unit.fleet.far_machines import FarMachines, make_fleet, say

FLEET = make_fleet(
    machines={"one": {}, "two": {"python": "~/env/bin/python", "ssh": "me@far:2022"}}
)


def test_the_wheel_is_whole_and_the_same_every_time() -> None:
    name, content = make_wheel()
    assert name == f"slipstream-{__version__}-py3-none-any.whl"
    assert make_wheel()[1] == content
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        record = archive.read(f"slipstream-{__version__}.dist-info/RECORD").decode()
        rows = {row[0]: row[1] for row in csv.reader(io.StringIO(record))}
        assert rows.keys() == set(archive.namelist())
        digest = hashlib.sha256(archive.read("slipstream/cli/main.py")).digest()
        entry = archive.read(f"slipstream-{__version__}.dist-info/entry_points.txt")
    shown = urlsafe_b64encode(digest).rstrip(b"=").decode()
    assert rows["slipstream/cli/main.py"] == f"sha256={shown}"
    assert b"slipstream.cli.main:run_and_exit" in entry


@pytest.mark.parametrize(
    ("machine", "python"),
    [("one", ".local/share/slipstream/fleet/venv/bin/python"), ("two", "./env/bin/python")],
)
def test_nothing_is_downloaded_there(machine: str, python: str, tmp_path: Path) -> None:
    (tmp_path / "pydantic-2-py3-none-any.whl").write_bytes(b"wheel")
    machines = FarMachines(lambda *_: say(""))
    install(Machines(FLEET, machines), machine, ("slipstream.whl", b"ours"), tmp_path)
    command = machines.commands[-1][1]
    assert command[0] == python
    assert "--no-index" in command
    assert "--no-deps" not in command
    sent = {Path(path).name: content for (_, path), content in machines.files.items()}
    assert sent == {"slipstream.whl": b"ours", "pydantic-2-py3-none-any.whl": b"wheel"}
    made = [argv for _, argv in machines.commands if "-m venv" in " ".join(argv)]
    assert len(made) == (machine == "one")


def test_an_install_that_fails_is_told_with_its_command() -> None:
    machines = FarMachines(lambda *_: say("", 1, b"no pip\n"))
    with pytest.raises(MissingPartError, match="two: cannot install the wheel: no pip") as caught:
        install(Machines(FLEET, machines), "two", ("slipstream.whl", b""), None)
    assert caught.value.hint.startswith("ssh -p 2022 me@far './env/bin/python -m pip ")
    assert "--no-deps" in caught.value.hint
