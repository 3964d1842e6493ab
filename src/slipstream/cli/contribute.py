"""`slipstream contribute`: measure a pair here, and make a recipe of it that others can use."""

import argparse
import os
import re
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli import compare, verify
from slipstream.cli.arguments import make_verb_parser
from slipstream.cli.plan import add_wishes, find_host, plan_plain, take_plan
from slipstream.cli.screen import Screen
from slipstream.engines.installed import require_engine
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host
from slipstream.measuring.comparing.comparison import ComparedArm, Comparison
from slipstream.measuring.comparing.verdict import PLAIN
from slipstream.measuring.contribution import (
    Contribution,
    hold_against_plan,
    make_recipe,
    render_toml,
)
from slipstream.measuring.contribution_evidence import add_figures, begin_evidence
from slipstream.measuring.verifying.certificate import Certificate
from slipstream.planning import LaunchPlan
from slipstream.recipes import Recipe
from slipstream.recipes.published import HUB_NAME
from slipstream.reporting.serving.doctor import render_bundle
from slipstream.reporting.text.contribution import render_contribution
from slipstream.reporting.text.plan import render_plan
from slipstream.serving.run import expected_phases, find_runs_root
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.serving.support.bundle import Bundle
from slipstream.user_folders import slipstream_cache

STARTS = 6  # four of the comparison, two of the certificate
# Without an earlier start: what vLLM takes to load, and to read a gigabyte of weights.
START_SECONDS, SECONDS_PER_GIGABYTE = 60, 2
QUICK = {"prompts": "2", "max-tokens": "32", "concurrency": "1 4", "workload": "code prose"}
WHOLE = {
    "prompts": "8",
    "max-tokens": "128",
    "concurrency": "1 4 8",
    "workload": "code reasoning dialogue prose",
}


EXAMPLES = """\
# what would be measured, and how long it takes
slipstream contribute Qwen/Qwen3-8B --dry-run
# measure, and write a recipe with its evidence
slipstream contribute Qwen/Qwen3-8B --by jane
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `contribute`."""
    parser.add_argument("target", metavar="TARGET", help="model folder, or model on the hub")
    add_wishes(parser)
    parser.add_argument("--by", default="anonymous", help="name that the catalogue shows")
    parser.add_argument(
        "--target-name", metavar="OWNER/NAME", help="hub name of a target in a local folder"
    )
    parser.add_argument(
        "--drafter-name", metavar="OWNER/NAME", help="hub name of a drafter in a local folder"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few short prompts: a trial, weak as evidence"
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=Path,
        default=Path("contribution"),
        help="new folder for the recipe and its evidence (default contribution)",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the plan, the steps and the time, and stop"
    )
    parser.add_argument(
        "--host", metavar="NAME|FILE", help="with --dry-run: plan for another machine"
    )
    parser.usage = "slipstream contribute TARGET [options] [-- ENGINE ARGUMENTS]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Plan, compare, certify, and write a recipe with what it rests on."""
    if options.host is not None and not options.dry_run:
        raise UsageError("only this machine can be measured", hint="--host NAME --dry-run")
    if options.output.exists():
        raise InvalidInputError(f"{options.output} is there already", hint="--output NEW_FOLDER")
    host = find_host(options.host)
    plan = _plan(options, host)
    names = _require_names(options, plan)
    _show_steps(options, plan, screen)
    if options.dry_run:
        screen.show_data(text=render_plan(plan, explain=False), document=plan.to_json())
        return ExitCode.DONE
    plans = {PLAIN: plan_plain(plan, host), "drafted": plan}
    began = time.time()
    kept = slipstream_cache(os.environ) / "contribute" / f"{int(began)}-{os.getpid()}"
    try:
        comparison, certificate = _measure(options, host, plans, screen, kept)
    except EngineError:
        bundle = begin_evidence(host, plans, kept.glob("*/*.log"), os.environ)
        screen.show_progress(render_bundle(bundle.list_files(None)))
        _write(options.output, bundle, screen)
        raise
    logs = sorted(kept.glob("*/*.log"))
    recipe = make_recipe(
        comparison,
        certificate,
        target=names[0],
        drafter=names[1],
        by=options.by,
        today=datetime.now(UTC).date(),
    )
    drafted = [log.read_text(errors="replace") for log in logs if log.name.startswith("B-")]
    contribution = Contribution(
        recipe=recipe,
        lossless=certificate.passed,
        verdict=comparison.verdict.answer,
        cautions=tuple(caution.code for caution in comparison.verdict.cautions),
        planned=hold_against_plan(plan, comparison, "\n".join(drafted)),
        start_seconds=tuple(round(one.start_seconds, 1) for one in comparison.reports),
        seconds=round(time.time() - began, 1),
    )
    bundle = begin_evidence(host, plans, logs, os.environ)
    add_figures(bundle, contribution, comparison, certificate)
    parts = (
        render_contribution(contribution, comparison, certificate),
        render_toml(recipe).rstrip(),
        render_bundle(bundle.list_files(None)),
    )
    screen.show_data(text="\n\n".join(parts), document=contribution.to_json())
    _write(options.output, bundle, screen, recipe)
    return ExitCode.DONE if certificate.passed else ExitCode.GATE_MISSED


def _plan(options: argparse.Namespace, host: Host) -> LaunchPlan:
    """Plan for the loads that are measured, and raise if there is nothing to measure."""
    if options.users is None:
        options.users = max(map(int, _choose(options)["concurrency"].split()))
    plan = take_plan(options, host)
    if plan.drafter is None:
        raise InvalidInputError(
            f"the plan for {plan.target} has no drafter to measure", hint="name one with --drafter"
        )
    if not options.dry_run:
        require_engine(host)
    require_accepted(plan)
    return plan


def _write(folder: Path, bundle: Bundle, screen: Screen, recipe: Recipe | None = None) -> None:
    """Write what was shown into a new folder."""
    folder.mkdir(parents=True)
    if recipe is not None:
        (folder / f"{recipe.name}.toml").write_text(render_toml(recipe))
    bundle.write(folder / "evidence.zip")
    what = "the evidence of a failure" if recipe is None else "the recipe and its evidence"
    screen.show_progress(f"{folder} has {what}: docs/contributing.md says where to send it")


def _measure(
    options: argparse.Namespace,
    host: Host,
    plans: Mapping[str, LaunchPlan],
    screen: Screen,
    logs: Path,
) -> tuple[Comparison, Certificate]:
    """Do what `compare` and `verify` do, with a short workload."""
    began, chosen = time.time(), _choose(options)
    words = [word for name, text in chosen.items() for word in (f"--{name}", *text.split())]
    compared = make_verb_parser("compare", compare).parse_args(
        [options.target, "--rounds", "1", *words]
    )
    arms = tuple(ComparedArm(name=name, plan=plan) for name, plan in plans.items())
    comparison = compare.measure(
        compared,
        host,
        arms,
        screen,
        say=lambda line: screen.show_progress(add_time_left(line, time.time() - began)),
        logs=logs / "compare",
    )
    assert isinstance(comparison, Comparison)
    spent = time.time() - began
    screen.show_progress(
        f"compared in {spent:.0f} s; the certificate takes about {spent / 2:.0f} s"
    )
    exam = ["--prompts", chosen["prompts"], "--max-tokens", chosen["max-tokens"]]
    exam += ["--workload", *chosen["workload"].split()]
    exam += ["--samples", "64"] if options.quick else []
    verified = make_verb_parser("verify", verify).parse_args([options.target, *exam])
    return comparison, verify.examine(
        verified, host, plans["drafted"], screen, logs=logs / "verify"
    )


def add_time_left(line: str, spent_seconds: float) -> str:
    """Add to a block's first line how long the blocks before it make the rest."""
    found = re.fullmatch(r"block (\d+) of \d+: .* starts", line)
    done = int(found[1]) - 1 if found else 0
    if not done:
        return line
    left = (STARTS - done) * spent_seconds / done / 60
    return f"{line}; about {max(1, round(left))} min left, with the certificate"


def _choose(options: argparse.Namespace) -> dict[str, str]:
    return QUICK if options.quick else WHOLE


def _require_names(options: argparse.Namespace, plan: LaunchPlan) -> tuple[str, str]:
    """Return public names; a folder's own name is nobody's business and means nothing elsewhere."""
    found = []
    for flag, given, name in (
        ("--target-name", options.target_name, plan.target),
        ("--drafter-name", options.drafter_name, plan.drafter or ""),
    ):
        chosen = given or name
        if Path(chosen).exists() or not re.fullmatch(HUB_NAME, chosen):
            raise InvalidInputError(
                f"{chosen} is no name on the hub, and a recipe needs one",
                hint=f"{flag} OWNER/NAME",
            )
        found.append(chosen)
    if not re.fullmatch(r"[\w .@-]{1,60}", options.by, re.ASCII):
        raise UsageError(
            "--by takes up to 60 letters, digits and spaces", hint="--by 'Ann Example'"
        )
    return found[0], found[1]


def _show_steps(options: argparse.Namespace, plan: LaunchPlan, screen: Screen) -> None:
    """Say what will be done and about how long it takes."""
    earlier = sum(expected_phases(find_runs_root(os.environ), plan).values())
    sizes = [item.size_bytes for item in plan.memory.items if "weights" in item.name]
    known = None if None in sizes else sum(filter(None, sizes))
    start = earlier or START_SECONDS + SECONDS_PER_GIGABYTE * (known or 0) / 1e9
    basis = "earlier starts" if earlier else "the weights' size" if known else "a usual start"
    low, high = STARTS * start / 60, 3 * STARTS * start / 60
    chosen = _choose(options)
    screen.show_progress(
        f"{plan.target} with {plan.drafter}: {STARTS} starts of the engine, about {low:.0f} to "
        f"{high:.0f} minutes by {basis}\n"
        f"  compare   plain and drafted in turns: {chosen['workload']}; {chosen['prompts']} "
        f"prompts each, {chosen['max-tokens']} tokens, at concurrency {chosen['concurrency']}\n"
        "  verify    the text with and without drafts\n"
        "  write     a recipe and its evidence, shown before; no prompts, names or keys"
    )
