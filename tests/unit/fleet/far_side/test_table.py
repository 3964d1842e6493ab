"""Every request comes in as JSON and goes out as JSON, and nothing else is taken."""

import io
import json
import sys
from pathlib import Path

import pytest

from slipstream.cli.main import run
from slipstream.fleet.far_side.table import NAMES
from slipstream.fleet.machines.commands import name_request
from slipstream.fleet.machines.lease import LeaseRequest
from slipstream.fleet.plan import MachineView

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def ask(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    return run(["fleet", "far", name, "--json"], {})


def test_a_request_is_carried_out_and_answered(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    request = LeaseRequest(
        fleet="lab", action="take", owner="a" * 32, holder="me@desk", purpose="up"
    )
    name = name_request(request)[2]
    assert ask(monkeypatch, name, request.model_dump_json()) == 0
    lease = json.loads(capsys.readouterr().out)
    assert lease["owner"] == "a" * 32
    assert [one.name for one in home.rglob("lease.json")] == ["lease.json"]
    assert ask(monkeypatch, "DescribeMachine", "{}") == 0
    assert MachineView.model_validate_json(capsys.readouterr().out).slipstream is not None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("LeaseRequest", ""),
        ("LeaseRequest", "[]"),
        (
            "LeaseRequest",
            '{"fleet": "../x", "action": "take", "owner": "", "holder": "", "purpose": ""}',
        ),
        ("BalancerRequest", '{"fleet": "lab", "action": "explode"}'),
        ("DescribeMachine", '{"unknown": 1}'),
        ("Nothing", "{}"),
    ],
)
def test_what_is_no_request_is_refused(
    name: str, text: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    assert ask(monkeypatch, name, text) == 2
    assert json.loads(capsys.readouterr().err)["error"]["message"]
    assert list(home.rglob("*.json")) == []


def test_requests_have_names_of_their_own_and_are_not_shown_to_people(capsys: Capture) -> None:
    assert all(kind.__name__ == name for name, kind in NAMES.items())
    run(["fleet"], {})
    assert " far " not in capsys.readouterr().out
