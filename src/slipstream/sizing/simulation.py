"""A fleet simulated request by request: routing, queues, failures, scaling. Same seed, same result.

Each kind goes to one pool; in a pool the router takes any replica, or the one with fewer requests
of two that it draws. vllm-router 0.1.16 does the first under either name when answers are streamed:
with `power_of_two` it took the fuller of two replicas as often as the emptier (75 and 79 times).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Literal, NamedTuple

from slipstream.sizing.demand import Arrival
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.replica import Replica, SimulatedRequest
from slipstream.sizing.served_figures import Histogram, ServedFigures, describe_times

Routing = Literal["random", "power-of-two"]


@dataclass(frozen=True, slots=True)
class SimulatedPool:
    """Replicas alike, and the kinds of requests that they get."""

    speed: EngineSpeed
    draft_length: int
    replicas: int
    kinds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Failure:
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


@dataclass(slots=True)
class Simulation:
    """A fleet under arrivals; `keep` gets every request, `counted` says which ones count."""

    pools: Sequence[SimulatedPool]
    seed: int = 0
    routing: Routing = "random"
    failures: Sequence[Failure] = ()
    scaling: Scaling | None = None
    counted: Callable[[float], bool] = lambda _: True
    keep: Callable[[ServedRequest], None] | None = None
    ttft: Histogram = field(default_factory=Histogram)
    tpot: Histogram = field(default_factory=Histogram)

    def run(self, arrivals: Iterable[Arrival]) -> ServedFigures:
        """Serve all arrivals to their end."""
        return _Fleet(self).run(arrivals)


class _Fleet:
    """A simulation under way."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._random = Random(simulation.seed)
        self._draws_two = simulation.routing == "power-of-two"
        self._pools = [
            [Replica(pool.speed, pool.draft_length) for _ in range(pool.replicas)]
            for pool in simulation.pools
        ]
        self._pool_of: Mapping[str, int] = {
            kind: number for number, pool in enumerate(simulation.pools) for kind in pool.kinds
        }
        self._yields = {
            kind: pool.speed.find_yield(kind, pool.draft_length)
            for pool in simulation.pools
            for kind in pool.kinds
        }
        self._events: list[tuple[float, int, Replica | None, int, Callable[[float], None] | None]]
        self._events = []
        self._orders = count()
        self._requests = self._lost = self._tokens = 0
        self._in_flight, self._flight_seconds, self._last = 0, 0.0, 0.0
        self._machine_seconds = 0.0
        self._held = sum(map(len, self._pools))
        self._fewest = self._most = self._held
        self._starting = 0
        self._enough_since: float | None = None
        self._retired: list[Replica] = []
        self._unserved: list[list[SimulatedRequest]] = [[] for _ in self._pools]
        self._over = False

    def run(self, arrivals: Iterable[Arrival]) -> ServedFigures:
        for failure in self._simulation.failures:
            self._plan(failure.at, partial(self._fail, seconds=failure.seconds))
        if self._simulation.scaling is not None:
            self._plan(0.0, self._scale)
        events = self._events
        for arrival in arrivals:
            while events and events[0][0] <= arrival.at:
                self._handle(heappop(events))
            self._arrive(arrival)
        last_arrival = self._last
        everyone = [*self._retired, *(replica for pool in self._pools for replica in pool)]
        busy = sum(replica.busy_seconds for replica in everyone)
        self._over = True
        while events:
            self._handle(heappop(events))
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

    def _schedule(self, replica: Replica) -> None:
        replica.version += 1
        if replica.wake is not None:
            event = (replica.wake, next(self._orders), replica, replica.version, None)
            heappush(self._events, event)

    def _plan(self, at: float, action: Callable[[float], None]) -> None:
        heappush(self._events, (at, next(self._orders), None, 0, action))

    def _handle(
        self, event: tuple[float, int, Replica | None, int, Callable[[float], None] | None]
    ) -> None:
        now, _, replica, version, action = event
        if replica is None:
            assert action is not None
            self._pass(now)
            action(now)
        elif version == replica.version:
            self._pass(now)
            for request in replica.advance(now):
                self._end(request, now)
            self._schedule(replica)

    def _pass(self, now: float) -> None:
        if not self._over:
            self._flight_seconds += self._in_flight * (now - self._last)
            self._machine_seconds += self._held * (now - self._last)
            self._last = now

    def _end(self, request: SimulatedRequest, now: float) -> None:
        self._in_flight -= 1
        simulation = self._simulation
        if not simulation.counted(request.arrived):
            return
        self._requests += 1
        self._tokens += request.output
        overhead = simulation.pools[self._pool_of[request.kind]].speed.overhead_seconds
        first = request.first - request.arrived + overhead
        simulation.ttft.add(first)
        if request.output > 1:
            simulation.tpot.add((now - request.first) / (request.output - 1))
        if simulation.keep is not None:
            seconds = now - request.arrived + overhead
            simulation.keep(
                ServedRequest(request.arrived, request.kind, first, seconds, request.output)
            )

    def _fail(self, now: float, *, seconds: float) -> None:
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
            self._plan(now + seconds, lambda at: self._join(at, replica))

    def _join(self, now: float, replica: Replica) -> None:
        self._pools[0].append(replica)
        waiting, self._unserved[0] = self._unserved[0], []
        for request in waiting:
            self._route(request, now)

    def _scale(self, now: float) -> None:
        """Ask for replicas at once, and let go of them after the cool-down."""
        scaling = self._simulation.scaling
        assert scaling is not None
        if self._over:
            return
        pool = self._pools[0]
        wanted = -int(-self._in_flight // scaling.requests_per_replica)
        wanted = min(max(wanted, scaling.least), scaling.most)
        have = len(pool) + self._starting
        if wanted > have:
            for _ in range(wanted - have):
                self._starting += 1
                self._plan(now + scaling.start_seconds, self._start)
            self._hold(wanted - have)
        if wanted >= have:
            self._enough_since = None
        elif self._enough_since is None:
            self._enough_since = now
        elif now - self._enough_since >= scaling.cool_down_seconds:
            for _ in range(min(have - wanted, len(pool) - 1)):
                self._retired.append(pool.pop())
                self._hold(-1)
            self._enough_since = None
        self._plan(now + scaling.interval_seconds, self._scale)

    def _start(self, now: float) -> None:
        self._starting -= 1
        first = self._simulation.pools[0]
        self._join(now, Replica(first.speed, first.draft_length))

    def _hold(self, more: int) -> None:
        self._held += more
        self._most = max(self._most, self._held)
        self._fewest = min(self._fewest, self._held)

    def _describe(self, seconds: float, busy: float) -> ServedFigures:
        simulation = self._simulation
        return ServedFigures(
            requests=self._requests,
            lost=self._lost,
            tokens=self._tokens,
            seconds=seconds,
            tokens_per_second=self._tokens / seconds if seconds else 0.0,
            ttft=describe_times(simulation.ttft),
            tpot=describe_times(simulation.tpot),
            busy_share=busy / self._machine_seconds if self._machine_seconds else 0.0,
            mean_in_flight=self._flight_seconds / seconds if seconds else 0.0,
            machine_hours=self._machine_seconds / 3600,
            most_replicas=self._most,
            fewest_replicas=self._fewest,
        )
