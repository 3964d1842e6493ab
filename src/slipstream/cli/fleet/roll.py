"""`slipstream fleet roll`: one group after the other gets a new plan; all go back if one fails."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import whole_number
from slipstream.cli.fleet.board import Board
from slipstream.cli.fleet.options import (
    add_fleet,
    add_force,
    add_probing,
    add_saved_plan,
    add_trial,
    choose_groups,
    load_fleet,
    look_at,
    plan_fleet,
    read_limits,
    require_canary,
)
from slipstream.cli.fleet.plan import FLEET_PLAN_HINT
from slipstream.cli.measuring_options import require_writable, write_report
from slipstream.cli.screen import Screen
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UnreachableError, UsageError
from slipstream.fleet.canary.far_groups import FarGroups, FarTrial, keep_canary, open_trial
from slipstream.fleet.front.deploying import deploy_front, require_router
from slipstream.fleet.lease import HeldLease, holding
from slipstream.fleet.openssh import open_ssh
from slipstream.fleet.plan import FleetPlan
from slipstream.fleet.record import Fleet
from slipstream.fleet.roll import Rollout, Version, begin
from slipstream.fleet.rolling import DRAIN_SECONDS, FleetPerformer, carry_out
from slipstream.fleet.rollout_files import read_plans, read_rollout, save_plans, save_rollout
from slipstream.fleet.served_plan import read_served_plan
from slipstream.fleet.starting import require_startable
from slipstream.fleet.transport import Transport
from slipstream.fleet.weights import spread_weights
from slipstream.records import read_record
from slipstream.reporting.pages.canary import render_canary_html
from slipstream.reporting.text.fleet_roll import render_rollout

RESUME_HINT = "slipstream fleet roll --resume"


EXAMPLES = """\
# roll the plan of today's fleet.toml out to one group after another
slipstream fleet roll
# continue a rollout that was interrupted
slipstream fleet roll --resume
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet roll`."""
    parser.add_argument(
        "group",
        metavar="GROUP",
        nargs="*",
        help="groups to update (default: all, in the file's order)",
    )
    add_fleet(parser)
    add_probing(parser)
    add_saved_plan(parser)
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue a rollout that was interrupted, on any machine",
    )
    parser.add_argument(
        "--drain",
        type=whole_number,
        metavar="SECONDS",
        default=int(DRAIN_SECONDS),
        help=f"time that a group's requests have to finish (default {DRAIN_SECONDS:.0f})",
    )
    add_force(parser)
    add_trial(parser)


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Roll, and show the record; one that went back leaves with 4, one that is stuck with 3."""
    fleet = load_fleet(options)
    require_router(fleet)
    if options.resume and (options.group or options.plan or options.canary):
        raise UsageError("a rollout goes on as it was begun", hint=RESUME_HINT)
    require_writable(options.html)
    require_canary(tuple(fleet.groups), options.canary)
    with (
        open_ssh(fleet) as transport,
        holding(fleet, transport, "roll", force=options.force) as lease,
    ):
        show, trial = Board(screen, fleet.machines).show, None
        if options.resume:
            rollout, plans = _find_left(fleet, transport)
        else:
            _require_none_left(fleet, transport)
            plans = _find_plans(options, fleet, transport, screen)
            names = tuple(choose_groups(fleet, options.group))
            require_startable(plans["new"], names)
            # Before a group is closed: the rest takes minutes, a model may take hours.
            spread_weights(plans["new"], [*names], transport, show)
            if options.canary:
                trial = _Trial.open(options, fleet, transport, names, screen)
            now = datetime.now(UTC)
            identity, canary = f"{now:%Y%m%d-%H%M%S}", min(options.canary, len(names))
            rollout = begin(identity, fleet.name, names, now, canary=canary)
            save_plans(fleet, transport, plans)
        judge = trial.judge if trial else None
        performer = FleetPerformer(fleet, plans, transport, show, options.drain, judge)
        rollout = _carry_out(rollout, performer, fleet, transport, lease)
        if rollout.state == "done":
            deploy_front(plans["new"], transport)
    screen.show_data(text=render_rollout(rollout), document=rollout.to_json())
    codes = {"done": ExitCode.DONE, "went back": ExitCode.GATE_MISSED}
    return codes.get(rollout.state, ExitCode.ENGINE)


@dataclass(frozen=True, slots=True)
class _Trial:
    """What requests say about the first groups of a rollout, kept and shown as a canary."""

    trial: FarTrial
    page: Path | None
    screen: Screen

    @classmethod
    def open(
        cls,
        options: argparse.Namespace,
        fleet: Fleet,
        transport: Transport,
        names: Sequence[str],
        screen: Screen,
    ) -> "_Trial":
        canary = names[: options.canary]
        others = [group for group in fleet.groups if group not in canary]
        groups = FarGroups(fleet, transport, screen.show_progress)
        trial = open_trial(groups, "plan", canary, others, read_limits(options))
        return cls(trial, options.html, screen)

    def judge(self) -> str:
        """Return why the plan is promoted; any other verdict is a failure."""
        groups, verdict = self.trial.groups, self.trial.decide()
        record = self.trial.trial.describe(verdict, name="the new plan", done=())
        keep_canary(groups.fleet, groups.transport, record)
        if self.page:
            write_report(self.page, render_canary_html(record), self.screen)
        if verdict.outcome != "promote":
            raise EngineError(f"{verdict.outcome}: {verdict.because}", hint="slipstream fleet top")
        return verdict.because


def _carry_out(
    rollout: Rollout,
    performer: FleetPerformer,
    fleet: Fleet,
    transport: Transport,
    lease: HeldLease,
) -> Rollout:
    try:
        return carry_out(
            rollout,
            performer,
            save=lambda one: save_rollout(fleet, transport, one),
            check=lease.require,
        )
    except UnreachableError as fault:
        raise EngineError(
            f"the rollout is left as it stands: {fault.message}",
            details=fault.details,
            hint=f"{fault.hint}; then {RESUME_HINT}",
        ) from fault


def _find_plans(
    options: argparse.Namespace, fleet: Fleet, transport: Transport, screen: Screen
) -> dict[Version, FleetPlan]:
    old = read_served_plan(fleet, transport)
    if options.plan is not None:
        return {"old": old, "new": read_record(options.plan, FleetPlan, hint=FLEET_PLAN_HINT)}
    return {"old": old, "new": plan_fleet(fleet, look_at(options, fleet, transport, screen))}


def _find_left(fleet: Fleet, transport: Transport) -> tuple[Rollout, dict[Version, FleetPlan]]:
    rollout = read_rollout(fleet, transport)
    if rollout is None or rollout.state in ("done", "went back"):
        raise InvalidInputError("no rollout was left", hint="slipstream fleet roll")
    if rollout.state == "stuck":
        # It is tried again from the step that failed.
        rollout = rollout.model_copy(update={"state": "going back"})
    return rollout, read_plans(fleet, transport)


def _require_none_left(fleet: Fleet, transport: Transport) -> None:
    rollout = read_rollout(fleet, transport)
    if rollout is not None and rollout.state not in ("done", "went back"):
        raise InvalidInputError(
            f"the rollout {rollout.id} was left while it was {rollout.state}", hint=RESUME_HINT
        )
