"""`serve` with a certificate, as a service, and in the hands of a restart policy."""

import json
import os
import shlex
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

import slipstream
from slipstream.cli.main import run
from slipstream.errors import ExitCode
from slipstream.serving.supervision.engine_process import GRACE_SECONDS, choose_port
from tests.unit.cli.serving.test_serve import find_runs, pair, serve_until_ready
from tests.unit.serving.access.certificates import make_pair

Capture = pytest.CaptureFixture[str]

__all__ = ["pair"]


def test_a_certificate_is_served_with(pair: list[str], tmp_path: Path, capsys: Capture) -> None:
    made, port = make_pair(tmp_path / "tls", days=3), str(choose_port(None))
    assert serve_until_ready(*pair, "--port", port, "--", *made.flags) == 0
    told = capsys.readouterr().err
    assert f"the certificate {made.file} expires on" in told
    assert f"ready at https://127.0.0.1:{port}" in told


def test_a_fleets_certificate_is_shown_to_the_engine_and_wanted_from_clients(
    pair: list[str], tmp_path: Path, capsys: Capture
) -> None:
    authority = make_pair(tmp_path / "authority", "authority", is_authority=True)
    made, port = make_pair(tmp_path / "tls", issuer=authority), str(choose_port(None))
    made.file.rename(tmp_path / "tls" / "machine.pem")
    made.key.rename(tmp_path / "tls" / "machine.pem.key")
    (tmp_path / "tls" / "ca.pem").write_bytes(authority.pem)
    assert serve_until_ready(*pair, "--port", port, "--tls", "tls") == 0
    assert f"ready at https://127.0.0.1:{port}" in capsys.readouterr().err
    (served,) = find_runs()
    rest = {flag: choice.value for flag, choice in served.plan.settings.rest.items()}
    assert rest["--ssl-cert-reqs"] == ssl.CERT_REQUIRED
    assert rest["--ssl-ca-certs"] == str(tmp_path / "tls" / "ca.pem")
    assert rest["--enable-ssl-refresh"] is True


def test_a_unit_names_the_whole_path_of_a_certificate_and_wants_one_that_is_there(
    pair: list[str], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Beside other workers the command would be one in the test's own folder, which would be bound.
    monkeypatch.setattr(sys, "argv", [f"{sys.prefix}/bin/slipstream"])
    made, saved = make_pair(tmp_path / "tls"), tmp_path / "plan.json"
    relative = tuple(word.replace(f"{tmp_path}/", "") for word in made.flags)
    missing = ("--ssl-certfile", "gone/cert.pem")
    for flags, code in ((made.flags, 0), (relative, 0), (missing, 1)):
        assert run(["plan", *pair, "--json", "--", *flags], os.environ) == 0
        saved.write_text(capsys.readouterr().out)
        assert run(["serve", str(saved), "--unit"], os.environ) == code
        if code == 0:
            assert str(made.file.parent) in capsys.readouterr().out
    assert "would not find gone/cert.pem" in capsys.readouterr().err


@pytest.fixture
def saved(pair: list[str], tmp_path: Path, capsys: Capture) -> Path:
    """Return the file of a saved plan."""
    run(["plan", *pair, "--json"], os.environ)
    file = tmp_path / "plan.json"
    file.write_text(capsys.readouterr().out)
    return file


def test_a_unit_runs_the_same_command(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["serve", str(saved), "--unit", "--port", "9000", "--drain", "60"], os.environ) == 0
    unit = capsys.readouterr().out
    (line,) = [line for line in unit.splitlines() if line.startswith("ExecStart=")]
    assert shlex.split(line)[1:] == ["serve", str(saved), "--port", "9000", "--drain", "60"]
    assert "KillMode=mixed" in unit
    (stop,) = [line for line in unit.splitlines() if line.startswith("TimeoutStopSec=")]
    assert int(stop.partition("=")[2]) > 60 + GRACE_SECONDS


def test_a_unit_keeps_the_recording(saved: Path, tmp_path: Path, capsys: Capture) -> None:
    words = ("--unit", "--drain", "0", "--record", "kept", "--fixed-length", "--redact", "a b")
    assert run(["serve", str(saved), *words], os.environ) == 0
    lines = capsys.readouterr().out.splitlines()
    (start,) = [line for line in lines if line.startswith("ExecStart=")]
    kept = str(tmp_path / "kept")
    expected = ["--drain", "0", "--record", kept, "--redact", "a b", "--fixed-length"]
    assert sorted(shlex.split(start)[3:]) == sorted(expected)
    shown = [line for line in lines if line.startswith(("ReadWritePaths=", "BindPaths="))]
    assert any(kept in line for line in shown)
    assert run(["serve", str(saved), "--unit", "--detach"], os.environ) == 2


def test_a_unit_keeps_what_the_guardian_may_do(
    saved: Path, tmp_path: Path, capsys: Capture
) -> None:
    for words in ("off", "note,restart"):
        assert run(["serve", str(saved), "--unit", "--guardian", words], os.environ) == 0
        assert f" --guardian {words} " in capsys.readouterr().out.replace("\n", " ")


@pytest.mark.parametrize("secret", ["/home/ann/group.key", "~/.config/group.key"])
def test_a_unit_of_a_group_reads_the_groups_secret(
    secret: str, saved: Path, capsys: Capture
) -> None:
    plan = json.loads(saved.read_text())
    members = [{"name": f"n{rank}", "address": f"10.0.0.{rank}"} for rank in (1, 2)]
    group = {"name": "g", "rank": 0, "members": members, "watch_port": 9001}
    plan["group"] = {**group, "secret_file": secret}
    saved.write_text(json.dumps(plan))
    assert run(["serve", str(saved), "--unit"], os.environ) == 0
    # One below ~ is in the home of the service's own user, which it sees anyway.
    assert (secret in capsys.readouterr().out) == secret.startswith("/")


def test_after_its_final_verdict_it_can_stay_without_an_engine(
    pair: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Path(slipstream.__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", f"{source}:{tmp_path / 'fake'}")
    words = "api_server.py: error: unrecognized arguments: --warp-speed"
    rule = {"at": "start", "words": words, "with": []}
    (tmp_path / "fake" / "rules").write_text(json.dumps([rule]))
    command = [sys.executable, "-m", "slipstream", "serve", *pair]
    port = ("--port", str(choose_port(None)))
    ended = subprocess.run([*command, *port], capture_output=True, text=True, check=False)
    assert ended.returncode == ExitCode.ENGINE
    held = subprocess.Popen([*command, *port, "--hold"], stderr=subprocess.PIPE, text=True)
    assert held.stderr is not None
    try:
        for line in held.stderr:
            if "waiting without an engine" in line:
                break
        time.sleep(0.5)
        assert held.poll() is None
        assert len(list((tmp_path / "fake").glob("start-*"))) == 2
        held.send_signal(signal.SIGTERM)
        assert held.wait(10) == ExitCode.ENGINE
    finally:
        held.kill()
        held.stderr.close()
        held.wait()
