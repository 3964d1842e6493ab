"""`Sizing`: how many replicas a demand takes, drafted, plain or mixed, with intervals."""

from typing import Literal

from slipstream.records import Record
from slipstream.sizing.demand import Demand
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.sizing.money import MachinePrice
from slipstream.sizing.served_figures import ServedFigures, TimeQuantiles
from slipstream.sizing.service_goal import ServiceGoal
from slipstream.sizing.simulation import Routing

Style = Literal["drafted", "plain", "mixed"]


class PoolSize(Record):
    """Replicas alike: the kinds that they serve, their draft length, how many there are.

    `low` and `high` are the counts if every step were faster or slower by the speed's error; `high`
    is None if no count holds the goal then. `mean_batch` is by the arithmetic.
    """

    kinds: tuple[str, ...]
    draft_length: int
    replicas: int
    low: int
    high: int | None
    mean_batch: float
    busy_share: float


class SizeOption(Record):
    """One way to serve the demand; `simulated` and `holds` are None without a simulation."""

    style: Style
    pools: tuple[PoolSize, ...]
    holds: bool | None = None
    simulated: ServedFigures | None = None
    cost_per_million: float | None = None

    @property
    def replicas(self) -> int:
        """All replicas."""
        return sum(pool.replicas for pool in self.pools)

    @property
    def low(self) -> int:
        """All replicas, if the engine is as fast as its error allows."""
        return sum(pool.low for pool in self.pools)

    @property
    def high(self) -> int | None:
        """All replicas, if it is as slow; None if no count would do."""
        highs = [pool.high for pool in self.pools]
        return None if None in highs else sum(one or 0 for one in highs)


class BreakEven(Record):
    """The batch from which drafts of a length cost more than they bring, None if there is none."""

    kind: str
    draft_length: int
    tokens_per_step: float
    sequences: float | None


class Outage(Record):
    """What requests get while one replica of the first pool is away, without spares and with them.

    `spares` are those of all pools, as many in each.
    """

    seconds: float | None
    replicas: int
    figures: ServedFigures
    holds: bool
    spares: int
    with_spares: ServedFigures
    spares_hold: bool


class DayFigures(Record):
    """A simulated day: a fleet of one size, and one that follows the load."""

    fixed: ServedFigures
    scaled: ServedFigures
    start_seconds: float
    fixed_cost: float | None
    scaled_cost: float | None


class Sizing(Record):
    """The answer, the options beside it and all that it rests on."""

    schema_version: Literal[1] = 1
    demand: Demand
    goal: ServiceGoal
    speed: EngineSpeed
    price: MachinePrice
    seed: int
    routing: Routing
    options: tuple[SizeOption, ...]
    missed: tuple[str, ...]
    break_even: tuple[BreakEven, ...]
    outage: Outage | None
    day: DayFigures | None
    cautions: tuple[str, ...]

    @property
    def best(self) -> SizeOption | None:
        """The option with the fewest machines, spares included; None if none holds the goal."""
        return self.options[0] if self.options else None


def hold_goal(goal: ServiceGoal, figures: ServedFigures) -> bool:
    """Say whether simulated requests held the goal."""
    times = {"ttft": figures.ttft, "tpot": figures.tpot}
    for limit in goal.limits:
        name = _find_quantile(limit.share)
        reached = getattr(times[limit.figure], name)
        if reached is not None and reached > limit.seconds:
            return False
    return True


def _find_quantile(share: float) -> str:
    names = {float(name[1:]) / 100: name for name in TimeQuantiles.model_fields}
    enough = [one for one in names if one >= share - 1e-9]
    return names[min(enough)] if enough else names[max(names)]
