"""One plan per drafting method that `compare --methods` names."""

import argparse
from collections.abc import Mapping, Sequence
from itertools import combinations

from slipstream.cli.planning.plan import make_plan, plan_plain
from slipstream.engines.vllm_methods import METHOD_NAMES, METHODS
from slipstream.errors import InvalidInputError, UsageError
from slipstream.hardware import Host
from slipstream.measuring.comparing.comparison import ComparedArm
from slipstream.measuring.comparing.design import LETTERS
from slipstream.measuring.comparing.verdict import PLAIN
from slipstream.planning import LaunchPlan
from slipstream.user_folders import find_local

HINT = "slipstream compare TARGET --methods dflash=DRAFTER ngram plain"


def plan_methods(options: argparse.Namespace, host: Host) -> tuple[ComparedArm, ...]:
    """Plan the target with each method, `plain` first since it is the baseline."""
    _require_no_other_choice(options)
    drafters = read_methods(options.methods)
    if not 2 <= len(drafters) <= len(LETTERS):
        raise UsageError(
            f"--methods takes 2 to {len(LETTERS)} methods, not {len(drafters)}", hint=HINT
        )
    arms = [
        ComparedArm(name=name, plan=_plan_method(options, name, drafter, host))
        for name, drafter in drafters.items()
        if name != PLAIN
    ]
    if PLAIN in drafters:
        arms.insert(0, ComparedArm(name=PLAIN, plan=plan_plain(arms[0].plan, host)))
    for one, other in combinations(arms, 2):
        if one.plan.argv() == other.plan.argv():
            raise InvalidInputError(
                f"the plans for {one.name} and {other.name} are the same",
                hint=f"leave {other.name} out of --methods",
            )
    return tuple(arms)


def plan_other_methods(
    options: argparse.Namespace, drafters: Mapping[str, str | None], host: Host, chosen: LaunchPlan
) -> dict[str, LaunchPlan]:
    """Plan the target of a plan with each other method; plain is none of them."""
    if drafters and find_local(options.target).is_file():
        raise UsageError(
            "--methods and a saved plan cannot be combined",
            hint=f"slipstream tune {chosen.target} --methods {min(drafters)}",
        )
    known = {PLAIN, chosen.speculation.method.value if chosen.speculation else PLAIN}
    if repeated := known & drafters.keys():
        raise UsageError(
            f"{min(repeated)} is measured anyway", hint=f"leave {min(repeated)} out of --methods"
        )
    return {name: _plan_method(options, name, drafter, host) for name, drafter in drafters.items()}


def _require_no_other_choice(options: argparse.Namespace) -> None:
    others = {
        "--against": options.against,
        "--method": options.method != "auto",
        "--drafter": options.drafter,
        "a saved plan": find_local(options.target).is_file(),
    }
    if excluded := [name for name, value in others.items() if value]:
        raise UsageError(f"--methods and {excluded[0]} cannot be combined", hint=HINT)


def read_methods(words: Sequence[str]) -> dict[str, str | None]:
    """Return each method with its drafter, None if `plan` is to choose it."""
    drafters: dict[str, str | None] = {}
    for word in words:
        name, equals, drafter = word.partition("=")
        if name not in METHOD_NAMES:
            names = ", ".join(METHOD_NAMES)
            raise UsageError(f"unknown method '{name}'", hint=f"--methods takes {names}")
        if name in drafters:
            raise UsageError(f"--methods names {name} twice", hint=f"--methods {name}")
        takes_drafter = name != PLAIN and METHODS[name].needs in ("drafter", "model")
        if equals and not (drafter and takes_drafter):
            raise UsageError(
                f"'{word}' names no drafter that {name} could use", hint=f"--methods {name}"
            )
        drafters[name] = drafter or None
    return drafters


def _plan_method(
    options: argparse.Namespace, method: str, drafter: str | None, host: Host
) -> LaunchPlan:
    changed = {**vars(options), "method": method, "drafter": drafter}
    return make_plan(argparse.Namespace(**changed), host)
