"""`slipstream swap`: replace the drafter of a run, or limit its draft length, without a restart."""

import argparse
import os
import re

from slipstream.cli.options import RUN_HELP, OptionAdder, add_accept_changes, positive_number
from slipstream.cli.screen import Screen
from slipstream.cli.weights import WeightsOnDisk
from slipstream.errors import EngineError, ExitCode, InvalidInputError, UsageError
from slipstream.reporting.serving.run import render_event
from slipstream.serving.messages import ask
from slipstream.serving.run import Event, Run, RunFolder, find_runs_root
from slipstream.serving.run_status import ANSWER_SECONDS, read_live
from slipstream.serving.selection import choose_running
from slipstream.serving.swaps import ServedDrafter, Swap, SwapOrder
from slipstream.steering.state import SteeringOrder

# From one event to the next: two proofs behind other requests, and the loading of a large drafter.
WITHIN_SECONDS = 1800.0

EXAMPLES = """\
# serve with a newly trained drafter of the same shape
slipstream swap Qwen3-8B ./drafter
# keep it only if requests show within two hours that it is as good
slipstream swap Qwen3-8B ./drafter --trial 2
# return to the one before
slipstream swap Qwen3-8B --back
# draft at most 3 tokens from now on
slipstream swap Qwen3-8B --k 3
"""


def add_arguments(add: OptionAdder) -> None:
    add("RUN", RUN_HELP)
    add("[DRAFTER]", "local folder or hub name of the new drafter")
    add(
        "--revision REVISION",
        "branch, tag or commit of the drafter on the hub (default: the main branch)",
    )
    add("--back", "return to the previous drafter instead")
    add(
        "--trial HOURS",
        "return to the previous drafter unless requests show within this time that the new "
        "one is as good (default: only if they show that it is worse)",
        positive_number,
    )
    # Names the order, for whoever asks later what became of it.
    add("--order ORDER", argparse.SUPPRESS, default=None)
    add(
        "--k LIMIT",
        "limit the draft length instead, until the run ends: 3 for at most 3 tokens, 1-3 for "
        "1 to 3, any for no limit",
        _read_bounds,
    )
    add_accept_changes(add)
    add.parser.usage = "slipstream swap RUN [DRAFTER] [options]"


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Download and check the drafter, order the swap, and wait for its outcome."""
    if sum((options.drafter is not None, options.back, options.k is not None)) != 1:
        hint = f"slipstream swap {options.run} DRAFTER"
        message = f"{options.run} is the run; name a drafter, or --back, or --k"
        raise UsageError(message, hint=hint)
    if options.trial and options.drafter is None:
        hint = f"slipstream swap {options.run} DRAFTER --trial {options.trial:g}"
        raise UsageError("--trial is for a new drafter", hint=hint)
    folder, chosen = choose_running(find_runs_root(os.environ), options.run, verb="swap")
    if options.k is not None:
        return _bound_drafts(folder, options.k, screen)
    previous = _find_previous(chosen) if options.back else None
    name = str(previous.folder) if previous else options.drafter
    model = WeightsOnDisk(screen, os.environ, options.accept_changes).find(name, options.revision)
    shown = previous.name if previous else name
    if model.commit and not previous:
        shown += f"@{model.commit[:12]}"
    order = SwapOrder(
        **({"id": options.order} if options.order else {}),
        name=shown,
        folder=model.folder.resolve(),
        trial_seconds=None if options.trial is None else 3600 * options.trial,
    )
    return order_swap(folder, order, screen)


def _find_previous(run: Run) -> ServedDrafter:
    if len(run.drafters) < 2:
        raise InvalidInputError(
            f"{run.id} has no previous drafter", hint=f"slipstream swap {run.id} DRAFTER"
        )
    return run.drafters[-2]


def _read_bounds(text: str) -> SteeringOrder:
    """Parse bounds of the draft length; argparse names the option in its error message."""
    if text == "any":
        return SteeringOrder()
    if not (found := re.fullmatch(r"(?:(\d{1,3})-)?(\d{1,3})", text)):
        raise argparse.ArgumentTypeError(f"'{text}' is not a length such as 3, 1-3 or any")
    least, most = int(found[1]) if found[1] else None, int(found[2])
    if least is not None and least > most:
        raise argparse.ArgumentTypeError(f"'{text}' is an empty range")
    return SteeringOrder(least=least, most=most)


def _bound_drafts(folder: RunFolder, bounds: SteeringOrder, screen: Screen) -> ExitCode:
    live = read_live(folder)
    if live is None or not any(state.steers for state in live.steering):
        raise InvalidInputError(
            f"the draft length of {folder.path.name} is not steered, or its engine is not running",
            hint=f"slipstream status {folder.path.name}",
        )
    _send(folder, bounds, screen, seconds=ANSWER_SECONDS)
    least, most = bounds.least, bounds.most
    text = f"the draft length is {least or 0} to {most} from now on"
    screen.show_data(
        text="the draft length is not limited" if most is None else text, document=bounds.to_json()
    )
    return ExitCode.DONE


def order_swap(folder: RunFolder, order: SwapOrder, screen: Screen) -> ExitCode:
    """Order a swap, print events until it is carried out, and show what came of it."""
    with screen.busy("waiting for the swap"):
        swap = _send(folder, order, screen, seconds=WITHIN_SECONDS)
    assert isinstance(swap, Swap)
    if swap.outcome == "refused":
        raise InvalidInputError(swap.message, hint=swap.hint or "slipstream swap --help")
    if swap.outcome == "failed":
        raise EngineError(swap.message, hint=swap.hint or f"slipstream logs {folder.path.name}")
    screen.show_data(text=swap.message, document=swap.to_json())
    return ExitCode.DONE if swap.outcome == "swapped" else ExitCode.GATE_MISSED


def _send(
    folder: RunFolder, order: SwapOrder | SteeringOrder, screen: Screen, *, seconds: float
) -> Swap | SteeringOrder:
    """Send the supervisor an order, and return its answer; events before it are printed."""
    name = folder.path.name
    try:
        for answer in ask(folder.socket, order, (Event, Swap, SteeringOrder), seconds=seconds):
            if isinstance(answer, Swap | SteeringOrder):
                return answer
            if isinstance(answer, Event):
                screen.show_progress(render_event(answer))
    except (FileNotFoundError, ConnectionRefusedError) as fault:
        what = f"{name} accepts no commands now: {fault.strerror}"
        raise InvalidInputError(what, hint=f"slipstream status {name}") from fault
    except (OSError, ValueError) as fault:
        hint = f"slipstream logs --events {name}"
        raise EngineError(f"the run did not answer: {fault}", hint=hint) from fault
    raise EngineError(
        "the run ended before the swap was done", hint=f"slipstream logs --events {name}"
    )
