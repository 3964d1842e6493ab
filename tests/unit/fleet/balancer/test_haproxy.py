"""What HAProxy is told: who may pass, and which group each request goes to."""

import re

import pytest

from slipstream.errors import InvalidInputError
from slipstream.fleet.balancer.haproxy import UNSUPPORTED, render_balancer
from tests.unit.fleet.balancer.balancers import plan_balancer


def read_section(text: str, title: str) -> list[str]:
    rest = text.split(f"\n{title}\n", 1)[1]
    return [line.strip() for line in rest.split("\n\n", 1)[0].splitlines()]


def test_only_planned_routes_pass_and_only_with_a_key() -> None:
    clients = read_section(render_balancer(plan_balancer("a", "b")), "frontend clients")
    (posted,) = [line for line in clients if line.startswith("acl posted path")]
    assert "/v1/chat/completions" in posted.split()
    assert "/v1/models" in " ".join(clients)
    assert not any("{id}" in line for line in clients)
    refusals = [line for line in clients if "status 404" in line or "status 401" in line]
    passed = next(at for at, line in enumerate(clients) if line.startswith("use_backend"))
    assert len(refusals) == 2
    assert all(clients.index(line) < passed for line in refusals)


def test_every_group_is_checked_once_shows_a_certificate_and_wants_one() -> None:
    text = render_balancer(plan_balancer("a", "b", plain=("b",)))
    assert "default-server ssl verify required ca-file ../tls/ca.pem crt ../tls/machine.pem" in text
    assert "verify none" not in text
    for backend, names in (("gates", "ab"), ("sessions", "ab"), ("plain", "b")):
        servers = [
            one for one in read_section(text, f"backend {backend}") if one.startswith("server ")
        ]
        assert [one.split()[1] for one in servers] == list(names)
        for one, name in zip(servers, names, strict=True):
            machine = {"a": "spark-1", "b": "spark-2"}[name]
            assert f"check-sni {machine} verifyhost {machine}" in one
            assert (" check inter" in one) is (backend == "gates")
            assert (f"track gates/{name}" in one) is (backend != "gates")


def test_only_a_mixed_fleet_looks_into_bodies() -> None:
    for plain in ((), ("a", "b")):
        text = render_balancer(plan_balancer("a", "b", plain=plain))
        assert "req.body" not in text
        assert "backend plain" not in text
    mixed = render_balancer(plan_balancer("a", "b", plain=("b",)))
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


def test_the_policy_session_makes_a_session_of_whoever_names_none() -> None:
    line = "set-header x-session-id %[var(txn.bearer)]%[src] if !{ req.hdr(x-session-id)"
    assert line in render_balancer(plan_balancer("a", policy="session"))
    assert line not in render_balancer(plan_balancer("a"))


def test_an_address_of_version_6_is_bracketed_and_no_group_at_all_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="nothing to balance"):
        render_balancer(plan_balancer())
    text = render_balancer(plan_balancer("a", address="fd00::{}"))
    assert "server a [fd00::1]:8000" in text
    assert re.search(r"bind .*:8300\" v4v6 ", text)
