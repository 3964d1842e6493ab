"""How much one key may have compiled: new constraints take time from everybody.

The engine keeps compiled grammars (512 MiB of them), so a constraint that was seen is free, whoever
sent it. A compile outlives its client: what it costs counts as under way until the first token, or
for ten times its estimate, however early the client leaves.
"""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from slipstream.vllm_plugin.gate.answers import Refusal, try_later
from slipstream.vllm_plugin.gate.compiled_constraints import Form, digest_forms
from slipstream.vllm_plugin.gate.settings import Settings

MINUTE = 60.0
# A slower machine or a larger vocabulary; a unit is a millisecond of a core.
LONGEST_SECONDS_PER_UNIT = 10 / 1000
# A unit takes up to 0.02 MiB of the engine's cache: what is remembered here is still in there.
REMEMBERED_UNITS = 20_000
LEAST_UNITS = 10

Release = Callable[[], None]


@dataclass(slots=True)
class _Compile:
    """One new constraint of a key."""

    began: float
    units: int
    done: float


class SchemaPace:
    """Limits the new constraints of each key, by number and by cost."""

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.follow(settings)
        self._clock = clock
        self._by_caller: dict[str, deque[_Compile]] = {}
        self._seen: OrderedDict[bytes, int] = OrderedDict()
        self._seen_units = 0

    def follow(self, settings: Settings) -> None:
        """Apply the limits of newer settings."""
        self._per_minute = settings.new_schemas_per_minute
        self._units_per_minute = settings.schema_units_per_minute
        self._units_at_once = settings.limits.schema_units

    def admit(self, caller: str, forms: list[Form]) -> Release:
        """Count what is new, or refuse it; return what is to be called at the first token."""
        digest = digest_forms(forms)
        if digest in self._seen:
            self._seen.move_to_end(digest)
            return hold_nothing
        now, units = self._clock(), max(LEAST_UNITS, sum(form.weigh().units for form in forms))
        recent = self._by_caller.setdefault(caller, deque())
        while recent and recent[0].began <= now - MINUTE:
            recent.popleft()
        self._require_room(recent, units, now, forms[0].field)
        hold = min(MINUTE, units * LONGEST_SECONDS_PER_UNIT)
        recent.append(compiling := _Compile(now, units, now + hold))
        self._remember(digest, units)
        return lambda: self._finish(compiling)

    def _require_room(self, recent: deque[_Compile], units: int, now: float, field: str) -> None:
        """Refuse what is too much of a key; the first of a minute always passes."""
        under_way = [one for one in recent if one.done > now]
        total = sum(one.units for one in under_way) + units
        if under_way and total > self._units_at_once:
            what = f"{field}: this and what this key has compiling cost {total} units"
            soonest = min(one.done for one in under_way)
            raise _come_back(
                f"{what}; this server allows up to {self._units_at_once} at once",
                field,
                soonest - now,
            )
        if len(recent) >= self._per_minute:
            what = f"{field}: {len(recent) + 1} new schemas of this key within a minute"
            raise _come_back(
                f"{what}; this server allows up to {self._per_minute}",
                field,
                recent[0].began + MINUTE - now,
            )
        total = sum(one.units for one in recent) + units
        if recent and total > self._units_per_minute:
            what = f"{field}: the new schemas of this key within a minute cost {total} units"
            raise _come_back(
                f"{what}; this server allows up to {self._units_per_minute}",
                field,
                recent[0].began + MINUTE - now,
            )

    def _remember(self, digest: bytes, units: int) -> None:
        self._seen[digest] = units
        self._seen_units += units
        while self._seen_units > REMEMBERED_UNITS and len(self._seen) > 1:
            self._seen_units -= self._seen.popitem(last=False)[1]

    def _finish(self, compiling: _Compile) -> None:
        compiling.done = min(compiling.done, self._clock())


def _come_back(message: str, field: str, seconds: float) -> Refusal:
    refusal = try_later(429, message, max(1, ceil(seconds)), reason="new_schemas")
    refusal.field = field
    return refusal


def hold_nothing() -> None:
    """Do nothing: a known constraint needs no place."""
