"""`slipstream fleet init`: a fleet.toml to begin with, then certificates and keys."""

import argparse
import json
from datetime import UTC, datetime

from slipstream.cli.fleet import add_fleet, add_force, load_fleet
from slipstream.cli.fleet.keys import show_deliveries
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.record import read_fleet, render_skeleton
from slipstream.fleet.trust import deliver, find_authority, make_authority, read_authority

EXAMPLES = """\
# a fleet.toml for two machines that together run one engine
slipstream fleet init spark-1 spark-2 --together --model Qwen/Qwen3-8B
# certificates and keys for the machines of a fleet.toml that exists
slipstream fleet init
"""


def add_arguments(add: OptionAdder) -> None:
    add("[MACHINE ...]", "SSH names of the machines, for a new fleet.toml")
    add_fleet(add)
    add("--model MODEL", "local folder or hub name of the model, for a new fleet.toml")
    add("--drafter DRAFTER", "local folder or hub name of the drafter (default: from the recipes)")
    add("--name NAME", "name of the fleet", default="fleet")
    add("--together", "run one engine over all machines (default: one on each)")
    text = "additional host name in the load balancer's certificate; may be repeated"
    add("--balancer-name HOST", text, action="append", default=[])
    add_force(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Write the file if there is none, or else see that its machines know each other."""
    if not options.fleet.exists():
        _write(options, screen)
        return ExitCode.DONE
    if options.machine or options.model:
        raise UsageError(f"{options.fleet} already exists", hint="--fleet OTHER.toml")
    fleet, now = load_fleet(options), datetime.now(UTC)
    folder = find_authority(options.fleet, fleet.name)
    with open_ssh(fleet) as far, holding(far, "init", force=options.force) as held:
        authority = read_authority(folder)
        if authority is None:
            authority = make_authority(folder, fleet.name, now)
            screen.show_progress(f"created a certificate authority; its key stays in {folder}")
        answers = deliver(held, authority, now=now, names=options.balancer_name)
    show_deliveries(answers, screen)
    return ExitCode.DONE


def _write(options: argparse.Namespace, screen: Screen) -> None:
    if not options.machine or options.model is None:
        raise UsageError(
            f"there is no {options.fleet}", hint="slipstream fleet init MACHINE ... --model MODEL"
        )
    text = render_skeleton(
        options.name,
        options.machine,
        target=options.model,
        drafter=options.drafter,
        together=options.together,
    )
    options.fleet.write_text(text)
    try:
        read_fleet(options.fleet)
    except BaseException:
        options.fleet.unlink()
        raise
    screen.show_data(
        text=f"wrote {options.fleet}\n\nnext: slipstream fleet plan --fleet {options.fleet}",
        document=json.dumps({"fleet": str(options.fleet)}),
    )
