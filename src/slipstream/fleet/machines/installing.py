"""The same Slipstream on every machine, by a wheel that is made here: nothing is downloaded there.

The wheel holds this very package. It goes into the interpreter that the fleet's file names, which
has the engine, or into a venv of the fleet's own; what it depends on comes with the engine, or
from a folder of wheels.
"""

import base64
import csv
import hashlib
import io
import re
import shlex
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import slipstream
from slipstream.errors import MissingPartError
from slipstream.fleet.machines.commands import VENV, Machines, name_program

WHEELS = ".local/share/slipstream/fleet/wheels"
_TAG = "py3-none-any"
_FILES = ("METADATA", "entry_points.txt")
_MAKE_VENV = f'[ -x "{VENV}/bin/python" ] || python3 -m venv --system-site-packages "{VENV}"'
INSTALL_SECONDS = 300


def make_wheel() -> tuple[str, bytes]:
    metadata = distribution("slipstream")
    stem = f"slipstream-{slipstream.__version__}"
    files = {f"slipstream/{name}": content for name, content in _read_package()}
    for name in _FILES:
        if (text := metadata.read_text(name)) is not None:
            # An editable install may not know yet which version runs.
            text = re.sub(r"(?m)^Version:.*$", f"Version: {slipstream.__version__}", text)
            files[f"{stem}.dist-info/{name}"] = text.encode()
    files[f"{stem}.dist-info/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: slipstream\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
    ).encode()
    files[f"{stem}.dist-info/RECORD"] = _list_record(files, f"{stem}.dist-info/RECORD")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            # A fixed date, so that the same package makes the same wheel.
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), data)
    return f"{stem}-{_TAG}.whl", content.getvalue()


def install(far: Machines, machine: str, wheel: tuple[str, bytes], extra: Path | None) -> None:
    """Put the wheel into a machine's interpreter; `extra` has the wheels that it depends on."""
    name, content = wheel
    far.transport.send(machine, content, f"{WHEELS}/{name}")
    for file in sorted(extra.glob("*.whl")) if extra else ():
        far.transport.send(machine, file, f"{WHEELS}/{file.name}")
    python = far.fleet.machines[machine].python
    if python is None:
        _run(far, machine, ["sh", "-c", _MAKE_VENV], "make a venv")
        python = f"{VENV}/bin/python"
    command = [name_program(python), "-m", "pip", "--disable-pip-version-check", "install"]
    command += ["--no-index", "--force-reinstall", "--find-links", WHEELS]
    command += ["--no-deps"] if extra is None else []
    _run(far, machine, [*command, f"{WHEELS}/{name}"], "install the wheel")


def _run(far: Machines, machine: str, argv: list[str], what: str) -> None:
    answer = far.transport.run(machine, argv, timeout=INSTALL_SECONDS)
    if answer.code:
        raise MissingPartError(
            f"{machine}: cannot {what}: {answer.complaint}",
            hint=far.fleet.hint_ssh(machine, shlex.quote(shlex.join(argv))),
        )


def _read_package() -> list[tuple[str, bytes]]:
    folder = Path(slipstream.__file__).parent
    paths = [path for path in sorted(folder.rglob("*")) if "__pycache__" not in path.parts]
    return [
        (path.relative_to(folder).as_posix(), path.read_bytes()) for path in paths if path.is_file()
    ]


def _list_record(files: dict[str, bytes], own: str) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        writer.writerow([name, f"sha256={digest}", len(content)])
    writer.writerow([own, "", ""])
    return text.getvalue().encode()
