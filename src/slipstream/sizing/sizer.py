"""How a demand is sized: arithmetic first, then the simulation.

The arithmetic finds the fewest replicas of every style; the simulation corrects them, fails a
replica of the best one and, if asked, runs the day with a scaler.
"""

from collections.abc import Callable, Iterable, Sequence
from math import ceil, inf

from slipstream.errors import InvalidInputError
from slipstream.sizing.arithmetic import PoolLoad, count_replicas
from slipstream.sizing.demand import HOUR, Arrival, Demand, draw_requests
from slipstream.sizing.engine_speed import FAR, EngineSpeed
from slipstream.sizing.money import MachinePrice, price_tokens
from slipstream.sizing.served_figures import ServedFigures
from slipstream.sizing.service_goal import THROUGHPUT_SHARE, ServiceGoal
from slipstream.sizing.simulation import (
    Failure,
    Routing,
    Scaling,
    SimulatedPool,
    Simulation,
)
from slipstream.sizing.sizing import (
    BreakEven,
    DayFigures,
    Outage,
    PoolSize,
    SizeOption,
    Sizing,
    hold_goal,
)

SIMULATED_REQUESTS = 5000
MOST_SPARES = 4
REQUESTS_PER_REPLICA = 30
MOST_CORRECTIONS = 8
WARM_UP_SHARE = 0.2
# A scaler that wants replicas as full as the sized ones is always a start too late.
HEADROOM = 0.8


class Sizer:
    """How a demand is sized; `say` gets progress lines, `arrivals` are replayed if given."""

    def __init__(
        self,
        demand: Demand,
        goal: ServiceGoal,
        speed: EngineSpeed,
        *,
        price: MachinePrice,
        seed: int = 0,
        routing: Routing = "random",
        arrivals: Sequence[Arrival] = (),
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        known = {one.kind for one in speed.yields}
        strange = sorted({kind.kind for kind in demand.kinds} - known)
        if strange and speed.drafting and not speed.plain:
            raise InvalidInputError(
                f"no acceptance is known for {', '.join(strange)}",
                hint=f"use kinds that {speed.source} has: {', '.join(sorted(known))}",
            )
        self._demand, self._goal, self._speed = demand, goal, speed
        self._price, self._seed, self._say = price, seed, say
        self._arrivals, self._routing = arrivals, routing
        self._strange = strange

    def size(self, *, simulate: bool = True, day: bool = False) -> Sizing:
        """Find the fewest replicas of each style, the best first."""
        found, missed = self._list_options()
        if simulate:
            found = [self._correct(option) for option in found]
        found.sort(key=_rank)
        best = found[0] if found else None
        return Sizing(
            demand=self._demand,
            goal=self._goal,
            speed=self._speed,
            price=self._price,
            seed=self._seed,
            routing=self._routing,
            options=tuple(map(self._add_cost, found)),
            missed=tuple(missed),
            break_even=tuple(self._list_break_even()),
            outage=self._fail_one(best) if simulate and best else None,
            day=self._run_day(best) if day and best else None,
            cautions=tuple(self._list_cautions(best)),
        )

    def _list_options(self) -> tuple[list[SizeOption], list[str]]:
        drafted = [length for length in self._speed.lengths if length and not self._strange]
        found: list[SizeOption] = []
        missed: list[str] = []
        for style, lengths in (("drafted", drafted), ("plain", [0] if self._speed.plain else [])):
            pool = self._find_pool(self._demand, lengths)
            if pool is not None:
                found.append(SizeOption.model_validate({"style": style, "pools": (pool,)}))
            elif lengths:
                missed.append(f"{style}: no number of replicas holds {self._goal}")
        if len(self._demand.kinds) > 1 and drafted:
            pools = [self._find_pool(one, self._speed.lengths) for one in _split(self._demand)]
            whole = tuple(pool for pool in pools if pool is not None)
            if len(whole) == len(pools) and len({pool.draft_length for pool in whole}) > 1:
                found.append(SizeOption(style="mixed", pools=whole))
        return found, missed

    def _find_pool(self, demand: Demand, lengths: Iterable[int]) -> PoolSize | None:
        """Find the draft length that takes the fewest replicas, the shortest if several do."""
        best: tuple[int, int] | None = None
        for length in lengths:
            limit = {"fewer_than": best[0]} if best else {}
            replicas = count_replicas(self._speed, length, demand, self._goal, **limit)
            if replicas is not None:
                best = replicas, length
        return None if best is None else self._describe_pool(demand, best[1], best[0])

    def _describe_pool(self, demand: Demand, length: int, replicas: int) -> PoolSize:
        error = self._speed.error
        fast = self._speed.slow_down(1 / (1 + error) - 1)
        load = PoolLoad(self._speed, length, demand, replicas)
        return PoolSize(
            kinds=tuple(kind.kind for kind in demand.kinds),
            draft_length=length,
            replicas=replicas,
            low=count_replicas(fast, length, demand, self._goal) or replicas,
            high=count_replicas(self._speed.slow_down(error), length, demand, self._goal),
            mean_batch=load.mean_sequences,
            busy_share=load.busy_share,
        )

    def _correct(self, option: SizeOption) -> SizeOption:
        """Move the count to the border of what the simulation holds; of pools, all together."""
        self._say(f"simulating {option.style}: {option.replicas} replicas by the arithmetic")
        step = max(1, option.replicas // 25)
        figures = self._run(option)
        if hold_goal(self._goal, figures):
            for _ in range(MOST_CORRECTIONS):
                if option.replicas - step < len(option.pools):
                    break
                fewer = _move(option, -step)
                # A short recording does not show a queue that grows without end.
                if any(self._load(pool).busy_share >= THROUGHPUT_SHARE for pool in fewer.pools):
                    break
                with_fewer = self._run(fewer)
                if not hold_goal(self._goal, with_fewer):
                    break
                option, figures = fewer, with_fewer
        else:
            for _ in range(MOST_CORRECTIONS):
                option = _move(option, step)
                figures = self._run(option)
                if hold_goal(self._goal, figures):
                    break
        holds = hold_goal(self._goal, figures)
        pools = tuple(map(self._describe_moved, option.pools))
        return option.model_copy(update={"simulated": figures, "holds": holds, "pools": pools})

    def _load(self, pool: PoolSize) -> PoolLoad:
        kinds = tuple(kind for kind in self._demand.kinds if kind.kind in pool.kinds)
        demand = self._demand.model_copy(update={"kinds": kinds})
        return PoolLoad(self._speed, pool.draft_length, demand, pool.replicas)

    def _describe_moved(self, pool: PoolSize) -> PoolSize:
        """Return a pool whose count was corrected, with its interval moved as much."""
        load = self._load(pool)
        computed = count_replicas(self._speed, pool.draft_length, load.demand, self._goal)
        ratio = pool.replicas / (computed or pool.replicas)
        changes = {
            "low": ceil(pool.low * ratio),
            "high": None if pool.high is None else ceil(pool.high * ratio),
            "mean_batch": load.mean_sequences,
            "busy_share": load.busy_share,
        }
        return pool.model_copy(update=changes)

    def _run(self, option: SizeOption, failures: Sequence[Failure] = ()) -> ServedFigures:
        seconds = self._count_seconds(option.replicas)
        begin, end = WARM_UP_SHARE * seconds, inf
        if failures:
            begin, end = failures[0].at, failures[0].at + min(failures[0].seconds, seconds)
        simulation = Simulation(
            self._make_pools(option),
            seed=self._seed,
            routing=self._routing,
            failures=failures,
            counted=lambda at: begin <= at < end,
        )
        return simulation.run(self._list_arrivals(seconds))

    def _count_seconds(self, replicas: int) -> float:
        """Return how long is simulated: enough requests, or the recording."""
        if self._arrivals:
            return self._arrivals[-1].at
        requests = max(SIMULATED_REQUESTS, REQUESTS_PER_REPLICA * replicas)
        return requests / self._demand.requests_per_second

    def _make_pools(self, option: SizeOption) -> list[SimulatedPool]:
        return [
            SimulatedPool(self._speed, pool.draft_length, pool.replicas, pool.kinds)
            for pool in option.pools
        ]

    def _list_arrivals(self, seconds: float) -> Iterable[Arrival]:
        if self._arrivals:
            return self._arrivals
        return draw_requests(self._demand.model_copy(update={"hours": ()}), seconds, self._seed)

    def _fail_one(self, option: SizeOption) -> Outage:
        """Fail a replica, and look for the spares of every pool that hold the goal all the same."""
        self._say("simulating the failure of a replica")
        away = self._speed.start_seconds
        at = 0.4 * self._count_seconds(option.replicas)
        failure = Failure(at=at, seconds=away if away is not None else inf)
        figures = self._run(option, [failure])
        spared, with_spares = option, figures
        for spares in range(1, MOST_SPARES + 1):
            spared = _add_spares(option, spares)
            with_spares = self._run(spared, [failure])
            if hold_goal(self._goal, with_spares):
                break
        return Outage(
            seconds=away,
            replicas=option.replicas,
            figures=figures,
            holds=hold_goal(self._goal, figures),
            spares=spared.replicas - option.replicas,
            with_spares=with_spares,
            spares_hold=hold_goal(self._goal, with_spares),
        )

    def _run_day(self, option: SizeOption) -> DayFigures:
        start = self._speed.start_seconds
        if start is None or not self._demand.hours or len(option.pools) > 1:
            raise InvalidInputError(
                "a day with a scaler takes one pool, the day's hours and the seconds of a start",
                hint="--hours with 24 shares of the busiest hour, and --start-seconds",
            )
        seconds = len(self._demand.hours) * HOUR
        pool = option.pools[0]
        per_replica = max(1.0, pool.mean_batch * HEADROOM)
        scaling = Scaling(
            requests_per_replica=per_replica, least=1, most=2 * option.replicas, start_seconds=start
        )
        figures: list[ServedFigures] = []
        for name, one in (("a fleet of one size", None), ("a scaler", scaling)):
            self._say(f"simulating a day with {name}")
            simulation = Simulation(
                self._make_pools(option), seed=self._seed, routing=self._routing, scaling=one
            )
            figures.append(simulation.run(draw_requests(self._demand, seconds, self._seed)))
        fixed, scaled = figures
        return DayFigures(
            fixed=fixed,
            scaled=scaled,
            start_seconds=start,
            fixed_cost=price_tokens(self._price, fixed.machine_hours, fixed.tokens),
            scaled_cost=price_tokens(self._price, scaled.machine_hours, scaled.tokens),
        )

    def _add_cost(self, option: SizeOption) -> SizeOption:
        tokens = self._demand.tokens_per_second * self._demand.mean_share * HOUR
        cost = price_tokens(self._price, option.replicas, tokens)
        return option.model_copy(update={"cost_per_million": cost})

    def _list_break_even(self) -> Iterable[BreakEven]:
        for kind in self._demand.kinds:
            for one in self._speed.yields:
                if one.kind == kind.kind:
                    yield BreakEven(
                        kind=one.kind,
                        draft_length=one.draft_length,
                        tokens_per_step=one.tokens_per_step,
                        sequences=self._speed.find_break_even(one.kind, one.draft_length),
                    )

    def _list_cautions(self, best: SizeOption | None) -> Iterable[str]:
        yield from self._speed.cautions
        if self._strange:
            yield f"no acceptance is known for {', '.join(self._strange)}: sized as plain only"
        for pool in best.pools if best else ():
            most = self._speed.find_cost(pool.draft_length).most_sequences
            if most is not None and pool.mean_batch > FAR * most:
                yield (
                    f"a mean batch of {pool.mean_batch:.0f} is far beyond the {most:.0f} sequences "
                    "that were measured"
                )
        if self._speed.start_seconds is None:
            yield "how long a start takes is not known: a failed replica is taken to stay away"


def _split(demand: Demand) -> list[Demand]:
    return [demand.model_copy(update={"kinds": (kind,)}) for kind in demand.kinds]


def _rank(option: SizeOption) -> tuple[bool, int, bool]:
    """Put what holds first, then the fewest machines; every pool needs a spare of its own."""
    return option.holds is False, option.replicas + len(option.pools), option.style != "drafted"


def _add_spares(option: SizeOption, spares: int) -> SizeOption:
    pools = tuple(
        pool.model_copy(update={"replicas": pool.replicas + spares}) for pool in option.pools
    )
    return option.model_copy(update={"pools": pools})


def _move(option: SizeOption, more: int) -> SizeOption:
    """Add replicas one by one to the busiest pool, or take them from the idlest, none below one."""
    counts = [pool.replicas for pool in option.pools]
    loads = [pool.busy_share * pool.replicas for pool in option.pools]

    def fill(number: int) -> float:
        return loads[number] / counts[number]

    for _ in range(abs(more)):
        if more > 0:
            counts[max(range(len(counts)), key=fill)] += 1
        elif able := [number for number, count in enumerate(counts) if count > 1]:
            counts[min(able, key=fill)] -= 1
    pools = tuple(
        pool.model_copy(update={"replicas": count, "busy_share": load / count})
        for pool, count, load in zip(option.pools, counts, loads, strict=True)
    )
    return option.model_copy(update={"pools": pools})
