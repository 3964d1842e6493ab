"""A fleet simulated request by request: routing, queues, failures, scaling. Same seed, same result.

Each kind goes to one pool; in a pool the router takes any replica, or the one with fewer requests
of two that it draws. vllm-router 0.1.16 does the first under either name when answers are streamed:
with `power_of_two` it took the fuller of two replicas as often as the emptier (75 and 79 times).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import exp, inf, log
from random import Random
from typing import NamedTuple

from slipstream.sizing.demand import HOUR, Arrival
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.replica import Replica, SimulatedRequest
from slipstream.sizing.sizing import Routing, ServedFigures
from slipstream.steering.percentiles import Percentiles
from slipstream.tuning.goal import Goal

THROUGHPUT = Goal(name="throughput")
_BUCKETS = 100


class Histogram:
    """Counts of values by their logarithm: the same memory for a minute and for a day."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}

    def add(self, value: float) -> None:
        place = int(_BUCKETS * log(max(value, 1e-6)) + 2000)
        self.counts[place] = self.counts.get(place, 0) + 1

    def find_quantile(self, share: float) -> float | None:
        """Return the value that this share does not exceed, None of nothing."""
        left = share * sum(self.counts.values())
        for place in sorted(self.counts):
            left -= self.counts[place]
            if left <= 0:
                return exp((place + 0.5 - 2000) / _BUCKETS)
        return None

    def describe(self) -> Percentiles | None:
        """Return the shares that are shown, None of nothing."""
        found = {name: self.find_quantile(int(name[1:]) / 100) for name in Percentiles.model_fields}
        return Percentiles.model_validate(found) if self.counts else None


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Replicas alike, and the kinds of requests that they get."""

    speed: EngineSpeed
    draft_length: int
    replicas: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ReplicaFailure:
    """A replica of the first pool that is gone for so many seconds."""

    at: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Scaling:
    """A scaler that looks every so often and wants so many requests per replica.

    A replica serves `start_seconds` after it was asked for. Fewer are wanted only after they have
    been too many for `cool_down_seconds`.
    """

    requests_per_replica: float
    least: int
    most: int
    start_seconds: float
    interval_seconds: float = 15.0
    cool_down_seconds: float = 300.0


class ServedRequest(NamedTuple):
    """A request that ended: when it came, its kind, its times and its tokens."""

    arrived: float
    kind: str
    first_seconds: float
    seconds: float
    tokens: int


class Simulation:
    """A fleet that serves arrivals once; those from `begin` to `end` count, `keep` gets them."""

    def __init__(
        self,
        pools: Sequence[SimulatedPool],
        *,
        seed: int = 0,
        routing: Routing = "random",
        goal: Goal = THROUGHPUT,
        failure: ReplicaFailure | None = None,
        scaling: Scaling | None = None,
        begin: float = 0.0,
        end: float = inf,
        keep: Callable[[ServedRequest], None] | None = None,
    ) -> None:
        self.ttft, self.tpot = Histogram(), Histogram()
        self._first, self._goal, self._keep = pools[0], goal, keep
        self._begin, self._until = begin, end
        self._random, self._draws_two = Random(seed), routing == "power-of-two"
        self._pools = [
            [Replica(pool.speed, pool.draft_length) for _ in range(pool.replicas)] for pool in pools
        ]
        self._pool_of = {kind: number for number, pool in enumerate(pools) for kind in pool.kinds}
        self._yields = {
            kind: pool.speed.find_yield(kind, pool.draft_length)
            for pool in pools
            for kind in pool.kinds
        }
        self._overheads = [pool.speed.overhead_seconds for pool in pools]
        self._events: list[tuple[float, int, int, Replica | Callable[[float], None]]] = []
        self._orders = count()
        self._requests = self._lost = self._tokens = 0
        self._in_flight, self._flight_seconds, self._last = 0, 0.0, 0.0
        self._machine_seconds = 0.0
        self._fewest = self._most = self._held = sum(map(len, self._pools))
        self._starting = 0
        self._enough_since: float | None = None
        self._retired: list[Replica] = []
        self._unserved: list[list[SimulatedRequest]] = [[] for _ in self._pools]
        self._over = False
        if failure is not None:
            self._plan(failure.at, partial(self._fail, failure.seconds))
        if scaling is not None:
            self._plan(0.0, partial(self._scale, scaling))

    def run(self, arrivals: Iterable[Arrival]) -> ServedFigures:
        events = self._events
        for arrival in arrivals:
            while events and events[0][0] <= arrival.at:
                self._handle(*heappop(events))
            self._arrive(arrival)
        last_arrival = self._last
        everyone = [*self._retired, *(replica for pool in self._pools for replica in pool)]
        busy = sum(replica.busy_seconds for replica in everyone)
        self._over = True
        while events:
            self._handle(*heappop(events))
        return self._describe(last_arrival, busy)

    def _arrive(self, arrival: Arrival) -> None:
        self._pass(arrival.at)
        drafts = self._yields[arrival.kind]
        left = arrival.output_tokens - 1
        steps = drafts.draw_steps(left, self._random) if drafts else left
        prompt = max(1, arrival.prompt_tokens)
        request = SimulatedRequest(arrival.at, arrival.kind, prompt, arrival.output_tokens, steps)
        self._in_flight += 1
        self._route(request, arrival.at)

    def _route(self, request: SimulatedRequest, now: float) -> None:
        number = self._pool_of[request.kind]
        pool = self._pools[number]
        if not pool:
            self._unserved[number].append(request)
            return
        random, size = self._random.random, len(pool)
        place = int(random() * size)
        chosen = pool[place]
        if self._draws_two and size > 1:
            other = pool[(place + 1 + int(random() * (size - 1))) % size]
            if other.load < chosen.load:
                chosen = other
        if chosen.add(request, now):
            self._schedule(chosen)

    def _plan(self, at: float, action: Callable[[float], None]) -> None:
        heappush(self._events, (at, next(self._orders), 0, action))

    def _schedule(self, replica: Replica) -> None:
        replica.version += 1
        if replica.wake is not None:
            event = (replica.wake, next(self._orders), replica.version, replica)
            heappush(self._events, event)

    def _handle(
        self, now: float, _: int, version: int, what: Replica | Callable[[float], None]
    ) -> None:
        """Act, or look at a replica unless another look was planned since."""
        if not isinstance(what, Replica):
            self._pass(now)
            what(now)
        elif version == what.version:
            self._pass(now)
            for request in what.advance(now):
                self._end(request, now)
            self._schedule(what)

    def _pass(self, now: float) -> None:
        if not self._over:
            self._flight_seconds += self._in_flight * (now - self._last)
            self._machine_seconds += self._held * (now - self._last)
            self._last = now

    def _end(self, request: SimulatedRequest, now: float) -> None:
        self._in_flight -= 1
        if not self._begin <= request.arrived < self._until:
            return
        self._requests += 1
        self._tokens += request.output
        overhead = self._overheads[self._pool_of[request.kind]]
        first = request.first - request.arrived + overhead
        self.ttft.add(first)
        if request.output > 1:
            self.tpot.add((now - request.first) / (request.output - 1))
        if self._keep is not None:
            seconds = now - request.arrived + overhead
            self._keep(ServedRequest(request.arrived, request.kind, first, seconds, request.output))

    def _fail(self, seconds: float, now: float) -> None:
        """Lose a replica: what has no token yet is asked again elsewhere, the rest is lost."""
        pool = self._pools[0]
        if not pool:
            return
        replica = pool.pop(0)
        fresh, begun = replica.fail()
        replica.version += 1
        self._lost += len(begun)
        self._in_flight -= len(begun)
        for request in fresh:
            self._route(request, now)
        if seconds < inf:
            self._plan(now + seconds, partial(self._join, replica))

    def _join(self, replica: Replica, now: float) -> None:
        self._pools[0].append(replica)
        waiting, self._unserved[0] = self._unserved[0], []
        for request in waiting:
            self._route(request, now)

    def _scale(self, scaling: Scaling, now: float) -> None:
        """Ask for replicas at once, and let go of them after the cool-down."""
        if self._over:
            return
        pool = self._pools[0]
        wanted = -int(-self._in_flight // scaling.requests_per_replica)
        wanted = min(max(wanted, scaling.least), scaling.most)
        have = len(pool) + self._starting
        for _ in range(wanted - have):
            self._starting += 1
            self._plan(now + scaling.start_seconds, self._start)
            self._hold(1)
        if wanted >= have:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        elif now - self._enough_since >= scaling.cool_down_seconds:
            for _ in range(min(have - wanted, len(pool) - 1)):
                self._retired.append(pool.pop())
                self._hold(-1)
            self._enough_since = None
        self._plan(now + scaling.interval_seconds, partial(self._scale, scaling))

    def _start(self, now: float) -> None:
        self._starting -= 1
        self._join(Replica(self._first.speed, self._first.draft_length), now)

    def _hold(self, more: int) -> None:
        self._held += more
        self._most = max(self._most, self._held)
        self._fewest = min(self._fewest, self._held)

    def _describe(self, last_arrival: float, busy: float) -> ServedFigures:
        counted = max(0.0, min(self._until, last_arrival) - self._begin)
        times, limits = {"ttft": self.ttft, "tpot": self.tpot}, self._goal.limits
        reached = [times[limit.figure].find_quantile(limit.share) for limit in limits]
        pairs = zip(reached, limits, strict=True)
        return ServedFigures(
            requests=self._requests,
            lost=self._lost,
            tokens=self._tokens,
            seconds=counted,
            tokens_per_second=self._tokens / counted if counted else 0.0,
            ttft=self.ttft.describe(),
            tpot=self.tpot.describe(),
            reached=tuple(reached),
            meets_goal=all(time is None or time <= limit.seconds for time, limit in pairs),
            busy_share=busy / self._machine_seconds if self._machine_seconds else 0.0,
            mean_in_flight=self._flight_seconds / last_arrival if last_arrival else 0.0,
            machine_hours=self._machine_seconds / HOUR,
            most_replicas=self._most,
            fewest_replicas=self._fewest,
        )
