"""The gate reads what serving writes, and nobody listens to other machines without a key."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.serving.access.gate_file import (
    GATE_CLASS,
    GATE_VARIABLE,
    ROUTES,
    GateLimits,
    GateMedia,
    GateRecording,
    GateRules,
    GateSettings,
    KeyDefaults,
    Route,
    apply_rules,
    is_loopback,
    read_rules,
    require_key_for,
)
from slipstream.serving.access.keys import Key, KeyTerms, Scope
from slipstream.vllm_plugin.gate import settings as gate_settings
from slipstream.vllm_plugin.gate.middleware import Gate
from slipstream.vllm_plugin.gate.routes import SCOPES

NOW = datetime(2026, 11, 15, tzinfo=UTC)
FULL = GateSettings(
    host="0.0.0.0",
    routes=get_args(Route),
    keys_file=Path("/k"),
    probe_sha256="0" * 64,
    socket=Path("/s"),
    keys=KeyDefaults(concurrent_requests=3, routes=("chat", "metrics"), models=("m",)),
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


@pytest.mark.parametrize(
    "fault",
    [
        {"routes": ("POST /invocations",)},
        {"probe_sha256": "secret"},
        {"unsupported_sampling": "keep"},
        {"keys": {"concurrent_requests": 0}},
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


def test_a_server_for_other_machines_needs_a_valid_key() -> None:
    late = NOW + timedelta(seconds=1)
    require_key_for("0.0.0.0", [make_key(expires=NOW), make_key(expires=late)], now=NOW)
    require_key_for("0.0.0.0", [make_key()], now=NOW)
    require_key_for("127.0.0.1", (), now=NOW)
    for host, keys in (("0.0.0.0", ()), ("", ()), ("0.0.0.0", [make_key(expires=NOW)])):
        with pytest.raises(InvalidInputError, match=host or "every address") as refused:
            require_key_for(host, keys, now=NOW)
        assert refused.value.hint == "slipstream keys new"


PAGE = Path(__file__).parents[4] / "docs" / "gate.md"


def write(folder: Path, text: str) -> Path:
    (folder / "gate.toml").write_text(text)
    return folder / "gate.toml"


def test_routes_go_by_their_short_names(tmp_path: Path) -> None:
    text = """
        routes = ["chat", "models", "POST /tokenize"]
        [limits]
        max_tokens = 2048
        [media]
        hosts = ["a.example.org", "xn--p1ai.com"]
        [keys]
        routes = ["chat", "metrics"]
        tokens_per_minute = 100_000
    """
    rules = read_rules(write(tmp_path, text))
    assert rules.routes == ("POST /v1/chat/completions", "GET /v1/models", "POST /tokenize")
    assert rules.limits.max_tokens == 2048
    assert rules.media.hosts == ("a.example.org", "xn--p1ai.com")
    assert (rules.keys.routes, rules.keys.tokens_per_minute) == (("chat", "metrics"), 100_000)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("rotues = []", "rotues: Extra inputs are not permitted; did you mean routes?"),
        ("[limits]\nmax_token = 3", "limits.max_token: Extra inputs .*; did you mean max_tokens?"),
        ("[keys]\nwieght = 3", "keys.wieght: Extra inputs .*; did you mean weight?"),
        ("[limits]\nn = 0", "limits.n: Input should be greater than 0"),
        ('constraints = "some"', "constraints: Input should be 'plain' or 'any'"),
        ('routes = ["docs"]', r"routes\[0\]: Input should be 'POST /v1/chat/completions'"),
        *(
            (f'[media]\nhosts = ["{host}"]', f"media.hosts: .*'{host}' is not a public host name")
            for host in ("10.0.0.1", "localhost", "a.internal", "https://a.org", "A.org")
        ),
        ('host = "0.0.0.0"', "host: Extra inputs are not permitted"),
        ("routes = [", "is not TOML"),
    ],
)
def test_what_cannot_be_rules_is_refused_by_its_key(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        read_rules(write(tmp_path, text))
    assert re.search(fault, "\n".join((refused.value.message, *refused.value.details)))
    assert "docs/gate.md" in refused.value.hint


def test_rules_change_what_is_the_users_and_keys_stay_required() -> None:
    before = GateSettings(host="/run/a", keys_required=True, seats=3)
    after = apply_rules(before, GateRules(retry_after_seconds=9), keys_required=True)
    assert after == before.model_copy(update={"retry_after_seconds": 9})


def test_a_model_that_generates_has_no_routes_for_vectors_and_the_other_way_round() -> None:
    asked = GateRules(routes=("POST /v1/messages", "GET /v1/models", "POST /v1/rerank"))
    both = (asked, GateRules())
    generating = [apply_rules(GateSettings(), one, keys_required=False).routes for one in both]
    assert generating == [("POST /v1/messages", "GET /v1/models"), GateRules().routes]
    pooling = GateSettings(generates=False)
    given = [apply_rules(pooling, one, keys_required=False).routes for one in both]
    vectors = ("POST /pooling", "POST /v1/embeddings", "POST /v1/rerank", "POST /v1/score")
    assert given == [("GET /v1/models", "POST /v1/rerank"), ("GET /v1/models", *vectors)]


def test_the_page_shows_every_key_with_its_default(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    written = re.sub(r"^# (\w+ = )", r"\1", shown, flags=re.MULTILINE)
    assert read_rules(write(tmp_path, shown)) == GateRules()
    for kind in (GateRules, type(GateRules().limits), GateMedia, KeyDefaults):
        for name in kind.model_fields:
            assert re.search(rf"^(?:\[{name}\]|{name} = )", written, re.MULTILINE), name


def test_the_gate_and_the_command_have_the_same_words() -> None:
    named = {route: name for name, routes in ROUTES.items() for route in routes}
    assert named | {"GET /metrics": "metrics"} == SCOPES
    assert {*get_args(Scope)} == {*SCOPES.values()}
    assert {*get_args(Route)} == {*named}
    assert {*KeyTerms.model_fields} == {*KeyDefaults.model_fields}
