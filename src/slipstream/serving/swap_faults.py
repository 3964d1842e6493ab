"""Faults of a swap order: of the run, its target and its current drafter."""

from collections.abc import Iterator
from pathlib import Path

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import Fault, pair
from slipstream.checkpoints.replacement import find_replacement_faults
from slipstream.errors import InvalidInputError
from slipstream.serving.run import Run
from slipstream.serving.swap_offer import takes_swaps
from slipstream.serving.swaps import ServedDrafter, SwapOrder


def find_current(run: Run) -> ServedDrafter:
    """Return the drafter that serves now."""
    if run.drafters:
        return run.drafters[-1]
    drafter = run.plan.drafter or ""
    return ServedDrafter(name=drafter, folder=Path(drafter), since=run.began_at)


def find_faults(run: Run, order: SwapOrder) -> Iterator[Fault]:
    """Yield the faults of an order, first of the run and then of both pairs."""
    plan, speculation = run.plan, run.plan.speculation
    if not run.terms.gated or not takes_swaps(plan) or speculation is None:
        yield Fault(
            code="swap-unavailable",
            verdict="refuse",
            message="this engine cannot swap its drafter: that needs a DFlash drafter, the gate, "
            "and an engine on one machine",
            hint="slipstream serve TARGET --drafter DRAFTER",
        )
        return
    if run.state != "ready":
        yield Fault(
            code="swap-unavailable",
            verdict="refuse",
            message=f"the run is {run.state}, not ready",
            hint=f"slipstream status {run.id}",
        )
        return
    trial = run.trial if run.trial and run.trial.state == "running" else None
    if trial is not None and order.folder != trial.before.folder:
        yield Fault(
            code="swap-trial",
            verdict="refuse",
            message=f"{trial.drafter} is on trial until {trial.until:%Y-%m-%d %H:%M} UTC",
            hint=f"wait for it, or slipstream swap {run.id} --back",
        )
        return
    if not order.folder.is_absolute() or not order.folder.is_dir():
        raise InvalidInputError(f"there is no folder {order.folder}", hint="slipstream swap --help")
    if order.folder == find_current(run).folder:
        yield Fault(
            code="swap-same",
            verdict="refuse",
            message=f"{order.folder} is already in use; put another version into a "
            "different folder, so that you can swap back",
            hint=f"slipstream swap {run.id} OTHER_FOLDER",
        )
        return
    target = read_checkpoint(plan.settings.model.value)
    pairing = pair(
        target,
        read_checkpoint(str(order.folder)),
        draft_length=speculation.length.value if speculation.length else None,
        context=plan.context,
    )
    yield from (fault for fault in pairing.faults if fault.verdict == "refuse")
    yield from find_replacement_faults(str(find_current(run).folder), str(order.folder))
