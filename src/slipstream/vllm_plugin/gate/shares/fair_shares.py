"""The engine's seats, shared among keys by weight.

A key may use every seat that no other key needs. What others had at once in the last seconds is
kept for them, up to their share, so that a caller with one request after the other finds its
seat free beside one with sixty-four; and for those who were away longer a part of the seats is
kept, one for each. Seats that nobody is entitled to go to the key that had the least seat time for
its weight. Requests that wait are not the engine's: the engine sees each one with all its seats.
One that needs more than its share gets them in its turn: until then others have the kept ones only.
"""

import asyncio
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field

from slipstream.serving.access.gate_file import GateSettings
from slipstream.vllm_plugin.gate.answers import Receive, Refusal, try_later
from slipstream.vllm_plugin.gate.answers.accounting import Accounting
from slipstream.vllm_plugin.gate.callers.key_ring import Caller
from slipstream.vllm_plugin.gate.requests.body import await_leaving

KEPT_SECONDS = 10.0
# Of the seats, for keys that have none: a quarter, and at least one of several.
KEPT_PART = 4
LOOK_AGAIN_SECONDS = 1.0
# How fast the usual time in a seat follows the latest one.
_LATEST = 0.1

# A request's seats in the engine, released at the end of its block.
Seat = ExitStack


@dataclass(eq=False, slots=True)
class _Place:
    """A request's place in the queue of its key."""

    seats: int
    given: asyncio.Future[Seat]


@dataclass(eq=False, slots=True)
class _Share:
    """A key's seats and queue; its virtual time is the seat time that it had, by weight."""

    weight: float = 1.0
    held: int = 0
    virtual: float = 0.0
    waiting: deque[_Place] = field(default_factory=deque)
    peak: int = 0
    peak_at: float = 0.0

    @property
    def wanted(self) -> int:
        """Count the seats that it has or waits for."""
        return self.held + sum(place.seats for place in self.waiting)

    def note_peak(self, now: float) -> None:
        """Remember for a while how many seats were wanted at the same time."""
        if (wanted := self.wanted) >= self.peak or now - self.peak_at > KEPT_SECONDS:
            self.peak, self.peak_at = wanted, now


class FairShares:
    """Distributes the engine's seats; if their number is unknown, every request gets one."""

    def __init__(self, seats: int | None, accounting: Accounting) -> None:
        self._seats = seats
        self._accounting = accounting
        self._clock = time.monotonic
        self._shares: dict[str, _Share] = {}
        self._virtual = 0.0
        self._others = 0
        self._usual_seconds = 1.0
        self._waiting = 0
        self._waiting_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    async def take(
        self, caller: Caller, sequences: int, size: int, receive: Receive, settings: GateSettings
    ) -> Seat | None:
        """Wait for a seat for each sequence; return None if the client leaves before."""
        if self._seats is None:
            return Seat()
        self._others = caller.others
        if self._others and sequences > (most := self._seats - self._way_in):
            what = f"{sequences} answers in one request; this server has {most} seats for a key"
            raise Refusal(400, f"{what}: send fewer prompts at a time, or a smaller n", field="n")
        share = self._shares.setdefault(caller.id, _Share())
        share.weight = caller.terms.weight
        if not share.wanted:
            share.virtual = max(share.virtual, self._virtual)
        loop = asyncio.get_running_loop()
        place = _Place(min(max(1, sequences), self._seats), loop.create_future())
        share.waiting.append(place)
        self._hand_out()
        if place.given.done():
            return place.given.result()
        try:
            self._require_room(size, settings)
            with self._accounting.wait(caller.id):
                return await self._wait(place, size, receive, settings)
        finally:
            if place in share.waiting:
                share.waiting.remove(place)
                self._hand_out()

    @property
    def _way_in(self) -> int:
        """How many seats a key leaves to the others, however much it asks for."""
        seats = self._seats or 1
        return min(self._others, seats - 1, max(1, seats // KEPT_PART))

    def _require_room(self, size: int, settings: GateSettings) -> None:
        if (
            self._waiting >= settings.waiting_requests
            or self._waiting_bytes + size > settings.waiting_bytes
        ):
            what = f"{self._waiting} requests already wait for a seat, which is the limit"
            raise try_later(503, what, settings.retry_after_seconds, reason="full_queue")

    async def _wait(
        self, place: _Place, size: int, receive: Receive, settings: GateSettings
    ) -> Seat | None:
        self._waiting += 1
        self._waiting_bytes += size
        leaving = asyncio.ensure_future(await_leaving(receive))
        taken = False
        try:
            await asyncio.wait(
                (place.given, leaving),
                timeout=settings.waiting_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
            taken = place.given.done() and not leaving.done()
        finally:
            self._waiting -= 1
            self._waiting_bytes -= size
            left = leaving.done()
            leaving.cancel()
            if place.given.done() and not taken:
                with place.given.result():
                    pass
        if taken:
            return place.given.result()
        if left:
            return None
        what = f"no seat became free within {settings.waiting_seconds:g} s"
        raise try_later(503, what, settings.retry_after_seconds, reason="no_seat")

    def _hand_out(self) -> None:
        if not any(share.waiting for share in self._shares.values()):
            return
        now = self._clock()
        for share in self._shares.values():
            share.note_peak(now)
        self._shares = {name: one for name, one in self._shares.items() if one.peak}
        shares = [*self._shares.values()]
        away = max(0, min(self._way_in, self._others + 1 - len(shares)))
        entitled = self._apportion(shares, away)
        while queued := sorted((one for one in shares if one.waiting), key=lambda one: one.virtual):
            held = sum(one.held for one in shares)
            free = (self._seats or 0) - held
            short = {one: max(0, min(entitled[one], one.peak) - one.held) for one in shares}
            kept = sum(short.values()) + away
            turn: _Share | None = None  # Of one that waits until the others' seats are enough.
            for share in queued:
                seats, others = share.waiting[0].seats, held - share.held
                if turn is not None:
                    fits = not share.held and held - turn.held < self._way_in
                elif seats > max(1, entitled[share]):
                    fits = seats <= free - max(0, self._way_in - others)
                    turn = share
                else:
                    within = share.held + seats <= max(1, entitled[share])
                    fits = within or seats <= free - kept + short[share]
                if fits and seats <= free:
                    self._give(share, seats, now)
                    break
            else:
                if free and self._timer is None:
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)
                return

    def _look_again(self) -> None:
        """Distribute seats that were reserved for a key that did not return."""
        self._timer = None
        self._hand_out()

    def _apportion(self, shares: list[_Share], away: int) -> dict[_Share, int]:
        """Divide the other seats by weight; while there are enough, every key gets one."""
        seats, total = (self._seats or 0) - away, sum(one.weight for one in shares)
        least = 1 if len(shares) <= seats else 0
        parts = {one: max(least, int(seats * one.weight / total + 1e-9)) for one in shares}
        while (over := sum(parts.values()) - seats) > 0:
            most = max(parts, key=lambda one: parts[one])
            parts[most] -= min(over, max(1, parts[most] // 2))
        return parts

    def _give(self, share: _Share, seats: int, now: float) -> None:
        """Seat the first of a key's queue at the usual price, which is corrected at the end."""
        place, price = share.waiting.popleft(), self._usual_seconds
        self._virtual = max(self._virtual, share.virtual)
        share.held += seats
        share.virtual += seats * price / share.weight

        def release() -> None:
            took = self._clock() - now
            share.note_peak(self._clock())
            share.held -= seats
            share.virtual += seats * (took - price) / share.weight
            self._usual_seconds += _LATEST * (took - self._usual_seconds)
            self._hand_out()

        seat = Seat()
        seat.callback(release)
        place.given.set_result(seat)
