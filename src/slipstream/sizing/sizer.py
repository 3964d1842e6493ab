"""How a demand is sized: arithmetic first, then the simulation.

The arithmetic finds the fewest replicas of every style; the simulation corrects them, fails a
replica of the best one and, if asked, runs the day with a scaler.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import ceil, inf

from slipstream.errors import InvalidInputError
from slipstream.sizing.arithmetic import THROUGHPUT_SHARE, PoolLoad, count_replicas
from slipstream.sizing.demand import HOUR, Arrival, Demand, draw_requests
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.simulation import ReplicaFailure, Scaling, SimulatedPool, Simulation
from slipstream.sizing.sizing import (
    CountTimes,
    DayFigures,
    DraftBreakEven,
    MachinePrice,
    Outage,
    PoolSize,
    Routing,
    ServedFigures,
    SizeOption,
    Sizing,
    Style,
)
from slipstream.tuning.goal import Goal

SIMULATED_REQUESTS = 5000
MOST_SPARES = 4
REQUESTS_PER_REPLICA = 30
MOST_CORRECTIONS = 8
WARM_UP_SHARE = 0.2
# A scaler that wants replicas as full as the sized ones is always a start too late.
HEADROOM = 0.8
# Of the answer: the counts whose times are shown beside it.
SHOWN_COUNTS = (0.6, 0.75, 0.9, 1.0, 1.15, 1.3, 1.6, 2.0)


@dataclass(frozen=True, slots=True)
class _Option:
    """Pools that serve the demand together, and what their requests got."""

    style: Style
    pools: tuple[PoolLoad, ...]
    figures: ServedFigures | None = None

    @property
    def replicas(self) -> int:
        return sum(pool.replicas for pool in self.pools)

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """What meets the goal comes first, then the fewest machines; every pool needs a spare."""
        missed = self.figures is not None and not self.figures.meets_goal
        return missed, self.replicas + len(self.pools), self.style != "drafted"

    def move(self, more: int) -> "_Option":
        """Add replicas one by one to the busiest pool, or take them from the idlest."""
        pools = list(self.pools)
        for _ in range(abs(more)):
            able = [place for place, pool in enumerate(pools) if more > 0 or pool.replicas > 1]
            able.sort(key=lambda place: pools[place].busy_share, reverse=more > 0)
            for place in able[:1]:
                count = pools[place].replicas + (1 if more > 0 else -1)
                pools[place] = replace(pools[place], replicas=count)
        return replace(self, pools=tuple(pools))


@dataclass(frozen=True)
class Sizer:
    """How a demand is sized; `say` gets progress lines, `arrivals` are replayed if given."""

    demand: Demand
    goal: Goal
    speed: EngineSpeed
    price: MachinePrice
    seed: int = 0
    routing: Routing = "random"
    arrivals: Sequence[Arrival] = ()
    progress: Callable[[str], None] = lambda _: None

    def size(self, *, simulate: bool = True, day: bool = False) -> Sizing:
        """Find the fewest replicas of each style, the best first."""
        unknown = self._list_unknown()
        drafted = [length for length in self.speed.lengths if length and not unknown]
        found, missed = self._list_options(drafted)
        if simulate:
            found = [self._correct(option) for option in found]
        found.sort(key=lambda option: option.rank)
        best = found[0] if found else None
        return Sizing(
            demand=self.demand,
            goal=self.goal,
            speed=self.speed,
            price=self.price,
            seed=self.seed,
            routing=self.routing,
            options=tuple(map(self._describe, found)),
            missed=tuple(missed),
            by_count=tuple(self._list_counts(best)) if best else (),
            break_even=tuple(self._list_break_even()),
            outage=self._fail_one(best) if simulate and best else None,
            day=self._run_day(best) if day and best else None,
            cautions=tuple(self._list_cautions(best, unknown)),
        )

    def _list_unknown(self) -> list[str]:
        """List the kinds without acceptance, which are sized without speculation."""
        known = {one.kind for one in self.speed.yields}
        unknown = sorted({kind.kind for kind in self.demand.kinds} - known)
        if unknown and self.speed.drafting and not self.speed.plain:
            raise InvalidInputError(
                f"no acceptance is known for {', '.join(unknown)}",
                hint=f"use kinds that {self.speed.source} has: {', '.join(sorted(known))}",
            )
        return unknown

    def _list_options(self, drafted: Sequence[int]) -> tuple[list[_Option], list[str]]:
        found: list[_Option] = []
        missed: list[str] = []
        plain = [0] if self.speed.plain else []
        styles: tuple[tuple[Style, Sequence[int]], ...] = (("drafted", drafted), ("plain", plain))
        for style, lengths in styles:
            pool = self._find_pool(self.demand, lengths)
            if pool is not None:
                found.append(_Option(style, (pool,)))
            elif lengths:
                missed.append(f"{style}: no number of replicas meets {self.goal}")
        if len(self.demand.kinds) > 1 and drafted:
            parts = [self.demand.model_copy(update={"kinds": (k,)}) for k in self.demand.kinds]
            pools = [self._find_pool(part, self.speed.lengths) for part in parts]
            whole = tuple(pool for pool in pools if pool is not None)
            if len(whole) == len(pools) and len({pool.draft_length for pool in whole}) > 1:
                found.append(_Option("mixed", whole))
        return found, missed

    def _find_pool(self, demand: Demand, lengths: Iterable[int]) -> PoolLoad | None:
        """Find the draft length that takes the fewest replicas, the shortest if several do."""
        best: PoolLoad | None = None
        for length in lengths:
            limit = {"fewer_than": best.replicas} if best else {}
            count = count_replicas(self.speed, length, demand, self.goal, **limit)
            if count is not None:
                best = PoolLoad(self.speed, length, demand, count)
        return best

    def _correct(self, option: _Option) -> _Option:
        """Move the count to where the simulation just meets the goal; pools move together."""
        self.progress(f"simulating {option.style}: {option.replicas} replicas by arithmetic")
        option = replace(option, figures=(figures := self._run(option)))
        step = max(1, option.replicas // 25) * (-1 if figures.meets_goal else 1)
        for _ in range(MOST_CORRECTIONS):
            other = option.move(step)
            # A short recording does not show a queue that grows without end.
            busy = max(pool.busy_share for pool in other.pools)
            if step < 0 and (other.replicas > option.replicas + step or busy >= THROUGHPUT_SHARE):
                break
            other = replace(other, figures=(figures := self._run(other)))
            if step < 0 and not figures.meets_goal:
                break
            option = other
            if step > 0 and figures.meets_goal:
                break
        return option

    def _run(self, option: _Option, failure: ReplicaFailure | None = None) -> ServedFigures:
        """Serve the busiest hour; of a failure, those count that arrive while it lasts."""
        seconds = self._count_seconds(option.replicas)
        begin, end = WARM_UP_SHARE * seconds, inf
        if failure is not None:
            begin, end = failure.at, failure.at + min(failure.seconds, seconds)
        steady = self.demand.model_copy(update={"hours": ()})
        arrivals = self.arrivals or draw_requests(steady, seconds, self.seed)
        return self._make_fleet(option)(failure=failure, begin=begin, end=end).run(arrivals)

    def _make_fleet(self, option: _Option) -> Callable[..., Simulation]:
        pools = [
            SimulatedPool(self.speed, pool.draft_length, pool.replicas, pool.kinds)
            for pool in option.pools
        ]
        return partial(Simulation, pools, seed=self.seed, routing=self.routing, goal=self.goal)

    def _count_seconds(self, replicas: int) -> float:
        """Return how long is simulated: enough requests, or the recording."""
        if self.arrivals:
            return self.arrivals[-1].at
        requests = max(SIMULATED_REQUESTS, REQUESTS_PER_REPLICA * replicas)
        return requests / self.demand.requests_per_second

    def _fail_one(self, option: _Option) -> Outage:
        """Fail a replica, and look for the spares of every pool that hold the goal all the same."""
        self.progress("simulating the failure of a replica")
        away = self.speed.start_seconds
        at = 0.4 * self._count_seconds(option.replicas)
        failure = ReplicaFailure(at=at, seconds=inf if away is None else away)
        figures = with_spares = self._run(option, failure)
        spared = option
        for spares in range(1, MOST_SPARES + 1):
            pools = (replace(pool, replicas=pool.replicas + spares) for pool in option.pools)
            spared = replace(option, pools=tuple(pools))
            with_spares = self._run(spared, failure)
            if with_spares.meets_goal:
                break
        return Outage(
            seconds=away,
            replicas=option.replicas,
            figures=figures,
            spares=spared.replicas - option.replicas,
            with_spares=with_spares,
        )

    def _run_day(self, option: _Option) -> DayFigures:
        start = self.speed.start_seconds
        if start is None or not self.demand.hours or len(option.pools) > 1:
            raise InvalidInputError(
                "a day with a scaler takes one pool, the day's hours and the seconds of a start",
                hint="--hours with 24 shares of the busiest hour, and --start-seconds",
            )
        scaling = Scaling(
            requests_per_replica=max(1.0, option.pools[0].mean_sequences * HEADROOM),
            least=1,
            most=2 * option.replicas,
            start_seconds=start,
        )
        figures: list[ServedFigures] = []
        for name, one in (("a fleet of one size", None), ("a scaler", scaling)):
            self.progress(f"simulating a day with {name}")
            arrivals = draw_requests(self.demand, len(self.demand.hours) * HOUR, self.seed)
            figures.append(self._make_fleet(option)(scaling=one).run(arrivals))
        fixed, scaled = figures
        return DayFigures(
            fixed=fixed,
            scaled=scaled,
            start_seconds=start,
            fixed_cost=self.price.per_million(fixed.machine_hours, fixed.tokens),
            scaled_cost=self.price.per_million(scaled.machine_hours, scaled.tokens),
        )

    def _describe(self, option: _Option) -> SizeOption:
        tokens = self.demand.tokens_per_second * self.demand.mean_share * HOUR
        return SizeOption(
            style=option.style,
            pools=tuple(map(self._describe_pool, option.pools)),
            simulated=option.figures,
            cost_per_million=self.price.per_million(option.replicas, tokens),
        )

    def _describe_pool(self, pool: PoolLoad) -> PoolSize:
        """Return a pool with its interval, moved as much as the simulation moved its count."""
        error = self.speed.error
        low, computed, high = (
            count_replicas(self.speed.slow_down(share), pool.draft_length, pool.demand, self.goal)
            for share in (1 / (1 + error) - 1, 0.0, error)
        )
        ratio = pool.replicas / (computed or pool.replicas)
        shared = ("kinds", "draft_length", "replicas", "arrivals", "steps", "prompt_share")
        return PoolSize(
            **{name: getattr(pool, name) for name in shared},
            low=min(pool.replicas, ceil((low or pool.replicas) * ratio)),
            high=None if high is None else max(pool.replicas, ceil(high * ratio)),
            mean_batch=pool.mean_sequences,
            step_seconds=pool.step(pool.mean_sequences),
            busy_share=pool.busy_share,
        )

    def _list_counts(self, option: _Option) -> Iterable[CountTimes]:
        """List the times at the goal's limits with fewer and with more replicas, of one pool."""
        if len(option.pools) > 1 or not self.goal.limits:
            return
        for count in sorted({max(1, round(option.replicas * share)) for share in SHOWN_COUNTS}):
            pool = replace(option.pools[0], replicas=count)
            times = (pool.find_time(limit.figure, limit.share) for limit in self.goal.limits)
            yield CountTimes(replicas=count, seconds=tuple(times))

    def _list_break_even(self) -> Iterable[DraftBreakEven]:
        kinds = [kind.kind for kind in self.demand.kinds]
        for one in self.speed.yields:
            if one.kind in kinds:
                yield DraftBreakEven(
                    kind=one.kind,
                    draft_length=one.draft_length,
                    tokens_per_step=one.tokens_per_step,
                    sequences=self.speed.find_break_even(one.kind, one.draft_length),
                )

    def _list_cautions(self, best: _Option | None, unknown: Sequence[str]) -> Iterable[str]:
        yield from self.speed.cautions
        if unknown:
            yield f"no acceptance is known for {', '.join(unknown)}: sized as plain only"
        for pool in best.pools if best else ():
            cost, batch = self.speed.find_cost(pool.draft_length), pool.mean_sequences
            if cost.most_sequences is not None and cost.is_far(batch, 0):
                yield (
                    f"a mean batch of {batch:.0f} is far beyond the {cost.most_sequences:.0f} "
                    "sequences that were measured"
                )
        if self.speed.start_seconds is None:
            yield "how long a start takes is not known: a failed replica is assumed to stay away"
