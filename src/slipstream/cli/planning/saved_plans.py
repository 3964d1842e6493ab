"""Plans from files: taken as they are on the machine that they were made for, else made anew."""

import argparse
import shlex
from collections.abc import Iterable
from pathlib import Path

from slipstream.cli.options import OptionAdder
from slipstream.cli.planning.plan import PLAN_HINT, list_plan_options, make_plan, plan_for
from slipstream.cli.planning.targets import find_target
from slipstream.cli.screen import Screen
from slipstream.errors import InvalidInputError, UsageError
from slipstream.hardware import Host
from slipstream.planning import LaunchPlan
from slipstream.planning.powers import find_unnamed, list_powers
from slipstream.records import read_record
from slipstream.user_folders import find_local


def add_allow(add: OptionAdder) -> None:
    """Add the option by which a user trusts a plan's file."""
    add(
        "--allow NAME ...",
        "variables and arguments of a saved plan that may run code or read other files "
        "(default: such a plan is refused, and they are listed)",
        default=[],
    )


def take_plan(options: argparse.Namespace, host: Host, screen: Screen) -> LaunchPlan:
    """Return a saved plan as it is for this machine, or make one."""
    if not find_local(options.target or "").is_file():
        return make_plan(options, host)
    plan = read_saved_plan(options)
    return admit_plan(find_local(options.target), plan, options.allow, host, screen)


def read_saved_plan(options: argparse.Namespace) -> LaunchPlan:
    """Return the plan of a file, which no option may change."""
    plan = read_plan(find_local(options.target))
    words = shlex.join([plan.target, *plan.options.list_words()])
    require_no_plan_options(options, "a saved plan cannot be changed", f"slipstream plan {words}")
    return plan


def read_plan(file: Path) -> LaunchPlan:
    """Read a saved plan; a file of weights in its place is refused as such."""
    if file.suffix == ".gguf":
        find_target(str(file))
    return read_record(file, LaunchPlan, hint=PLAN_HINT)


def require_named(
    file: Path, plans: Iterable[LaunchPlan], allowed: Iterable[str], host: Host | None
) -> None:
    """Raise if plans of a file would run code or read other files that their user has not named."""
    powers = dict.fromkeys(power for plan in plans for power in list_powers(plan, host))
    if unnamed := find_unnamed(powers, allowed):
        names = " ".join(one.removeprefix("--") for one in unnamed)
        raise InvalidInputError(
            f"{file} would set {', '.join(unnamed)}, which can run code or read files",
            hint=f"if you trust it: --allow {names}",
        )


def require_no_plan_options(options: argparse.Namespace, why: str, hint: str) -> None:
    """Raise if an option would change a plan that is already made."""
    changed = [
        f"--{name.removeprefix('default_').replace('_', '-')}"
        for name, default in list_plan_options().items()
        if getattr(options, name, default) != default
    ]
    if options.raw:
        changed.append("--")
    if changed:
        raise UsageError(f"{why}, without {', '.join(changed)}", hint=hint)


def admit_plan(
    file: Path, plan: LaunchPlan, allowed: Iterable[str], host: Host, screen: Screen
) -> LaunchPlan:
    """Return a saved plan for this machine, unless what it would do there has to be named."""
    adapted = _adapt(file, plan, host, screen)
    require_named(file, [adapted], allowed, host)
    return adapted


def _adapt(file: Path, plan: LaunchPlan, host: Host, screen: Screen) -> LaunchPlan:
    """Return a saved plan, made anew from its options if it is for another machine.

    It listens where the saved one would. Settings that were measured, and ranks of a group, hold
    for their machine only.
    """
    if (mismatch := plan.find_mismatch(host)) is None:
        return plan
    message = f"{file} was made for another machine or engine: {mismatch}"
    if plan.group is not None or plan.is_tuned:
        words = shlex.join([plan.target, *plan.options.list_words()])
        hint = "slipstream fleet plan" if plan.group else f"slipstream plan {words}"
        raise InvalidInputError(message, hint=hint)
    screen.show_progress(f"{message}; planning again with its options")
    options = plan.options.model_copy(update={"vllm": None})
    plan_here = plan_for(host, plan.target, options, notes=(f"{message}: planned again",))
    settings = plan.settings
    return plan_here.change(host=settings.host, port=settings.port, uds=settings.uds)
