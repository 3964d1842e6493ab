"""`Sizing`: how many replicas a demand takes, drafted, plain or mixed, with intervals and costs."""

import re
from typing import Literal

from slipstream.errors import UsageError
from slipstream.records import Record
from slipstream.sizing.demand import Demand
from slipstream.sizing.engine_speed import EngineSpeed
from slipstream.steering.percentiles import Percentiles
from slipstream.tuning.goal import Goal

HOURS_PER_YEAR = 8766.0
Style = Literal["drafted", "plain", "mixed"]
Routing = Literal["random", "power-of-two"]
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_PRICE = re.compile(
    rf"{_NUMBER}\s*([^\W\d_]{{1,12}}|[^\w\s/+*.]|)"
    rf"(?:\s*/\s*{_NUMBER}\s*y)?(?:\s*\+\s*{_NUMBER}\s*w\s*\*\s*{_NUMBER})?",
    re.IGNORECASE,
)


class MachinePrice(Record):
    """What a replica's machines cost in an hour, None if that was not given."""

    stated: str = ""
    currency: str = ""
    hourly: float | None = None

    def show(self, amount: float | None) -> str:
        """Write an amount, with its currency if it has one."""
        return "unknown" if amount is None else f"{amount:.2f} {self.currency}".rstrip()

    def per_million(self, machine_hours: float, tokens: float) -> float | None:
        """Return the cost of a million answers' tokens, None if it is not known."""
        if self.hourly is None or not tokens:
            return None
        return self.hourly * machine_hours / tokens * 1e6


def parse_price(text: str) -> MachinePrice:
    """Read a price per hour such as `0.5EUR`, or a bought machine's: `4000EUR/3y+240W*0.3`."""
    found = _PRICE.fullmatch(text.strip())
    amounts = [float(part) for part in found.group(1, 3, 4, 5) if part] if found else []
    if found is None or not all(amounts):
        raise UsageError(
            f"the price {text!r} is neither an amount per hour nor an amount over years",
            hint="--price 0.5EUR, or --price '4000EUR/3y+240W*0.3' with power per kilowatt-hour",
        )
    amount, currency, years, watts, energy = found.groups()
    hourly = float(amount) / (float(years) * HOURS_PER_YEAR if years else 1)
    power = float(watts) / 1000 * float(energy) if watts else 0.0
    return MachinePrice(stated=text.strip(), currency=currency, hourly=hourly + power)


class ServedFigures(Record):
    """What the counted requests of a simulation got, and the fleet in all of it.

    `seconds` is the time in which counted requests arrived; one without a second token has no
    `tpot`. `reached` has the times at the shares of the goal's limits, in their order, and
    `meets_goal` is whether all of them are met. `lost` were cut off by a failure, `busy_share` is
    how much of the replicas' time was steps.
    """

    requests: int
    lost: int
    tokens: int
    seconds: float
    tokens_per_second: float
    ttft: Percentiles | None
    tpot: Percentiles | None
    reached: tuple[float | None, ...]
    meets_goal: bool
    busy_share: float
    mean_in_flight: float
    machine_hours: float
    most_replicas: int
    fewest_replicas: int


class PoolSize(Record):
    """Replicas alike: the kinds that they serve, their draft length, how many there are.

    `low` and `high` are the counts if every step were faster or slower by the speed's error; `high`
    is None if no count meets the goal then. The rest is one replica by the arithmetic: its requests
    per second, the steps of each, the share of its time that prompts take, the sequences in it, the
    seconds of a step with so many, and its load over the largest that does not queue without end.
    """

    kinds: tuple[str, ...]
    draft_length: int
    replicas: int
    low: int
    high: int | None
    arrivals: float
    steps: float
    prompt_share: float
    mean_batch: float
    step_seconds: float
    busy_share: float


class SizeOption(Record):
    """One way to serve the demand; `simulated` is None without a simulation."""

    style: Style
    pools: tuple[PoolSize, ...]
    simulated: ServedFigures | None = None
    cost_per_million: float | None = None

    @property
    def meets_goal(self) -> bool | None:
        """Whether the simulation held the goal, None without one."""
        return None if self.simulated is None else self.simulated.meets_goal

    @property
    def replicas(self) -> int:
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


class CountTimes(Record):
    """The times at the goal's limits with so many replicas, by the arithmetic; None without end."""

    replicas: int
    seconds: tuple[float | None, ...]


class DraftBreakEven(Record):
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
    spares: int
    with_spares: ServedFigures


class DayFigures(Record):
    """A simulated day: a fleet of one size, and one that follows the load."""

    fixed: ServedFigures
    scaled: ServedFigures
    start_seconds: float
    fixed_cost: float | None
    scaled_cost: float | None


class Sizing(Record):
    """The answer, the options beside it and all that it rests on."""

    schema_version: Literal[3] = 3
    demand: Demand
    goal: Goal
    speed: EngineSpeed
    price: MachinePrice
    seed: int
    routing: Routing
    options: tuple[SizeOption, ...]
    missed: tuple[str, ...]
    by_count: tuple[CountTimes, ...]
    break_even: tuple[DraftBreakEven, ...]
    outage: Outage | None
    day: DayFigures | None
    cautions: tuple[str, ...]

    @property
    def best(self) -> SizeOption | None:
        """The option with the fewest machines, spares included; None if none meets the goal."""
        return self.options[0] if self.options else None
