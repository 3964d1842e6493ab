"""Goals as they are typed, and what a fleet cannot be sized for."""

import pytest

from slipstream.errors import UsageError
from slipstream.sizing.money import MachinePrice, price_tokens, require_whole
from slipstream.sizing.service_goal import parse_service_goal


def test_limits_are_read_and_written_alike() -> None:
    goal = parse_service_goal(["ttft<1s@p95", "TPOT <= 30 ms @ p99"])
    assert str(goal) == "ttft<1s@p95, tpot<30ms@p99"
    assert str(parse_service_goal(["throughput"])) == "throughput"


@pytest.mark.parametrize("word", ["tpot<30ms", "ttft<0s@p95", "ttft<1s@p100", "fast", "latency"])
def test_what_is_no_limit_is_refused(word: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_service_goal([word])
    assert "ttft<1s@p95" in caught.value.hint


def test_a_bought_machine_costs_its_price_by_the_hour_and_its_power() -> None:
    price = MachinePrice(purchase=4383, years=0.5, watts=200, per_kilowatt_hour=0.25)
    assert price.hourly == pytest.approx(1.0 + 0.05)
    assert price_tokens(price, 10, 2e6) == pytest.approx(5.25)


def test_what_was_not_given_is_unknown() -> None:
    assert MachinePrice().hourly is None
    assert price_tokens(MachinePrice(), 10, 2e6) is None
    assert MachinePrice().show(None) == "unknown"


@pytest.mark.parametrize(
    "given", [{"purchase": 1}, {"watts": 1}, {"per_hour": 1, "purchase": 1, "years": 1}]
)
def test_half_of_a_price_is_refused(given: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        require_whole(MachinePrice.model_validate(given))
