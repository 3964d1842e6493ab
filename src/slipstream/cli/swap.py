"""`slipstream swap`: replace the drafter of a run without a restart."""

import argparse
import os
import time
from contextlib import suppress

from slipstream.atomic_files import write_atomically
from slipstream.cli.arguments import positive_number
from slipstream.cli.run_options import RUN_HELP
from slipstream.cli.screen import Screen
from slipstream.cli.weights import Weights, add_accept_changes
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.reporting.text.run import render_event
from slipstream.serving.following import follow_events
from slipstream.serving.run import Run, RunFolder, find_runs_root, is_alive
from slipstream.serving.selection import choose_running
from slipstream.serving.swaps import ServedDrafter, Swap, SwapOrder

# Two proofs behind other requests, and the loading of a large drafter between them.
WITHIN_SECONDS = 1800.0


EXAMPLES = """\
# serve with a newly trained drafter of the same shape
slipstream swap Qwen3-8B ./drafter
# keep it only if requests show within two hours that it is as good
slipstream swap Qwen3-8B ./drafter --trial 2
# return to the one before
slipstream swap Qwen3-8B --back
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `swap`."""
    parser.add_argument("run", metavar="RUN", help=RUN_HELP)
    parser.add_argument(
        "drafter", metavar="DRAFTER", nargs="?", help="local folder or hub name of the new drafter"
    )
    parser.add_argument(
        "--revision",
        metavar="REVISION",
        help="branch, tag or commit of the drafter on the hub (default: the main branch)",
    )
    parser.add_argument(
        "--back", action="store_true", help="return to the previous drafter instead"
    )
    parser.add_argument(
        "--trial",
        metavar="HOURS",
        type=positive_number,
        help="return to the previous drafter unless requests show within this time that the new "
        "one is as good (default: only if they show that it is worse)",
    )
    # Names the order, for whoever asks later what became of it.
    parser.add_argument("--order", default=None, help=argparse.SUPPRESS)
    add_accept_changes(parser)
    parser.usage = "slipstream swap RUN [DRAFTER] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Download and check the drafter, order the swap, and wait for its outcome."""
    if options.back == (options.drafter is not None) or (options.back and options.trial):
        raise UsageError("name a drafter, or --back", hint=f"slipstream swap {options.run} DRAFTER")
    folder, chosen = choose_running(find_runs_root(os.environ), options.run, verb="swap")
    previous = _find_previous(chosen) if options.back else None
    name = str(previous.folder) if previous else options.drafter
    model = Weights(screen, os.environ, options.accept_changes).find(name, options.revision)
    shown = previous.name if previous else name
    if model.commit and not previous:
        shown += f"@{model.commit[:12]}"
    order = SwapOrder(
        **({"id": options.order} if options.order else {}),
        name=shown,
        folder=model.folder.resolve(),
        trial_seconds=None if options.trial is None else 3600 * options.trial,
    )
    swap = _order(folder, order, screen)
    if swap.outcome == "refused":
        raise InvalidInputError(swap.message, hint=swap.hint or "slipstream swap --help")
    if swap.outcome == "failed":
        raise EngineError(swap.message, hint=swap.hint or f"slipstream logs {chosen.id}")
    screen.show_data(text=swap.message, document=swap.to_json())
    return ExitCode.DONE if swap.outcome == "swapped" else ExitCode.GATE_MISSED


def _find_previous(run: Run) -> ServedDrafter:
    if len(run.drafters) < 2:
        raise InvalidInputError(
            f"{run.id} has no previous drafter", hint=f"slipstream swap {run.id} DRAFTER"
        )
    return run.drafters[-2]


def _order(folder: RunFolder, order: SwapOrder, screen: Screen) -> Swap:
    """Write the order into the run's folder, and print events until it is carried out."""
    deadline, found = time.monotonic() + WITHIN_SECONDS, list[Swap]()

    def is_over() -> bool:
        run = folder.read()
        if run.last_swap is not None and run.last_swap.order == order.id:
            found.append(run.last_swap)
        gone = not is_alive(run.supervisor) or run.state in ("stopping", "stopped", "failed")
        return bool(found) or gone or time.monotonic() > deadline

    if folder.swap_order.exists():
        raise InvalidInputError(
            "another swap of this run is waiting", hint=f"slipstream status {folder.path.name}"
        )
    try:
        write_atomically(folder.swap_order, order.to_json().encode(), mode=0o600)
    except OSError as fault:
        message = f"cannot write {folder.swap_order}: {fault.strerror or fault}"
        raise InvalidInputError(message, hint=f"df -h {folder.path}") from fault
    try:
        with screen.busy("waiting for the swap"):
            for event in follow_events(folder, is_over, time.sleep, only_new=True):
                screen.show_progress(render_event(event))
    finally:
        with suppress(OSError):  # An order that nobody took is no order for later.
            folder.swap_order.unlink(missing_ok=True)
    if not found:
        raise EngineError(
            "the run ended or did not answer before the swap was done",
            hint=f"slipstream logs --events {folder.path.name}",
        )
    return found[0]
