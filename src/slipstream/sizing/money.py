"""What a fleet costs: by the hour, or by the machine's price, its years and its power.

Every figure is the user's. None of them has a default, and what was not given is unknown.
"""

from typing import Annotated, Literal

from pydantic import Field

from slipstream.errors import UsageError
from slipstream.records import Record

HOURS_PER_YEAR = 8766.0
Amount = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class MachinePrice(Record):
    """One machine's price: for an hour, or bought for so many years and fed with power."""

    schema_version: Literal[1] = 1
    currency: str = ""
    per_hour: Amount | None = None
    purchase: Amount | None = None
    years: Amount | None = None
    watts: Amount | None = None
    per_kilowatt_hour: Amount | None = None

    @property
    def hourly(self) -> float | None:
        """What one machine costs in an hour, None if that was not given."""
        if self.per_hour is not None:
            return self.per_hour
        parts: list[float] = []
        if self.purchase is not None and self.years is not None:
            parts.append(self.purchase / self.years / HOURS_PER_YEAR)
        if self.watts is not None and self.per_kilowatt_hour is not None:
            parts.append(self.watts / 1000 * self.per_kilowatt_hour)
        return sum(parts) if parts else None

    def show(self, amount: float | None) -> str:
        """Write an amount, with its currency if it has one."""
        return "unknown" if amount is None else f"{amount:.2f} {self.currency}".rstrip()


def require_whole(price: MachinePrice) -> MachinePrice:
    """Refuse half of a pair: a price without years, watts without what they cost."""
    pairs = (
        (price.purchase, price.years, "--machine-price and --years"),
        (price.watts, price.per_kilowatt_hour, "--watts and --energy-price"),
    )
    for left, right, names in pairs:
        if (left is None) != (right is None):
            raise UsageError(f"{names} go together", hint=f"give both of {names}, or neither")
    if price.per_hour is not None and (price.purchase is not None or price.watts is not None):
        raise UsageError(
            "a machine has a price per hour or is bought, not both",
            hint="--price alone, or --machine-price, --years, --watts and --energy-price",
        )
    return price


def price_tokens(price: MachinePrice, machine_hours: float, tokens: float) -> float | None:
    """Return the cost of a million answers' tokens, None if it is not known."""
    hourly = price.hourly
    return None if hourly is None or not tokens else hourly * machine_hours / tokens * 1e6
