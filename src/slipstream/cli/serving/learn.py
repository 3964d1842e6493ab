"""`slipstream learn`: have a run train its drafter on its own traffic, and see what came of it."""

import argparse
import os
import time
from datetime import UTC, datetime

from pydantic import ValidationError

from slipstream.cli.measuring.measuring_options import add_reports
from slipstream.cli.options import RUN_HELP, OptionAdder, natural_number
from slipstream.cli.reports import require_writable, show_report
from slipstream.cli.screen import Screen
from slipstream.cli.serving.swap import order_swap
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.hardware import read_host, this_machine
from slipstream.learning.generation import (
    Generation,
    GenerationList,
    LearningFolder,
    list_course,
)
from slipstream.records import describe_faults
from slipstream.reporting.serving.learning import (
    describe_generations,
    render_generations_html,
    render_prospect,
)
from slipstream.serving.learning import LearningOrder, LearningTerms
from slipstream.serving.messages import ask
from slipstream.serving.run import Run, RunFolder, find_runs_root
from slipstream.serving.run_status import ANSWER_SECONDS, find_shown_state, read_latest
from slipstream.serving.selection import choose_run, choose_running
from slipstream.serving.supervision.learning_job import (
    JOB,
    find_learning_folder,
    require_learnable,
)
from slipstream.serving.supervision.swapping.swap_checks import find_current
from slipstream.serving.swaps import SwapOrder
from slipstream.steering.ledger import read_ledger
from slipstream.training.preparation import require_parts

LOOK_EVERY_SECONDS = 0.5

EXAMPLES = """\
# keep questions and answers of a run, and train its drafter at night when that pays
slipstream learn Qwen3-8B --window 01:00-06:00
# show what training now would cost and what it would save
slipstream learn Qwen3-8B --dry-run
# list the drafters that it has learnt, and load the one of the plan again
slipstream learn Qwen3-8B --history
slipstream learn Qwen3-8B --back 0
"""


def add_arguments(add: OptionAdder) -> None:
    add("RUN", RUN_HELP)
    act = add.exclusive()
    act("--once", "train one candidate from the kept text now, and offer it if it is better")
    act("--dry-run", "print what training now would cost and save, without training")
    act("--history", "list every generation of the drafter, with its verdict")
    act("--back N", "load generation N; 0 is the drafter of the plan", natural_number)
    act("--stop", "stop keeping text and training")
    add(
        "--window FROM-TO",
        "local time of day in which to train, such as 01:00-06:00 (default: whenever the "
        "server is idle)",
        str,
    )
    add("--steps N", "optimizer steps per candidate (default: three passes over the text)")
    add("--redact PATTERN ...", "regular expressions of text to remove from what is kept")
    add_reports(add)
    add.parser.usage = "slipstream learn RUN [options]"


def make_terms(options: argparse.Namespace) -> LearningTerms:
    """Return the terms that the options ask for."""
    try:
        return LearningTerms(
            window=options.window, steps=options.steps, redact=tuple(options.redact or ())
        )
    except ValidationError as fault:
        raise UsageError(
            "; ".join(describe_faults(fault)), hint="slipstream learn RUN --window 01:00-06:00"
        ) from fault


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Show, load or train generations, or have the run learn from now on."""
    root = find_runs_root(os.environ)
    if options.history:
        require_writable(options.html, options.markdown)
        return _show_history(*choose_run(root, options.run), options, screen)
    if options.html or options.markdown:
        raise UsageError(
            "only --history writes a page", hint="slipstream learn RUN --history --html FILE"
        )
    folder, chosen = choose_running(root, options.run, verb="learn")
    if options.back is not None:
        return _go_back(folder, chosen, options.back, screen)
    if options.stop:
        _order(folder, LearningOrder(terms=None))
        screen.show_data(
            text=f"{chosen.id} no longer learns", document=LearningOrder(terms=None).to_json()
        )
        return ExitCode.DONE
    require_parts()
    require_learnable(chosen)
    home, terms = _find_home(chosen), make_terms(options)
    if options.dry_run:
        return _look_ahead(folder, chosen, home, terms, screen)
    if options.once:
        return _train_once(folder, chosen, terms, screen)
    order = LearningOrder(terms=terms)
    _order(folder, order)
    text = f"{chosen.id} learns from now on; its text and drafters are in {home.path}"
    screen.show_data(text=text, document=order.to_json())
    return ExitCode.DONE


def _find_home(run: Run) -> LearningFolder:
    terms = run.terms.learning
    kept = terms.folder if terms else None
    return LearningFolder(kept or find_learning_folder(os.environ, run))


def _show_history(
    folder: RunFolder, run: Run, options: argparse.Namespace, screen: Screen
) -> ExitCode:
    home = _find_home(run)
    generations = tuple(home.list_generations())
    listed = GenerationList(
        run=run.id,
        folder=str(home.path),
        last=home.read_progress().last,
        generations=generations,
        course=tuple(list_course(run, read_ledger(folder.list_ledgers()), generations)),
    )
    report = describe_generations(listed)
    show_report(listed, report, render_generations_html, options, screen)
    return ExitCode.DONE


def _go_back(folder: RunFolder, run: Run, number: int, screen: Screen) -> ExitCode:
    generation = _find_home(run).find(number)
    if not generation.drafter.is_dir():
        raise InvalidInputError(
            f"generation {number} was {generation.verdict}, and its weights are removed",
            hint=f"slipstream learn {run.id} --history",
        )
    name = f"generation {number}"
    return order_swap(folder, SwapOrder(name=name, folder=generation.drafter), screen)


def _look_ahead(
    folder: RunFolder, run: Run, home: LearningFolder, terms: LearningTerms, screen: Screen
) -> ExitCode:
    from slipstream.learning.deciding import look_ahead

    current = find_current(run).folder
    serving = home.find_serving(current) or Generation(
        number=0, drafter=current, made_at=datetime.now(UTC), verdict="planned"
    )
    free = read_host(this_machine(os.environ, datetime.now(UTC))).memory.available_bytes
    prospect = look_ahead(run, folder.list_ledgers(), home, serving, free, terms.steps)
    wanted = home.read_progress().wanted_tokens
    screen.show_data(text=render_prospect(prospect, wanted), document=prospect.worth.to_json())
    return ExitCode.DONE


def _train_once(folder: RunFolder, run: Run, terms: LearningTerms, screen: Screen) -> ExitCode:
    """Have the supervisor train one candidate, and print what it does until that is over."""
    steady = run.terms.learning
    shared = terms.model_copy(update={"folder": _find_home(run).path})
    if steady is not None and terms.window is None:
        shared = shared.model_copy(update={"window": steady.window})
    _order(folder, LearningOrder(terms=shared, once=True))
    shown: str | None = None
    with screen.busy("learning"):
        while (state := (now := _read_live(folder)).learning) is None or not state.is_over:
            # A job that was killed begins again where it was.
            message = now.notes.get(JOB) or (f"{state.stage}: {state.message}" if state else None)
            if message is not None and message != shown:
                screen.show_progress(message)
                shown = message
            time.sleep(LOOK_EVERY_SECONDS)
    screen.show_data(text=state.message, document=state.to_json())
    return ExitCode.DONE


def _read_live(folder: RunFolder) -> Run:
    run = read_latest(folder)
    if find_shown_state(run) in ("stopping", "stopped", "failed", "supervisor gone"):
        raise EngineError(
            f"{run.id} has ended; what was trained is kept, and its successor goes on with it",
            hint=f"slipstream status; slipstream serve {folder.path}",
        )
    return run


def _order(folder: RunFolder, order: LearningOrder) -> None:
    """Send the supervisor an order, which it answers with the same."""
    name = folder.path.name
    try:
        if next(ask(folder.socket, order, (LearningOrder,), seconds=ANSWER_SECONDS), None):
            return
    except (OSError, ValueError) as fault:
        what = f"{name} accepts no commands now: {fault}"
        raise InvalidInputError(what, hint=f"slipstream status {name}") from fault
    raise EngineError(
        "the run ended before it accepted the command", hint=f"slipstream status {name}"
    )
