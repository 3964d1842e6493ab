"""The other ranks of an engine, as a supervisor deals with them: assembled, watched, let go.

The head decides for the group. It has a generation run only when no rank has an engine left, and
lets it go as soon as one rank is lost; a rank that no longer hears the head ends its engine. So a
generation ends everywhere before the next one begins, and ranks of two never meet.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.planning.group import Group
from slipstream.serving.group.link import (
    SILENT_AFTER_SECONDS,
    GroupLink,
    HeadOrder,
    RankReport,
    read_secret,
)
from slipstream.serving.supervision.causes.diagnosis import Cause
from slipstream.serving.supervision.causes.ladder import Death
from slipstream.serving.supervision.event_log import EventLog

LOOK_EVERY_SECONDS = 0.1
STILL_EVERY_SECONDS = 30.0
# An order reaches a rank within a beat; its engine's process is there soon after.
BEGIN_WITHIN_SECONDS = 30.0
# For the others to say what ended their engine, once ours has ended.
SETTLE_SECONDS = 10.0
SHOWN_CHARACTERS = 300
UNWATCHED = "the other ranks cannot be watched"
# What says nothing of its own: a rank that knows more is believed.
_VAGUE: tuple[Cause | None, ...] = (None, "unknown", "hang", "rank-lost")


class Peers:
    """The ranks beside a supervisor's own: none, for an engine on one machine."""

    async def open(self) -> None:
        """Begin to hear the others."""

    async def close(self) -> None:
        """Hear nobody any more."""

    async def assemble(self, stop: asyncio.Event) -> None:
        """Return when the next engine may start, or at a stop."""

    async def watch(self) -> None:
        """Watch the others until one of them is a reason to end: that is a `Death`."""
        await asyncio.Event().wait()

    def dismiss(self, message: str) -> None:
        """Have the others end their engines."""

    async def settle(self) -> Cause | None:
        """Wait for the others' ends, and return the cause that one of them found."""
        return None

    def report(self, cause: Cause | None, message: str) -> None:
        """Report that our engine has ended."""

    def give_up(self, message: str) -> None:
        """Have the others give up, too."""


class Followers(Peers):
    """The ranks that the head leads."""

    def __init__(self, event_log: EventLog, group: Group) -> None:
        self._event_log, self._group = event_log, group
        self._link = make_link(event_log, group, self._describe_state)
        self._generation, self._runs, self._given_up = 0, False, False
        self._message = ""
        self._begun: set[int] = set()

    async def open(self) -> None:
        await self._link.open()

    async def close(self) -> None:
        await self._link.close()

    async def assemble(self, stop: asyncio.Event) -> None:
        """Wait until every rank is there without an engine, and order the next generation."""
        reported_at = time.monotonic() - STILL_EVERY_SECONDS - 1
        while not stop.is_set():
            missing = [rank for rank in self._ranks if not self._is_idle(rank)]
            if not missing:
                self._generation += 1
                self._runs, self._begun = True, set()
                self._link.send()
                return
            if time.monotonic() - reported_at > STILL_EVERY_SECONDS:
                reported_at = time.monotonic()
                names = ", ".join(map(self._group.describe, missing))
                self._event_log.move("starting", f"it starts when the others are running: {names}")
            await asyncio.sleep(LOOK_EVERY_SECONDS)

    async def watch(self) -> None:
        """End with the first rank that is silent, has ended, or does not begin."""
        began = time.monotonic()

        async def look() -> None:
            for rank in self._ranks:
                self._look(rank, time.monotonic() - began)

        await self._event_log.keep_looking(UNWATCHED, look, LOOK_EVERY_SECONDS)

    def dismiss(self, message: str) -> None:
        self._runs, self._message = False, message[:SHOWN_CHARACTERS]
        self._link.send()

    async def settle(self) -> Cause | None:
        """Wait a while for the others' ends, and return the most telling cause among them."""
        until = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < until and not all(map(self._is_settled, self._ranks)):
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        for rank in self._ranks:
            report = self._read(rank)
            if report and report.ended == self._generation and report.cause not in _VAGUE:
                line = f"{self._group.describe(rank)}: {report.message}"
                if line[:SHOWN_CHARACTERS] != self._message:
                    self._event_log.note(line)
                return report.cause
        return None

    def give_up(self, message: str) -> None:
        self._given_up = True
        self.dismiss(message)

    @property
    def _ranks(self) -> Sequence[int]:
        return range(1, len(self._group.members))

    def _describe_state(self) -> HeadOrder:
        run = self._event_log.run
        return HeadOrder(
            generation=self._generation,
            runs=self._runs,
            rungs=run.rungs,
            state=run.state,
            given_up=self._given_up,
            message=self._message,
        )

    def _read(self, rank: int) -> RankReport | None:
        beat = self._link.hear(rank)
        return beat.body if beat is not None and isinstance(beat.body, RankReport) else None

    def _is_idle(self, rank: int) -> bool:
        report = self._read(rank)
        if report is None or report.running is not None or report.leaves:
            return False
        return (report.head, report.idle_after) == (self._link.session, self._generation)

    def _is_settled(self, rank: int) -> bool:
        report = self._read(rank)
        return report is None or report.running is None

    def _look(self, rank: int, seconds: float) -> None:
        report = self._read(rank)
        name = self._group.describe(rank)
        if report is None:
            raise Death("rank-lost", f"no report from {name} for {SILENT_AFTER_SECONDS:.0f} s")
        if report.head == self._link.session and report.running == self._generation:
            self._begun.add(rank)
        elif report.head == self._link.session and report.ended == self._generation:
            raise Death(report.cause or "rank-lost", f"{name}: {report.message}")
        elif rank in self._begun:
            raise Death("rank-lost", f"{name} was restarted")
        elif seconds > BEGIN_WITHIN_SECONDS:
            raise Death("rank-lost", f"{name} did not start its engine in {seconds:.0f} s")


def make_link(
    event_log: EventLog, group: Group, describe_state: Callable[[], HeadOrder | RankReport]
) -> GroupLink:
    secret = read_secret(Path(group.secret_file).expanduser())
    return GroupLink(group, secret, describe_state, keep=event_log.keep_looking)
