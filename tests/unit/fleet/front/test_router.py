"""The router listens to this machine only, and is started as it was measured."""

from slipstream.fleet.front.router import find_leg_port, render_command
from tests.unit.fleet.front.routers import plan_router


def test_the_router_reaches_each_group_by_a_leg_on_loopback() -> None:
    words = render_command(plan_router("a", "b", port=9000))
    assert words[0] == "vllm-router"
    assert words[words.index("--host") + 1] == "127.0.0.1"
    assert words[words.index("--port") + 1] == "9001"
    assert words[words.index("--worker-urls") + 1 :] == [
        "http://127.0.0.1:9010",
        "http://127.0.0.1:9011",
    ]
    assert find_leg_port(plan_router("a", "b", port=9000), "b") == 9011


def test_a_switch_is_a_word_and_every_setting_has_a_reason() -> None:
    router = plan_router("a")
    words = render_command(router)
    assert "--disable-retries" in words
    assert "True" not in words
    assert words[words.index("--health-check-endpoint") + 1] == "/readyz"
    assert all(choice.because for choice in router.settings.values())


def test_sessions_are_the_routers_consistent_hash() -> None:
    words = render_command(plan_router("a", policy="session"))
    assert words[words.index("--policy") + 1] == "consistent_hash"
