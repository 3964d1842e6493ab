"""What `fleet init` and `fleet keys` brought to each machine."""

from collections.abc import Mapping

from slipstream.cli.fleet.options import raise_first
from slipstream.cli.screen import Screen
from slipstream.errors import SlipstreamError
from slipstream.fleet.trust.distribution import Delivery, DeliveryList


def show_deliveries(answers: Mapping[str, Delivery | SlipstreamError], screen: Screen) -> None:
    """Show what was brought; a machine that could not be reached is the command's failure."""
    done = [one for one in answers.values() if isinstance(one, Delivery)]
    width = max((len(one.machine) for one in done), default=0)
    text = "\n".join(f"{one.machine:<{width}}  {_describe(one)}" for one in done)
    screen.show_data(text=text, document=DeliveryList(deliveries=tuple(done)).to_json())
    faults = {name: one for name, one in answers.items() if isinstance(one, SlipstreamError)}
    raise_first(faults, screen)


def _describe(delivery: Delivery) -> str:
    news = [
        f"new certificate: {reason}"
        for reason in (delivery.certificate, delivery.front)
        if reason is not None
    ]
    keys = [] if delivery.keys is None else [f"{delivery.keys} keys"]
    return "; ".join([*news, *keys]) or "nothing new"
