"""The unit file, whole, and what systemd itself says of it."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.service.systemd import Service, render_unit
from slipstream.serving.supervision.engine_process import GRACE_SECONDS
from tests.snapshots import read_snapshot

SERVICE = Service(
    command=Path("/opt/slipstream/bin/slipstream"),
    plan=Path("/etc/slipstream/qwen3-8b.json"),
    drain_seconds=60,
    keys=Path("/etc/slipstream/keys.json"),
    models=Path("/srv/models"),
)
ODD = replace(
    SERVICE, plan=Path("/etc/a b/100%/$HOME;.json"), models=Path('/srv/the "big" ones\\new')
)


HIGHEST_EXPOSURE = 2.5


def ask_systemd(unit: str, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    file = folder / "slipstream.service"
    file.write_text(unit)
    command = ["systemd-analyze", *words, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_unit_file_is_this() -> None:
    unit = render_unit(SERVICE)
    assert unit == read_snapshot("slipstream.service", unit)


@pytest.mark.parametrize("drain", [0, 30, 600])
def test_systemd_waits_longer_than_the_drain_and_the_grace(drain: int) -> None:
    unit = render_unit(replace(SERVICE, drain_seconds=drain))
    (line,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(line.partition("=")[2]) >= drain + GRACE_SECONDS + 10


def test_without_keys_and_models_of_others_it_has_its_own() -> None:
    own = render_unit(replace(SERVICE, keys=None, models=None))
    left = set(render_unit(SERVICE).splitlines()) - set(own.splitlines())
    assert left == {
        "Environment=SLIPSTREAM_KEYS=/etc/slipstream/keys.json",
        "Environment=HF_HUB_CACHE=/srv/models",
        "ReadWritePaths=/srv/models",
    }
    assert "Environment=HF_HUB_CACHE=%C/slipstream/models\n" in own


def test_keys_are_read_where_they_lie_so_that_a_change_counts_without_a_restart() -> None:
    assert "LoadCredential" not in render_unit(SERVICE)
    unit = render_unit(replace(SERVICE, keys=Path("/home/alice/keys/keys.json")))
    assert "BindReadOnlyPaths=/home/alice/keys\n" in unit  # a file would stay the old one


def test_what_lies_in_a_home_is_shown_to_the_service_and_nothing_else_of_it() -> None:
    home = Path("/home/alice")
    service = replace(
        SERVICE,
        plan=home / "plan.json",
        models=home / "models",
        recording=Path("/srv/kept"),
        read=(home / "venv" / "bin", home / "venv", Path("/usr"), home / "tls"),
    )
    lines = render_unit(service).splitlines()
    assert "ProtectHome=tmpfs" in lines
    shown = "BindReadOnlyPaths=/home/alice/plan.json /home/alice/venv /home/alice/tls"
    assert shown in lines
    assert "BindPaths=/home/alice/models" in lines
    assert "ReadWritePaths=/srv/kept" in lines


def test_a_name_means_itself_to_systemd() -> None:
    unit = render_unit(ODD)
    assert 'serve "/etc/a b/100%%/$$HOME;.json"\n' in unit
    assert 'ReadWritePaths="/srv/the \\"big\\" ones\\\\new"\n' in unit
    assert 'Environment="HF_HUB_CACHE=/srv/the \\"big\\" ones\\\\new"\n' in unit


@pytest.mark.parametrize(
    "service",
    [
        replace(SERVICE, plan=Path("/etc/a\nUser=root/plan.json")),
        replace(SERVICE, plan=Path("plan.json")),
        replace(SERVICE, keys=Path("keys.json")),
        replace(SERVICE, keys=Path("/etc/keys\nUser=root")),
        replace(SERVICE, options=("--redact", "a\nUser=root")),
    ],
)
def test_what_would_mean_something_else_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInputError, match="is not allowed in a unit file"):
        render_unit(service)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("service", [SERVICE, replace(SERVICE, keys=None, models=None), ODD])
def test_systemd_has_nothing_to_complain_of(tmp_path: Path, service: Service) -> None:
    unit = render_unit(replace(service, command=Path(sys.executable)))
    unit = unit.replace("User=slipstream", "User=root")
    assert ask_systemd(unit, tmp_path, "verify").stderr == ""
    broken = unit.replace("KillMode=mixed", "KillMode=group")
    assert "Failed to parse kill mode" in ask_systemd(broken, tmp_path, "verify").stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_little_exposed(tmp_path: Path) -> None:
    words = ("security", "--offline=true", "--no-pager", f"--threshold={HIGHEST_EXPOSURE * 10:.0f}")
    judged = ask_systemd(render_unit(SERVICE), tmp_path, *words)
    (overall,) = re.findall(r"Overall exposure level.*: ([\d.]+)", judged.stdout)
    sys.stdout.write(f"exposure {overall}; without the confinement it was 8.3\n")
    assert judged.returncode == 0, judged.stdout
    assert float(overall) <= HIGHEST_EXPOSURE
    bare = re.sub(r"(?m)^(SystemCallFilter|Restrict|Protect).*\n", "", render_unit(SERVICE))
    assert ask_systemd(bare, tmp_path, *words).returncode != 0
