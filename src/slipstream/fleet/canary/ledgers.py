"""The ledger of a group as its machine hands it out (`slipstream fleet ledger`).

Only requests count that began after the drafter that serves now was swapped in, by the clock of
that machine.
"""

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field

from slipstream.errors import InvalidInputError
from slipstream.records import Record
from slipstream.serving.run import Run, RunFolder, State, find_live
from slipstream.serving.run_status import read_latest
from slipstream.serving.swaps import Swap
from slipstream.steering.ledger import LedgerLine, read_ledger

# Of lines of 350 to 450 bytes: a far machine's record has 4 MiB at most.
MOST_LINES = 8_000


class GroupLedger(Record):
    """What a group's run serves now, and the requests that ended in it after some moment.

    `now` and the times of the lines are of the machine's own clock.
    """

    schema_version: Literal[1] = 1
    run: str
    state: State
    now: float
    target: str
    drafter: str | None
    dtype: str | None
    last_swap: Swap | None
    lines: Annotated[tuple[LedgerLine, ...], Field(max_length=MOST_LINES)]


def read_group_ledger(root: Path, port: int, after: float, most: int) -> GroupLedger:
    """Read the newest lines of the run that answers at a port of this machine."""
    folder, run = find_run(root, port)
    files, run = folder.list_ledgers(), read_latest(folder)
    since = run.drafters[-1].since.timestamp() if run.drafters else 0.0
    dtype = run.plan.settings.dtype
    return GroupLedger(
        run=run.id,
        state=run.state,
        now=datetime.now(UTC).timestamp(),
        target=run.plan.target,
        drafter=run.drafters[-1].name if run.drafters else run.plan.drafter,
        dtype=dtype.value if dtype else None,
        last_swap=run.last_swap,
        lines=tuple(deque(_read_after(files, after, since), maxlen=min(most, MOST_LINES))),
    )


def find_run(root: Path, port: int) -> tuple[RunFolder, Run]:
    """Return the live run that answers at a port."""
    for folder, run in find_live(root):
        if run.url is not None and urlsplit(run.url).port == port:
            return folder, run
    raise InvalidInputError(f"no run is live at port {port}", hint="slipstream fleet status")


def _read_after(files: list[Path], after: float, since: float) -> Iterator[LedgerLine]:
    for line in read_ledger(files):
        if line.at > after and line.at - line.seconds >= since:
            yield line
