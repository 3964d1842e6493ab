"""Watches a ledger's requests, one by one, and keeps the drifts that are active.

Every figure becomes a value between 0 and 1 of which less is worse (README.md). What the load or
the controller of the draft length changes is no drift: acceptance is taken per token, and a time
relative to what is expected of it. Where drafts are cut by request, what is verified depends on the
load: there acceptance is relative to what the drafter expected of the tokens that were verified,
and a first token that was not counts with its chance. Each stream has a detector, for what changes
in one kind of requests only, and each family one over all its streams, which is sooner for what
changes everywhere. Both use the streams' own baselines, so another mix of requests is no change.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from statistics import fmean
from typing import NamedTuple, TypeVar

from slipstream.steering.change_detection import (
    Baseline,
    Change,
    ChangeMargin,
    Detector,
    Likeness,
    find_baseline_error,
    find_threshold,
)
from slipstream.steering.drafts import solve_acceptance
from slipstream.steering.guardian import Decay, Drift, Family
from slipstream.steering.ledger import LedgerLine, name_context
from slipstream.steering.step_time import ExpectedTime

MOST_STREAMS = 256
KEPT_REQUESTS = 200
# Requests of others, before one key or one stream is held to be all that changed.
LEAST_OTHERS = 10
# Below this share of its acceptance in a short context, a drafter has collapsed.
COLLAPSED_SHARE = 0.5
SHORT_CONTEXT = name_context(0)
# Beyond a family's margin: larger falls are seen sooner by betting on them.
LARGER_MARGINS = (0.0, 0.25, 0.5)
# Fewer drafts or steps say too little about a request.
LEAST_DRAFTS = 4
LEAST_EXPECTED = 4.0
# Of a request's steps.
MOST_COPIES = 0.1
LEAST_STEPS = 8
# The engine caches whole blocks of 16 to 128 tokens.
LEAST_PROMPT_TOKENS = 256
BATCH_BOUNDS = (1, 2, 4, 8, 16, 32)
LENGTH_BOUNDS = (0, 1, 3, 7, 15)
PROMPT_BOUNDS = (64, 256, 1024, 4096)
FEATURES = 4


@dataclass(frozen=True, slots=True)
class FigureScale:
    """How a family's figures become values, and by what share they may be worse without a report.

    A share is a value already, a ratio up to `most`. A time counts in octaves around what is
    expected of it, up to `octaves` either way.
    """

    margin: float
    octaves: float | None = None
    most: float = 1.0

    @property
    def is_time(self) -> bool:
        return self.octaves is not None

    @property
    def margins(self) -> tuple[ChangeMargin, ...]:
        """The margins to bet with, the least first; of a time a margin is a step in octaves."""
        lefts = [1 - larger for larger in LARGER_MARGINS]
        if self.octaves is None:
            return tuple(ChangeMargin(share=1 - (1 - self.margin) * left) for left in lefts)
        factors = [(1 + self.margin) / left for left in lefts]
        return tuple(ChangeMargin(step=log2(factor) / (2 * self.octaves)) for factor in factors)

    def to_value(self, figure: float, expected: float) -> float:
        """Return a figure as a value from 0 to 1, of which less is worse."""
        if self.octaves is not None:
            figure = 0.5 - log2(max(figure, 1e-9) / expected) / (2 * self.octaves)
        return min(1.0, max(0.0, figure / self.most))

    def to_figure(self, value: float, expected: float) -> float:
        if self.octaves is None:
            return value * self.most
        return float(expected * 2 ** ((0.5 - value) * 2 * self.octaves))


# A mix that changes within a kind moves acceptance by a few percent, and queues move the first
# token by more than that.
FORMS: dict[Family, FigureScale] = {
    "acceptance": FigureScale(margin=0.05),
    "expected acceptance": FigureScale(margin=0.05, most=2.0),
    "first position": FigureScale(margin=0.05),
    "step seconds": FigureScale(margin=0.1, octaves=1.0),
    "first token seconds": FigureScale(margin=0.5, octaves=2.0),
    "cached share": FigureScale(margin=0.2),
}


@dataclass(frozen=True, slots=True)
class LoadCell:
    """What the requests of a stream have in common; None where they may differ."""

    kind: str | None = None
    context: str | None = None
    draft_length: int | None = None
    batch: int | None = None
    prompt: int | None = None

    def __str__(self) -> str:
        parts = [self.kind, self.context and f"context {self.context}"]
        for name, bound, bounds in (
            ("drafts", self.draft_length, LENGTH_BOUNDS),
            ("batch", self.batch, BATCH_BOUNDS),
            ("prompt", self.prompt, PROMPT_BOUNDS),
        ):
            if bound is not None:
                most = f"over {bounds[-1]}" if bound > bounds[-1] else f"up to {bound}"
                parts.append(f"{name} {most}")
        return ", ".join(filter(None, parts))


@dataclass(frozen=True, slots=True)
class Observation:
    """A figure of one request, its stream, and the features that a time depends on."""

    family: Family
    place: LoadCell
    figure: float
    features: tuple[float, ...] = ()


def observe(line: LedgerLine) -> Iterator[Observation]:
    """Yield what a request says, at most one figure per family."""
    context = name_context(line.context_tokens)
    yield from _observe_drafts(line, LoadCell(kind=line.kind, context=context))
    if line.prompt_tokens >= LEAST_PROMPT_TOKENS:
        share = min(1.0, line.cached_tokens / line.prompt_tokens)
        yield Observation("cached share", LoadCell(kind=line.kind), share)
    if line.first_seconds is not None:
        yield from _observe_times(line, line.first_seconds, context)


def _observe_drafts(line: LedgerLine, place: LoadCell) -> Iterator[Observation]:
    accepted, first = sum(line.accepted), line.accepted[0] if line.accepted else 0
    if line.expected is not None:
        if line.expected >= LEAST_EXPECTED:
            yield Observation("expected acceptance", place, accepted / line.expected)
        # Text that repeats is easy for a drafter, too: without those steps it would seem worse.
        if line.proposals >= LEAST_DRAFTS and line.copies <= MOST_COPIES * line.steps:
            chance = (first + line.first_expected) / line.proposals
            yield Observation("first position", place, min(1.0, chance))
    elif line.drafts >= LEAST_DRAFTS:
        length = line.drafted / line.drafts
        own = LoadCell(kind=line.kind, draft_length=_find_bound(length, LENGTH_BOUNDS))
        yield Observation("acceptance", own, solve_acceptance(accepted / line.drafts, length))
        yield Observation("first position", place, min(1.0, first / line.drafts))


def _observe_times(line: LedgerLine, first: float, context: str) -> Iterator[Observation]:
    sequences = line.batch or 1.0
    batch = _find_bound(sequences, BATCH_BOUNDS)
    if line.steps >= LEAST_STEPS:
        length = line.verified_per_step
        place = LoadCell(
            context=context, draft_length=_find_bound(length, LENGTH_BOUNDS), batch=batch
        )
        features = (1.0, sequences, sequences * length, line.context_tokens / 1024)
        seconds = max(0.0, line.seconds - first) / (line.steps - 1)
        yield Observation("step seconds", place, seconds, features)
    place = LoadCell(batch=batch, prompt=_find_bound(line.uncached_tokens, PROMPT_BOUNDS))
    features = (1.0, sequences, line.uncached_tokens / 1024, line.prompt_tokens / 1024)
    yield Observation("first token seconds", place, first, features)


def _find_bound(size: float, bounds: tuple[int, ...]) -> int:
    """Return the smallest bound that is not below a size, or twice the last."""
    return next((bound for bound in bounds if size <= bound), 2 * bounds[-1])


EVERYWHERE = LoadCell()
Key = tuple[Family, LoadCell]
Name = TypeVar("Name")


class _Latest(NamedTuple):
    """A value's stream, its deviation from the mean, and both figures."""

    key: str | None
    place: LoadCell
    apart: float
    figures: tuple[float, float]


class _Watched:
    """A detector with its latest values; `kept` is the key of its drift."""

    def __init__(self, family: Family) -> None:
        # Per family, a request has a value for one stream and for the whole; of acceptance and
        # expected acceptance it has one.
        threshold = find_threshold(2 * (len(FORMS) - 1))
        self.detector = Detector(threshold, len(FORMS[family].margins))
        self.latest = deque[_Latest](maxlen=KEPT_REQUESTS)
        self.kept: Key | None = None


class _Whole(_Watched):
    """All streams of a family, what they share, and the expected times."""

    def __init__(self, family: Family) -> None:
        super().__init__(family)
        self.likeness, self.time = Likeness(), ExpectedTime(FEATURES)

    def expect(self, observation: Observation) -> float | None:
        """Return the time to expect, None if that is not known yet; a share needs none."""
        features = observation.features
        if not features:
            return 1.0
        expected = self.time.predict(features)
        if self.detector.change is None:
            self.time.learn(features, observation.figure)
        return expected


class _Own(_Watched):
    """One stream; `rest` bounds its mean from above."""

    def __init__(self, family: Family, error: float, likeness: Likeness) -> None:
        super().__init__(family)
        self.baseline, self.rest = Baseline(error, likeness), Baseline(error)


class LedgerWatch:
    """The streams of a ledger; `drifts` are those that are active."""

    def __init__(self) -> None:
        self.drifts: dict[Key, Drift] = {}
        self._families: dict[Family, _Whole] = {}
        self._streams: dict[Key, _Own] = {}
        self._opened = 0

    def add(self, line: LedgerLine) -> list[Drift]:
        """Add a request, and return the drifts that it shows, for the first time or again."""
        drifts = (self._add(observation, line) for observation in observe(line))
        return [drift for drift in drifts if drift is not None]

    def list_active(self) -> list[Drift]:
        """Return the drifts that are active, the latest first, without parts of larger ones."""
        whole = [drift for key, drift in self.drifts.items() if not self._is_part(key)]
        return sorted(whole, key=lambda drift: -drift.at)

    def forget(self) -> None:
        """Start over, since another drafter or other settings have other figures."""
        self.drifts, self._families, self._streams = {}, {}, {}

    def _add(self, observation: Observation, line: LedgerLine) -> Drift | None:
        family, place = observation.family, observation.place
        whole = self._families.get(family) or self._families.setdefault(family, _Whole(family))
        if (expected := whole.expect(observation)) is None:
            return None
        own = self._streams.get((family, place)) or self._open(family, place, whole.likeness)
        if own is None:
            return None
        form, baseline = FORMS[family], own.baseline
        value = form.to_value(observation.figure, expected)
        bets = baseline.find_bets(form.margins)
        figures = form.to_figure(baseline.mean, expected), form.to_figure(value, expected)
        latest = _Latest(line.key, place, value - baseline.mean, figures)
        found = None
        for watched, where in ((whole, EVERYWHERE), (own, place)):
            watched.latest.append(latest)
            if watched.detector.add(value, bets, figures):
                found = self._update((family, where), watched, line.at) or found
        if whole.detector.change is None and own.detector.change is None:
            baseline.add(value)
            if family == "first position":
                own.rest.add(1 - value)
                found = found or self._compare_contexts((family, place), own, line.at)
        return found

    def _open(self, family: Family, place: LoadCell, likeness: Likeness) -> _Own | None:
        if len(self._streams) >= MOST_STREAMS:
            return None
        self._opened += 1
        error = find_baseline_error(self._opened) / 2
        return self._streams.setdefault((family, place), _Own(family, error, likeness))

    def _update(self, key: Key, watched: _Watched, at: float) -> Drift | None:
        """Save a detector's change as a drift, or end it."""
        change = watched.detector.change
        if change is None:
            self.drifts.pop(watched.kept or key, None)
            watched.kept = None
            return None
        latest = list(watched.latest)[-change.values :]
        family, place = key
        if place == EVERYWHERE and (only := _find_only_place(latest)) is not None:
            key = (family, only)
            if key in self.drifts:
                return None
            change = _narrow(change, [one for one in latest if one.place == only])
        watched.kept = key
        owner = None
        if not FORMS[family].is_time:
            owner = _find_only([one.key for one in latest], latest)
        decay: Decay | None = "traffic of one key" if owner else None
        if decay is None and self._is_long_only(key, change):
            decay = "context collapse"
        return self._keep(key, change, at, decay, owner)

    def _is_long_only(self, key: Key, change: Change) -> bool:
        """Return whether acceptance collapsed in long contexts, and not in short ones."""
        family, place = key
        short = (family, LoadCell(kind=place.kind, context=SHORT_CONTEXT))
        return (
            family == "first position"
            and key not in (short, (family, EVERYWHERE))
            and short not in self.drifts
            and change.after < COLLAPSED_SHARE * change.before
        )

    def _compare_contexts(self, key: Key, own: _Own, at: float) -> Drift | None:
        """Return a collapse with the context that was there from the start, and so is no change."""
        short = self._streams.get((key[0], LoadCell(kind=key[1].kind, context=SHORT_CONTEXT)))
        if short is None or short is own or key in self.drifts:
            return None
        expected, found = short.baseline, own.baseline
        if 1 - own.rest.lower >= COLLAPSED_SHARE * expected.lower:
            return None
        change = Change(expected.mean, 1 - own.rest.mean, found.count, 1)
        return self._keep(key, change, at, "context collapse", None)

    def _keep(
        self, key: Key, change: Change, at: float, decay: Decay | None, owner: str | None
    ) -> Drift | None:
        """Save a drift, and return it unless it is part of one that is everywhere."""
        family, place = key
        self.drifts[key] = drift = Drift(
            family=family,
            where=str(place) or "all requests",
            before=change.before,
            after=change.after,
            requests=change.values,
            times=change.times,
            at=at,
            decay=decay,
            key=owner,
        )
        return None if self._is_part(key) else drift

    def _is_part(self, key: Key) -> bool:
        family, place = key
        return place != EVERYWHERE and (family, EVERYWHERE) in self.drifts


def _find_only_place(latest: Sequence[_Latest]) -> LoadCell | None:
    """Return the stream that changed, None if there are several."""
    places = [one.place for one in latest]
    return places[0] if len(set(places)) == 1 else _find_only(places, latest)


def _find_only(names: Sequence[Name], latest: Sequence[_Latest]) -> Name | None:
    """Return the name whose values fell, if those of all others did not."""
    fallen = dict.fromkeys(names, 0.0)
    for name, one in zip(names, latest, strict=True):
        fallen[name] += one.apart
    least = min(fallen, key=fallen.__getitem__)
    others = [one.apart for name, one in zip(names, latest, strict=True) if name != least]
    if len(others) < LEAST_OTHERS:
        return None
    return least if fmean(others) > fmean(one.apart for one in latest) / 2 else None


def _narrow(change: Change, latest: Sequence[_Latest]) -> Change:
    """Return a change with the figures of some of its values."""
    before, after = (fmean(one.figures[place] for one in latest) for place in (0, 1))
    return replace(change, before=before, after=after, values=len(latest))
