"""What the front is told: who may pass, by which way, and what becomes of a group that is gone."""

import re

import pytest

from slipstream.errors import InvalidInputError
from slipstream.fleet.front.haproxy import UNSUPPORTED, render_front
from tests.unit.fleet.front.routers import plan_router


def read_section(text: str, title: str) -> list[str]:
    """Return the lines of one section."""
    rest = text.split(f"\n{title}\n", 1)[1]
    return [line.strip() for line in rest.split("\n\n", 1)[0].splitlines()]


def test_only_planned_routes_pass_and_only_with_a_key() -> None:
    clients = read_section(render_front(plan_router("a", "b")), "frontend clients")
    (posted,) = [line for line in clients if line.startswith("acl posted path")]
    assert "/v1/chat/completions" in posted.split()
    assert "/v1/models" in " ".join(clients)
    assert not any("add_worker" in line or "{id}" in line for line in clients)
    refusals = [line for line in clients if "status 404" in line or "status 401" in line]
    passed = next(at for at, line in enumerate(clients) if line.startswith("use_backend"))
    assert len(refusals) == 2
    assert all(clients.index(line) < passed for line in refusals)


def test_what_the_router_does_wrong_goes_past_it() -> None:
    clients = read_section(render_front(plan_router("a", "b")), "frontend clients")
    (balanced,) = [line for line in clients if line.startswith("acl balanced path")]
    assert balanced.split()[3:] == ["/v1/chat/completions", "/v1/completions"]
    assert clients[-1] == "default_backend gates"


def test_a_leg_leads_to_its_group_and_then_to_its_neighbours() -> None:
    text = render_front(plan_router("a", "b", "c", "d"))
    leg = read_section(text, "backend leg-d")
    servers = [line.split()[1] for line in leg if line.startswith("server ")]
    assert servers == ["d", "a", "b"]
    assert "balance first" in leg
    assert "check-sni spark-4 verifyhost spark-4" in next(
        line for line in leg if line.startswith("server d ")
    )


def test_every_server_shows_a_certificate_and_wants_one() -> None:
    text = render_front(plan_router("a", "b", plain=("b",)))
    for backend in ("leg-a", "leg-b", "gates", "plain", "router"):
        (tls,) = [one for one in read_section(text, f"backend {backend}") if "ca-file" in one]
        assert "verify required" in tls
        assert "crt ../tls/machine.pem" in tls
    assert "verify none" not in text


def test_only_a_mixed_fleet_looks_into_bodies() -> None:
    for plain in ((), ("a", "b")):
        text = render_front(plan_router("a", "b", plain=plain))
        assert "req.body" not in text
        assert "backend plain" not in text
    mixed = render_front(plan_router("a", "b", plain=("b",)))
    servers = [one for one in read_section(mixed, "backend plain") if one.startswith("server ")]
    assert [one.split()[1] for one in servers] == ["b"]
    assert "use_backend plain if unsupported { nbsrv(plain) gt 0 }" in mixed


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ('{"min_p": 0.05}', True),
        ('{"min_p":1}', True),
        ('{"logit_bias": {"50256": -100}}', True),
        ('{"n": 1,\n "min_p" :\t0.1,"a":2}', True),
        ('{"min_p": 0}', False),
        ('{"min_p": 0.0, "n": 1}', False),
        ('{"min_p": null, "logit_bias": null}', False),
        ('{"logit_bias": { }}', False),
        ('{"messages": [{"content": "set \\"min_p\\": 0.5, please"}]}', False),
        ('{"messages": [{"content": "min_p"}]}', False),
    ],
)
def test_a_body_asks_for_what_speculation_cannot_do(body: str, found: bool) -> None:
    assert bool(re.search(UNSUPPORTED, body)) is found


def test_sessions_are_set_where_a_client_names_none() -> None:
    text = render_front(plan_router("a", policy="session"))
    assert "set-header x-session-id %[var(txn.bearer)]%[src] if !{ req.hdr(x-session-id)" in text
    assert "del-header x-session-id" in render_front(plan_router("a"))


def test_a_front_without_groups_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="nothing to route to"):
        render_front(plan_router())


def test_an_address_of_version_6_is_bracketed() -> None:
    assert "server a [fd00::1]:8000" in render_front(plan_router("a", address="fd00::{}"))
