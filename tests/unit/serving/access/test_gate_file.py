"""The gate reads what serving writes, and nobody listens to other machines without a key."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.serving.access.gate_file import (
    GATE_CLASS,
    GATE_VARIABLE,
    GateLimits,
    GateRecording,
    GateSettings,
    KeyDefaults,
    Route,
    is_loopback,
    require_key_for,
)
from slipstream.serving.access.keys import Key
from slipstream.vllm_plugin.gate import settings as gate_settings
from slipstream.vllm_plugin.gate.middleware import Gate

NOW = datetime(2026, 11, 15, tzinfo=UTC)
FULL = GateSettings(
    host="0.0.0.0",
    routes=get_args(Route),
    keys_file=Path("/k"),
    probe_sha256="0" * 64,
    socket=Path("/s"),
    keys=KeyDefaults(requests_at_once=3, routes=("chat", "metrics"), models=("m",)),
    seats=8,
    served_names=("m",),
    refusals_per_second=7,
    speculation=True,
    unsupported_sampling="refuse",
    long_answers="clamp",
    limits=GateLimits(max_tokens=9, body_seconds=0.5),
    recording=GateRecording(folder=Path("/r"), limit_bytes=5, redact=(r"\d+", "x")),
)


def make_key(expires: datetime | None = None) -> Key:
    return Key(id="a", name="", sha256="0" * 64, created=NOW, expires=expires)


@pytest.mark.parametrize("settings", [GateSettings(), FULL])
def test_the_gate_reads_every_setting_as_it_was_written(
    tmp_path: Path, settings: GateSettings
) -> None:
    settings.write(tmp_path / "gate.json")
    read = gate_settings.read_settings({GATE_VARIABLE: str(tmp_path / "gate.json")})
    assert read == settings


def test_the_gates_class_is_where_the_plan_says() -> None:
    assert f"{Gate.__module__}.{Gate.__name__}" == GATE_CLASS


def test_the_defaults_are_those_of_a_careful_server() -> None:
    settings = GateSettings()
    limits = settings.limits
    assert (limits.body_bytes, limits.n, limits.top_logprobs) == (2 * 2**20, 8, 20)
    assert (limits.stop_strings, limits.regex_characters, limits.max_tokens) == (4, 2048, None)
    assert (settings.host, settings.text_only, settings.recording) == ("127.0.0.1", True, None)
    assert settings.routes == (
        "POST /v1/chat/completions",
        "POST /v1/completions",
        "POST /v1/responses",
        "GET /v1/responses/{id}",
        "POST /v1/responses/{id}/cancel",
        "POST /v1/messages",
        "POST /v1/messages/count_tokens",
        "GET /v1/models",
    )


@pytest.mark.parametrize(
    "fault",
    [
        {"routes": ("POST /invocations",)},
        {"probe_sha256": "secret"},
        {"unsupported_sampling": "keep"},
        {"keys": {"requests_at_once": 0}},
        {"limits": {"n": 0}},
        {"limits": {"body_seconds": 0}},
        {"recording": {"folder": "/r", "redact": ["("]}},
        {"key": "secret"},
    ],
)
def test_settings_that_make_no_sense_are_refused(fault: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        GateSettings.model_validate(fault)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("/run/engine.sock", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("", False),
        ("192.0.2.7", False),
        ("localhost.example", False),
    ],
)
def test_who_can_reach_an_address(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_a_server_for_other_machines_needs_a_key() -> None:
    with pytest.raises(InvalidInputError, match=r"can reach 0\.0\.0\.0.* no valid key") as refused:
        require_key_for("0.0.0.0", (), now=NOW)
    assert refused.value.hint == "slipstream keys new"
    with pytest.raises(InvalidInputError, match="can reach every address"):
        require_key_for("", (), now=NOW)
    with pytest.raises(InvalidInputError):
        require_key_for("0.0.0.0", [make_key(expires=NOW)], now=NOW)


def test_a_valid_key_or_the_loopback_is_enough() -> None:
    late = NOW + timedelta(seconds=1)
    require_key_for("0.0.0.0", [make_key(expires=NOW), make_key(expires=late)], now=NOW)
    require_key_for("0.0.0.0", [make_key()], now=NOW)
    require_key_for("127.0.0.1", (), now=NOW)
    assert not is_loopback("0.0.0.0")
