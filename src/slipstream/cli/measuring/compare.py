"""`slipstream compare`: whether speculation is faster for these prompts at this load."""

import argparse
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

from slipstream.cli.arguments import ENGINE_ARGUMENTS
from slipstream.cli.measuring import verify
from slipstream.cli.measuring.measuring_options import (
    add_reports,
    add_workload,
    describe_conditions,
    find_engine_host,
    find_log_folder,
    make_bench,
    read_concurrencies,
    take_drafting_plan,
)
from slipstream.cli.options import OptionAdder, add_accept_changes
from slipstream.cli.planning.method_plans import plan_methods
from slipstream.cli.planning.plan import TARGET_OR_PLAN_HELP, add_plan_options, plan_plain
from slipstream.cli.planning.saved_plans import add_allow, admit_plan, read_plan, take_plan
from slipstream.cli.reports import require_writable, show_report, write_report
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.engines.vllm_methods import METHOD_NAMES
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.hardware import Host
from slipstream.measuring.comparing.comparison import ComparedArm, Comparing, Comparison
from slipstream.measuring.comparing.design import LETTERS
from slipstream.measuring.comparing.verdict import PLAIN
from slipstream.measuring.contribution import (
    Published,
    add_figures,
    collect_evidence,
    contribute,
    render_toml,
)
from slipstream.measuring.machine_watch import make_watch
from slipstream.measuring.verifying.verification import SAMPLES
from slipstream.planning import LaunchPlan
from slipstream.recipes.recipe import HUB_NAME
from slipstream.reporting.measuring.certificate import describe_contribution
from slipstream.reporting.measuring.comparison import describe_comparison, render_comparison_html
from slipstream.reporting.report import render_text
from slipstream.reporting.serving.doctor import render_bundle
from slipstream.serving.run import expected_phases, find_runs_root
from slipstream.serving.supervision.engine_process import require_accepted
from slipstream.user_folders import find_local

EXAMPLES = """\
# drafted against plain decoding at concurrency 1 and 8, with an HTML report
slipstream compare Qwen/Qwen3-8B --concurrency 1 8 --html report.html
# three drafting methods on prompts of your own
slipstream compare Qwen/Qwen3-8B --methods dflash ngram plain --workload prompts.jsonl
# measure, verify the text, and write a recipe with its evidence for others
slipstream compare Qwen/Qwen3-8B --rounds 1 --recipe qwen3-8b.toml --by jane
"""


def add_arguments(add: OptionAdder) -> None:
    add("TARGET", TARGET_OR_PLAN_HELP)
    add = add.group("comparison")
    add(
        "--against PLAN ...",
        "saved plans to compare with (default: the same target without drafts)",
    )
    add(
        "--methods NAME[=DRAFTER] ...",
        f"drafting methods to compare, two or more of {', '.join(METHOD_NAMES)}; a drafter "
        "after = replaces the one that `plan` would choose",
    )
    add("--rounds N", "rounds of two engine starts per plan, in the order A B B A", default=2)
    add_accept_changes(add)
    add_workload(add, prompts=8)
    add_plan_options(add)
    add_allow(add)
    add_reports(add)
    add = add.group("recipe for others")
    add(
        "--recipe FILE", "verify the text, too, and write a recipe (.toml) with its evidence (.zip)"
    )
    add("--by BY", "author that the catalogue names", default="anonymous")
    for name in ("target", "drafter"):
        add(f"--{name}-name OWNER/NAME", f"hub name of a {name} in a local folder")
    add.parser.usage = (
        "slipstream compare TARGET [--against PLAN ... | --methods NAME ...] [options] "
        f"{ENGINE_ARGUMENTS}"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Measure the plans in turns and print which one to use."""
    require_writable(options.html, options.markdown, options.recipe)
    host = find_engine_host()
    arms, logs = _find_arms(options, host, screen), find_log_folder("compare")
    if options.recipe is not None:
        return _run_recipe(options, host, arms, screen, logs)
    done = measure(options, host, arms, screen, logs)
    show_report(done, describe_comparison(done), render_comparison_html, options, screen)
    return ExitCode.DONE


def measure(
    options: argparse.Namespace,
    host: Host,
    arms: tuple[ComparedArm, ...],
    screen: Screen,
    logs: Path,
) -> Comparison:
    """Start each arm in turns and judge what was measured."""
    plans = [arm.plan for arm in arms]
    contexts = [plan.context for plan in plans if plan.context is not None]
    bench = make_bench(
        options,
        screen,
        min(contexts, default=None),
        concurrencies=read_concurrencies(options),
        # Calls are requested only if all engines parse them.
        tool_choice=options.tool_choice if all(map(_parses_calls, plans)) else "none",
    )
    conditions = describe_conditions(options, bench, plans[-1], host)
    weights = WeightsOnDisk(screen, os.environ, options.accept_changes)
    for plan in plans:
        weights.localize(plan)
    screen.show_progress(_describe_time(plans, options.rounds))
    comparing = Comparing(
        arms=arms,
        bench=bench,
        rounds=options.rounds,
        environment=os.environ,
        logs=logs,
        progress=screen.show_progress,
        watch=make_watch(host),
        localize=weights.localize,
    )
    with screen.busy("comparing"):
        return comparing.run(conditions)


def _describe_time(plans: list[LaunchPlan], rounds: int) -> str:
    """Return how many starts there will be, and how long they take if earlier ones tell."""
    starts = 2 * rounds * len(plans)
    root = find_runs_root(os.environ)
    seconds = 2 * rounds * sum(sum(expected_phases(root, plan).values()) for plan in plans)
    about = f", about {seconds / 60:.0f} minutes, judging by earlier runs" if seconds else ""
    return f"{starts} engine starts{about}"


def _run_recipe(
    options: argparse.Namespace,
    host: Host,
    arms: tuple[ComparedArm, ...],
    screen: Screen,
    logs: Path,
) -> ExitCode:
    """Compare and verify, and write a recipe with what it rests on."""
    published = _require_publishable(options, arms)
    plans = {arm.name: arm.plan for arm in arms}
    archive = options.recipe.with_suffix(".zip")
    options.samples, began = SAMPLES, time.monotonic()
    try:
        comparison = measure(options, host, arms, screen, logs / "compare")
        certificate = verify.examine(options, host, arms[1].plan, screen, logs / "verify")
    except EngineError:
        bundle = collect_evidence(host, plans, logs.glob("*/*.log"), os.environ)
        bundle.write(archive)
        screen.show_progress(f"written: {archive}, the evidence of a failure without names or keys")
        raise
    kept = sorted(logs.glob("*/*.log"))
    contribution = contribute(
        comparison,
        certificate,
        kept,
        published,
        host=host,
        today=datetime.now(UTC).date(),
        seconds=time.monotonic() - began,
    )
    bundle = collect_evidence(host, plans, kept, os.environ)
    add_figures(bundle, contribution, comparison, certificate)
    recipe = render_toml(contribution.recipe)
    report = describe_comparison(comparison)
    parts = (
        render_text(report),
        render_text(describe_contribution(contribution, certificate)),
        recipe.rstrip(),
        render_bundle(bundle.list_files(None)),
    )
    text = "\n\n".join(parts)
    show_report(comparison, report, render_comparison_html, options, screen, text)
    write_report(options.recipe, recipe, screen)
    bundle.write(archive)
    screen.show_progress(f"written: {archive}; where to send both: docs/maintainers.md")
    return ExitCode.DONE if certificate.passed else ExitCode.GATE_MISSED


def _require_publishable(options: argparse.Namespace, arms: tuple[ComparedArm, ...]) -> Published:
    """Return public names; a folder's own name is nobody's business and means nothing elsewhere."""
    plan = arms[-1].plan
    if len(arms) != 2 or arms[0].name != PLAIN or plan.drafter is None:
        raise UsageError(
            "--recipe compares one drafter with plain decoding",
            hint="slipstream compare TARGET --drafter DRAFTER --recipe FILE.toml",
        )
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*\.toml", options.recipe.name):
        raise UsageError(
            "a recipe is named after its file, in lower case", hint="--recipe qwen3-8b-gb10.toml"
        )
    for file in (options.recipe, options.recipe.with_suffix(".zip")):
        if file.exists():
            raise InvalidInputError(f"{file} already exists", hint="--recipe NEW_FILE.toml")
    if not re.fullmatch(r"[\w .@-]{1,60}", options.by, re.ASCII):
        raise UsageError(
            "--by takes up to 60 letters, digits and spaces", hint="--by 'Ann Example'"
        )
    target, drafter = options.target_name or plan.target, options.drafter_name or plan.drafter
    for flag, name in (("--target-name", target), ("--drafter-name", drafter)):
        if Path(name).exists() or not re.fullmatch(HUB_NAME, name):
            raise InvalidInputError(
                f"a recipe needs hub names, and {name} is none", hint=f"{flag} OWNER/NAME"
            )
    return Published(options.recipe.stem, target, drafter, options.by)


def _find_arms(options: argparse.Namespace, host: Host, screen: Screen) -> tuple[ComparedArm, ...]:
    """Return the arms, the baseline first."""
    if options.users is None and not find_local(options.target).is_file():
        options.users = max(read_concurrencies(options))
    if options.methods is not None:
        arms = plan_methods(options, host)
    elif options.against is not None:
        arms = _read_against(options, host, screen)
    else:
        plan = take_drafting_plan(options, host, screen, to="compare")
        plain = ComparedArm(name=PLAIN, plan=plan_plain(plan, host))
        arms = (plain, ComparedArm(name="drafted", plan=plan))
    for arm in arms:
        require_accepted(arm.plan)
    return arms


def _read_against(
    options: argparse.Namespace, host: Host, screen: Screen
) -> tuple[ComparedArm, ...]:
    """Return the saved plans and then the target's own as arms."""
    files = [*options.against, find_local(options.target)]
    names = [file.stem for file in files]
    if len(set(names)) < len(names):
        names = [str(file.with_suffix("")) for file in files]
    if len(names) > len(LETTERS) or len(set(names)) < len(names):
        raise UsageError(
            f"compare up to {len(LETTERS)} plans in different files, not {', '.join(names)}",
            hint="slipstream compare PLAN --against PLAN ...",
        )
    saved = [
        admit_plan(file, read_plan(file), options.allow, host, screen) for file in options.against
    ]
    plans = (*saved, take_plan(options, host, screen))
    return tuple(ComparedArm(name=n, plan=plan) for n, plan in zip(names, plans, strict=True))


def _parses_calls(plan: LaunchPlan) -> bool:
    parser, auto = plan.settings.tool_parser, plan.settings.auto_tools
    return parser is not None and auto is not None and auto.value
