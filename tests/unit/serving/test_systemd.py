"""The unit file, whole, and what systemd itself says of it."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slipstream.errors import InvalidInputError
from slipstream.serving.supervision.engine_process import GRACE_SECONDS
from slipstream.serving.systemd import Service, count_stop_seconds, render_unit

SERVICE = Service(
    command=Path("/opt/slipstream/bin/slipstream"),
    plan=Path("/etc/slipstream/qwen3-8b.json"),
    user="slipstream",
    state=Path("/var/lib/slipstream"),
    cache=Path("/var/cache/slipstream"),
    models=Path("/srv/models"),
    drain_seconds=60,
    keys=Path("/etc/slipstream/keys.json"),
)
TEMPLATE = """\
[Unit]
Description=Slipstream serves qwen3-8b
Wants=network-online.target
After=network-online.target nvidia-persistenced.service
StartLimitIntervalSec=900
StartLimitBurst=3

[Service]
Type=exec
User=slipstream
ExecStart=/opt/slipstream/bin/slipstream serve /etc/slipstream/qwen3-8b.json
Environment=XDG_STATE_HOME=/var/lib/slipstream
Environment=SLIPSTREAM_CACHE=/var/cache/slipstream
Environment=HF_HUB_CACHE=/srv/models
Environment=VLLM_CACHE_ROOT=/var/cache/slipstream/vllm
Environment=CUDA_CACHE_PATH=/var/cache/slipstream/cuda
Environment=TRITON_CACHE_DIR=/var/cache/slipstream/triton
Environment=FLASHINFER_WORKSPACE_BASE=/var/cache/slipstream/flashinfer
LoadCredential=keys:/etc/slipstream/keys.json
Environment=SLIPSTREAM_KEYS=%d/keys
KillMode=mixed
TimeoutStopSec={stop_seconds}
Restart=on-failure
RestartSec=5
RestartPreventExitStatus=1 2 3 4
OOMPolicy=continue
LimitNOFILE=65536
LimitMEMLOCK=infinity

# No PrivateDevices: it hides the GPU. No MemoryDenyWriteExecute: kernels are compiled.
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths=/var/lib/slipstream /var/cache/slipstream /srv/models
PrivateTmp=yes
ProtectControlGroups=yes
RestrictSUIDSGID=yes
UMask=0077

[Install]
WantedBy=multi-user.target
"""
UNIT = TEMPLATE.format(stop_seconds=count_stop_seconds(SERVICE.drain_seconds))
ODD = replace(
    SERVICE, plan=Path("/etc/a b/100%/$HOME;.json"), models=Path('/srv/the "big" ones\\new')
)


def complaints(unit: str, folder: Path) -> str:
    """Give what systemd finds wrong with a unit."""
    file = folder / "slipstream.service"
    file.write_text(unit)
    command = ["systemd-analyze", "verify", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_the_unit_file_is_this() -> None:
    assert render_unit(SERVICE) == UNIT


@pytest.mark.parametrize("drain", [0, 30, 600])
def test_systemd_waits_longer_than_the_drain_and_the_grace(drain: int) -> None:
    unit = render_unit(replace(SERVICE, drain_seconds=drain))
    (line,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(line.partition("=")[2]) >= drain + GRACE_SECONDS + 10


def test_without_keys_none_are_loaded() -> None:
    left = set(UNIT.splitlines()) - set(render_unit(replace(SERVICE, keys=None)).splitlines())
    assert left == {
        "LoadCredential=keys:/etc/slipstream/keys.json",
        "Environment=SLIPSTREAM_KEYS=%d/keys",
    }


def test_a_folder_for_two_purposes_is_named_once() -> None:
    unit = render_unit(replace(SERVICE, models=SERVICE.cache))
    assert "ReadWritePaths=/var/lib/slipstream /var/cache/slipstream\n" in unit


def test_a_name_means_itself_to_systemd() -> None:
    unit = render_unit(ODD)
    assert 'serve "/etc/a b/100%%/$$HOME;.json"\n' in unit
    assert ' "/srv/the \\"big\\" ones\\\\new"\n' in unit
    assert 'Environment="HF_HUB_CACHE=/srv/the \\"big\\" ones\\\\new"\n' in unit


@pytest.mark.parametrize(
    "service",
    [
        replace(SERVICE, user="slipstream\nExecStartPre=/bin/sh"),
        replace(SERVICE, plan=Path("/etc/a\nUser=root/plan.json")),
        replace(SERVICE, plan=Path("plan.json")),
        replace(SERVICE, keys=Path("keys.json")),
    ],
)
def test_what_would_mean_something_else_is_refused(service: Service) -> None:
    with pytest.raises(InvalidInputError, match="cannot stand in a unit file"):
        render_unit(service)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize("service", [SERVICE, replace(SERVICE, keys=None), ODD])
def test_systemd_has_nothing_to_complain_of(tmp_path: Path, service: Service) -> None:
    unit = render_unit(replace(service, command=Path(sys.executable), user="root"))
    assert complaints(unit, tmp_path) == ""
    broken = unit.replace("KillMode=mixed", "KillMode=group")
    assert "Failed to parse kill mode" in complaints(broken, tmp_path)
