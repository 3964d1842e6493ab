"""`slipstream fleet keys`: the keys of the fleet's file on every machine, without a restart."""

import argparse
from collections.abc import Mapping

from slipstream.cli.fleet import add_fleet, add_force, load_fleet, raise_first
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, InvalidInputError, SlipstreamError
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.trust import Delivery, DeliveryList, deliver_keys

EXAMPLES = """\
# send the fleet's keys to every machine
slipstream fleet keys
# the same for another fleet
slipstream fleet keys --fleet lab.toml
"""


def add_arguments(add: OptionAdder) -> None:
    add_fleet(add)
    add_force(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Send the keys to all machines; gates and the load balancer follow within a second."""
    fleet = load_fleet(options)
    if fleet.keys is None:
        raise InvalidInputError(
            "the fleet has no keys", hint='[keys] file = "keys.json" in the fleet\'s file'
        )
    with open_ssh(fleet) as far, holding(far, "keys", force=options.force) as held:
        answers = deliver_keys(held)
    show_deliveries(answers, screen)
    return ExitCode.DONE


def show_deliveries(answers: Mapping[str, Delivery | SlipstreamError], screen: Screen) -> None:
    """Show what was brought; a machine that could not be reached is the command's failure."""
    done = [one for one in answers.values() if isinstance(one, Delivery)]
    width = max((len(one.machine) for one in done), default=0)
    text = "\n".join(f"{one.machine:<{width}}  {_describe(one)}" for one in done)
    screen.show_data(text=text, document=DeliveryList(deliveries=tuple(done)).to_json())
    faults = {name: one for name, one in answers.items() if isinstance(one, SlipstreamError)}
    raise_first(faults, screen)


def _describe(delivery: Delivery) -> str:
    reasons = [reason for reason in (delivery.certificate, delivery.balancer) if reason is not None]
    keys = [] if delivery.keys is None else [f"{delivery.keys} keys"]
    news = [f"new certificate: {reason}" for reason in reasons]
    return "; ".join([*news, *keys]) or "unchanged"
