"""Checks of a swap: faults of the order before it, and the requests before and after it."""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal

from slipstream.checkpoints import read_checkpoint
from slipstream.checkpoints.pairing import Fault, pair, refuse
from slipstream.checkpoints.replacement import find_replacement_faults
from slipstream.errors import InvalidInputError
from slipstream.serving.plugin_settings import takes_swaps
from slipstream.serving.run import Run, RunFolder
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.swaps import ServedDrafter, SwapOrder
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine, LedgerReader, read_ledger
from slipstream.steering.swap_test import SwapTest, SwapVerdict

WATCH_SECONDS = 600.0
MOST_BEFORE = 1000
LINES_PER_LOOK = 1000


def find_current(run: Run) -> ServedDrafter:
    if run.drafters:
        return run.drafters[-1]
    drafter = run.plan.drafter or ""
    return ServedDrafter(name=drafter, folder=Path(drafter), since=run.began_at)


def find_faults(run: Run, order: SwapOrder) -> Iterator[Fault]:
    """Yield the faults of an order, first of the run and then of both pairs."""
    plan, speculation = run.plan, run.plan.speculation
    if not run.terms.gated or not takes_swaps(plan) or speculation is None:
        what = (
            "this engine cannot swap its drafter: that needs a DFlash drafter, the gate, "
            "and an engine on one machine"
        )
        yield refuse("swap-unavailable", what, "slipstream serve TARGET --drafter DRAFTER")
        return
    if run.state != "ready":
        what = f"the run is {run.state}, not ready"
        yield refuse("swap-unavailable", what, f"slipstream status {run.id}")
        return
    trial = run.trial if run.trial and run.trial.state == "running" else None
    if trial is not None and order.folder != trial.before.folder:
        what = f"{trial.drafter} is on trial until {trial.until:%Y-%m-%d %H:%M} UTC"
        yield refuse("swap-trial", what, f"wait for it, or slipstream swap {run.id} --back")
        return
    if not order.folder.is_absolute() or not order.folder.is_dir():
        raise InvalidInputError(f"there is no folder {order.folder}", hint="slipstream swap --help")
    if order.folder == find_current(run).folder:
        what = (
            f"{order.folder} is already in use; put another version into a different folder, "
            "so that you can swap back"
        )
        yield refuse("swap-same", what, f"slipstream swap {run.id} OTHER_FOLDER")
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


class SwapWatch:
    """Compares the current drafter with the previous one for ten minutes, or as long as is said."""

    def __init__(
        self,
        folder: RunFolder,
        drafters: Sequence[ServedDrafter],
        socket: RunSocket,
        seconds: float = WATCH_SECONDS,
    ) -> None:
        self._folder, self._socket = folder, socket
        self._swapped_at = drafters[-1].since.timestamp()
        self._served = _list_times(drafters)
        self._until = time.monotonic() + seconds
        self._order = socket.order
        self._reader = LedgerReader()
        self.test = SwapTest(())

    def begin(self) -> None:
        """Read what the ledger holds by now."""
        before = deque[LedgerLine](maxlen=MOST_BEFORE)
        after = []
        for line in self._read_all():
            began = line.at - line.seconds
            if line.at > self._swapped_at:
                after.append(line)
            elif any(begin <= began and line.at <= end for begin, end in self._served):
                before.append(line)
        self.test = SwapTest(line for line in before if line.key != SUPERVISOR_KEY)
        self._add(after)

    def look(self) -> SwapVerdict | Literal["undecided"] | None:
        """Read new requests and return the result, None as long as it is undecided."""
        self._add(self._reader.read(self._folder.ledger, LINES_PER_LOOK))
        if self.test.verdict is not None:
            return self.test.verdict
        is_over = not self.test.can_decide or time.monotonic() >= self._until
        # Other bounds of the draft length are no fault of the drafter.
        is_over |= self._socket.order != self._order
        return "undecided" if is_over else None

    def close(self) -> None:
        self._reader.close()

    def _read_all(self) -> Iterator[LedgerLine]:
        yield from read_ledger(self._folder.list_ledgers()[:-1])
        while lines := self._reader.read(self._folder.ledger, LINES_PER_LOOK):
            yield from lines

    def _add(self, lines: list[LedgerLine]) -> None:
        for line in lines:
            if line.at - line.seconds >= self._swapped_at and line.key != SUPERVISOR_KEY:
                self.test.add(line)


def _list_times(drafters: Sequence[ServedDrafter]) -> list[tuple[float, float]]:
    """List from when to when the drafter before the last one served, in seconds since 1970."""
    return [
        (one.since.timestamp(), following.since.timestamp())
        for one, following in pairwise(drafters)
        if one.folder == drafters[-2].folder
    ]
