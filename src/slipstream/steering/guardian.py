"""`Drift`: a figure of a running engine that has become worse; the guardian's actions against it.

The guardian notes, lowers the draft length, swaps the drafter back, goes without drafts, restarts:
the mildest first. It only decides; the supervisor carries out. Each action can be forbidden, and
between two of them there is time for the first to show. An order expires, or an engine would stay
slow for a cause long gone.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

from slipstream.records import Record

Family = Literal[
    "acceptance",
    "expected acceptance",
    "first position",
    "step seconds",
    "first token seconds",
    "cached share",
]
Decay = Literal["context collapse", "low power", "traffic of one key"]
Action = Literal["note", "lower", "swap-back", "plain", "restart"]
ACTIONS: tuple[Action, ...] = get_args(Action)
COOL_DOWN_SECONDS = 600.0
RESTART_EVERY_SECONDS = 6 * 3600.0
# An order lasts an hour, then twice as long each time that its drift is found again.
ORDER_SECONDS = 3600.0
LONGEST_ORDER_SECONDS = 24 * 3600.0

# Drafts are not the cause of a slow engine, and no action here repairs a cache or a queue.
_REMEDIES: dict[Family, tuple[Action, ...]] = {
    "acceptance": ("lower", "swap-back", "plain", "restart"),
    "expected acceptance": ("lower", "swap-back", "plain", "restart"),
    "first position": ("lower", "swap-back", "plain", "restart"),
    "step seconds": ("restart",),
    "first token seconds": (),
    "cached share": (),
}
_WORDS: dict[Family, tuple[str, str, float]] = {
    "acceptance": ("acceptance of a token after an accepted one fell", "{:.0%}", 1),
    "expected acceptance": (
        "the accepted share of the drafter's expected tokens fell",
        "{:.0%}",
        1,
    ),
    "first position": ("acceptance of the first position fell", "{:.0%}", 1),
    "step seconds": ("the time of a step rose", "{:.1f} ms", 1000),
    "first token seconds": ("time to first token rose", "{:.2f} s", 1),
    "cached share": ("the cached share of prompts fell", "{:.0%}", 1),
}
_DECAYS: dict[Decay, str] = {
    "context collapse": "it collapses with the length of the context, as in vllm#50021",
    "low power": "the accelerator is in a low-power state: unplug it, and plug it in again",
    "traffic of one key": "only the requests of key {key} changed",
}


class Drift(Record):
    """A lasting change for the worse; `times` counts how often it was seen since.

    `decay` names a known one. `key` is set where only this key's requests changed.
    """

    family: Family
    where: str
    before: float
    after: float
    requests: int
    times: int
    at: float
    decay: Decay | None = None
    key: str | None = None

    def describe(self) -> str:
        words, form, factor = _WORDS[self.family]
        before, after = (form.format(factor * figure) for figure in (self.before, self.after))
        change = f" ({self.after / self.before - 1:+.0%})" if self.before > 0 else ""
        decay = f"; {_DECAYS[self.decay].format(key=self.key)}" if self.decay else ""
        return (
            f"{self.where}: {words} from {before} to {after}{change} over {self.requests} "
            f"requests{decay}"
        )


class GuardianRules(Record):
    """The actions that the guardian may take; with none, it is off."""

    allowed: tuple[Action, ...] = ("note", "lower")


class DrafterSwap(Protocol):
    """A way to return to the previous drafter."""

    def swap_back(self, reason: str) -> bool:
        """Load the previous drafter again, and return whether there is one."""


@dataclass(frozen=True, slots=True)
class Levers:
    """What can be changed: the longest draft, None if it is fixed, and the drafter."""

    draft_length: int | None
    can_swap_back: bool = False


@dataclass(frozen=True, slots=True)
class GuardianStep:
    """An action with its reason; `most` is the new longest draft of 'lower' and 'plain'."""

    action: Action | Literal["lift"]
    reason: str
    most: int | None = None


@dataclass(slots=True)
class Guardian:
    """Decides on actions from drifts; the clock and the engine's levers are arguments."""

    rules: GuardianRules
    most: int | None = field(default=None, init=False)
    _acted_at: float | None = field(default=None, init=False)
    _restarted_at: float | None = field(default=None, init=False)
    _tried_swap: bool = field(default=False, init=False)
    _expires_at: float | None = field(default=None, init=False)
    _orders: int = field(default=0, init=False)

    def decide(
        self, found: Sequence[Drift], active: Sequence[Drift], levers: Levers, now: float
    ) -> list[GuardianStep]:
        """Return what to do about drifts that were found just now, or an order that is old."""
        steps = []
        for drift in found:
            if "note" in self.rules.allowed and drift.times == 1:
                steps.append(GuardianStep("note", drift.describe()))
            if (remedy := self._find_remedy(drift, levers, now)) is not None:
                steps.append(remedy)
        if not found and (lift := self._lift(active, now)) is not None:
            steps.append(lift)
        return steps

    def begin_anew(self) -> None:
        """Start over after another drafter or other settings, which may be reverted later."""
        self._tried_swap = False

    def _find_remedy(self, drift: Drift, levers: Levers, now: float) -> GuardianStep | None:
        """Return the least action that is allowed and left, None while the last one cools down."""
        if drift.decay is not None or self._is_cooling(now):
            return None
        for action in _REMEDIES[drift.family]:
            if action in self.rules.allowed and self._is_left(action, levers, now):
                return self._take(action, drift.describe(), levers, now)
        return None

    def _is_cooling(self, now: float) -> bool:
        return self._acted_at is not None and now - self._acted_at < COOL_DOWN_SECONDS

    def _is_left(self, action: Action, levers: Levers, now: float) -> bool:
        if action in ("lower", "plain"):
            length = self._find_length(levers)
            return length > (1 if action == "lower" else 0)
        if action == "swap-back":
            return levers.can_swap_back and not self._tried_swap
        last = self._restarted_at
        return last is None or now - last >= RESTART_EVERY_SECONDS

    def _find_length(self, levers: Levers) -> int:
        """Return the longest draft that is allowed by now."""
        length = levers.draft_length or 0
        return length if self.most is None else min(length, self.most)

    def _take(self, action: Action, reason: str, levers: Levers, now: float) -> GuardianStep:
        self._acted_at = now
        if action in ("lower", "plain"):
            self.most = self._find_length(levers) // 2 if action == "lower" else 0
            lasting = min(ORDER_SECONDS * 2**self._orders, LONGEST_ORDER_SECONDS)
            self._expires_at, self._orders = now + lasting, self._orders + 1
            return GuardianStep(action, reason, self.most)
        if action == "swap-back":
            self._tried_swap = True
        else:
            self._restarted_at = now
        return GuardianStep(action, reason)

    def _lift(self, active: Sequence[Drift], now: float) -> GuardianStep | None:
        """Lift an order that is old, or whose drifts are over."""
        if self._expires_at is None or self._is_cooling(now):
            return None
        causes = [one for one in active if "lower" in _REMEDIES[one.family] and one.decay is None]
        if causes and now < self._expires_at:
            return None
        self.most = self._expires_at = None
        if causes:
            return GuardianStep("lift", "testing whether the drift is over")
        self._orders = 0
        return GuardianStep("lift", "the drift is over")
