"""`slipstream fleet roll`: one group after the other gets a new plan; all return if one fails."""

import argparse
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime

from slipstream.cli.fleet import Board, add_fleet, add_force, choose_groups, load_fleet
from slipstream.cli.fleet.plan import add_probing, add_saved_plan, take_fleet_plan
from slipstream.cli.options import OptionAdder, natural_number, positive_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UnreachableError, UsageError
from slipstream.fleet.balancer.deploying import deploy_balancer, require_balancer
from slipstream.fleet.machines.commands import Machines
from slipstream.fleet.machines.lease import holding
from slipstream.fleet.machines.openssh import open_ssh
from slipstream.fleet.machines.weights import spread_weights
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.rolling.rollout import Rollout, Version, begin
from slipstream.fleet.rolling.steps import (
    DRAIN_SECONDS,
    TRIAL_SECONDS,
    FleetPerformer,
    carry_out,
    read_plans,
    read_rollout,
    read_served_plan,
    save_plans,
    save_rollout,
)
from slipstream.fleet.running.starting import require_startable
from slipstream.fleet.trust import find_authority, renew_certificates
from slipstream.reporting.fleet.status import render_rollout

EXAMPLES = """\
# roll the plan of today's fleet.toml out to one group after another
slipstream fleet roll
# continue a rollout that was interrupted
slipstream fleet roll --resume
"""


def add_arguments(add: OptionAdder) -> None:
    add("[GROUP ...]", "groups to update (default: all, in the file's order)")
    add_fleet(add)
    add_probing(add)
    add_saved_plan(add)
    add(
        "--drain SECONDS",
        f"seconds that a group's open requests get to finish (default {DRAIN_SECONDS:.0f})",
        whole_number,
        int(DRAIN_SECONDS),
    )
    add_rollout(add)


def add_rollout(add: OptionAdder) -> None:
    """Add the options of every rollout."""
    add("--resume", "continue a rollout that was interrupted, on any machine")
    add(
        "--canary GROUPS",
        "number of groups that try the change first, until a test on their requests decides "
        "(default 0: none)",
        natural_number,
        0,
    )
    hours = TRIAL_SECONDS / 3600
    add(
        "--hours N",
        "hours after which to roll back if the canary's requests have not decided "
        f"(default {hours:g})",
        positive_number,
        hours,
    )
    add_force(add)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Roll, and show the record; one that is rolled back leaves with 4."""
    fleet = load_fleet(options)
    require_balancer(fleet)
    if options.resume and (options.group or options.plan or options.canary):
        raise UsageError(
            "--resume continues a rollout unchanged", hint="slipstream fleet roll --resume"
        )
    require_canary(tuple(fleet.groups), options.canary)
    with open_ssh(fleet) as far, holding(far, "roll", force=options.force) as held:
        show = Board(screen, fleet.machines).show
        plans: dict[Version, FleetPlan] = {}
        if (rollout := find_left(held, resume=options.resume)) is None:
            planned = take_fleet_plan(options, held, screen)
            names = tuple(choose_groups(fleet, options.group))
            require_startable(planned, names)
            plans["old"] = read_served_plan(held, planned, names)
            others = [one for one in plans["old"].groups if one.name not in names]
            plans["new"] = planned.replace_groups({one.name: one for one in others})
            renew_certificates(held, find_authority(options.fleet, fleet.name), datetime.now(UTC))
            # Before a group is closed: the rest takes minutes, a model may take hours.
            spread_weights(plans["new"], [*names], held, show)
            save_plans(held, plans)
            rollout = begin_now(fleet, names, options)
        return finish(held, rollout, plans, screen, drain_seconds=options.drain)


def begin_now(
    fleet: Fleet, names: Sequence[str], options: argparse.Namespace, drafter: str | None = None
) -> Rollout:
    """Begin a rollout of groups in this order, named after this moment."""
    now = datetime.now(UTC)
    return begin(
        # A swap knows its order by it.
        f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}",
        fleet.name,
        tuple(names),
        now,
        canary=min(options.canary, len(names)),
        trial_seconds=3600 * options.hours,
        drafter=drafter,
    )


def finish(
    far: Machines,
    rollout: Rollout,
    plans: dict[Version, FleetPlan],
    screen: Screen,
    *,
    drain_seconds: float = DRAIN_SECONDS,
) -> ExitCode:
    """Carry a rollout out to its end, and show its record."""
    if not plans and rollout.drafter is None:
        plans = read_plans(far)
    show = Board(screen, far.fleet.machines).show
    try:
        rollout = carry_out(
            rollout,
            FleetPerformer(far, rollout, plans, show, drain_seconds),
            save=lambda one: save_rollout(far, one),
        )
    except UnreachableError as fault:
        raise EngineError(
            f"the rollout is interrupted: {fault.message}",
            details=fault.details,
            hint=f"{fault.hint}; then {name_resume(rollout)}",
        ) from fault
    if rollout.state == "done" and plans:
        deploy_balancer(plans["new"], far)
    screen.show_data(text=render_rollout(rollout), document=rollout.to_json())
    codes = {"done": ExitCode.DONE, "rolled back": ExitCode.GATE_MISSED}
    return codes.get(rollout.state, ExitCode.ENGINE)


def find_left(far: Machines, *, resume: bool) -> Rollout | None:
    """Return the rollout that was left before its end; only `resume` goes on after one."""
    left = read_rollout(far)
    if left is not None and left.state in ("done", "rolled back"):
        left = None
    if resume and left is None:
        raise InvalidInputError("there is no interrupted rollout", hint="slipstream fleet roll")
    if left is not None and not resume:
        what = f"rollout {left.id} was interrupted while {left.state}"
        raise InvalidInputError(what, hint=name_resume(left))
    if left is not None and left.state == "rollback failed":
        # It is tried again from the step that failed.
        return left.model_copy(update={"state": "rolling back"})
    return left


def require_canary(groups: Sequence[str], number: int) -> None:
    """Refuse a canary that leaves no group unchanged."""
    if number and number >= len(groups):
        raise InvalidInputError(
            f"{number} of {len(groups)} groups cannot be a canary: one must stay unchanged",
            hint="--canary 1" if len(groups) > 1 else "leave --canary out",
        )


def name_resume(rollout: Rollout) -> str:
    """Return the command that goes on with a rollout."""
    return f"slipstream fleet {'roll' if rollout.drafter is None else 'swap'} --resume"
