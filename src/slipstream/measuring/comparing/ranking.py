"""From the blocks of three or more arms to an `ArenaVerdict`."""

from collections.abc import Iterator, Mapping, Sequence
from random import Random

from slipstream.hardware.machine_watch import MachineLoad
from slipstream.measuring.comparing.arena_sentence import conclude_arena
from slipstream.measuring.comparing.blocks import Block
from slipstream.measuring.comparing.design import LETTERS, Pair
from slipstream.measuring.comparing.effects import DRAWS, Evidence, gather_evidence
from slipstream.measuring.comparing.statistics import Contrast, Row
from slipstream.measuring.comparing.verdict import (
    ArenaVerdict,
    Outcome,
    PairFindings,
    Place,
    SpeedFinding,
)

_REVERSED: Mapping[Outcome, Outcome] = {"faster": "slower", "slower": "faster"}


def rank(
    blocks: Sequence[Block],
    *,
    arms: Sequence[str],
    seed: int = 0,
    draws: int = DRAWS,
    machines: Sequence[MachineLoad | None] = (),
) -> ArenaVerdict:
    """Return which arm is fastest where; the same blocks and seed say the same again.

    `machines` has what else the machine did during each block. If it was busy, no outcome is drawn.
    """
    names = dict(zip(LETTERS, arms, strict=False))
    found = gather_evidence(blocks, names, seed=seed, draws=draws, machines=machines)
    rows = [(one.kind, one.concurrency) for one in next(iter(found.findings.values()))]
    standings = {row: _Standing(found, row) for row in rows}
    places = tuple(standing.describe(names) for standing in standings.values())
    unclear = [
        contrast
        for (kind, _), standing in standings.items()
        if kind is not None
        for contrast in standing.list_unclear()
    ]
    more = found.speed.count_more_blocks(unclear, Random(seed), draws // 4)
    answer, sentence = conclude_arena(places, found.cautions, arms[0], more, found.measure)
    return ArenaVerdict(
        measure=found.measure,
        arms=tuple(arms),
        blocks=found.blocks,
        pairs=tuple(
            PairFindings(arms=(names[first], names[second]), findings=findings)
            for (first, second), findings in found.findings.items()
        ),
        places=places,
        cautions=found.cautions,
        answer=answer,
        more_blocks=None if found.disturbed else more,
        sentence=sentence,
    )


class _Standing:
    """The arms in one row, the fastest first, and what was shown between them."""

    def __init__(self, evidence: Evidence, row: Row) -> None:
        self.row = row
        self.findings: dict[Pair, SpeedFinding] = {
            pair: one
            for pair, findings in evidence.findings.items()
            for one in findings
            if (one.kind, one.concurrency) == row
        }
        self.first = evidence.speed.noise.design.names[0]
        self.order = sorted(evidence.speed.noise.design.names, key=self._read_ratio, reverse=True)
        self.contenders = [
            arm
            for arm in self.order
            if all(
                self.find_outcome(other, arm) != "faster" for other in self.order if other != arm
            )
        ]

    def _read_ratio(self, arm: str) -> float:
        return 1.0 if arm == self.first else self.findings[self.first, arm].speed_up.ratio

    def find_outcome(self, arm: str, other: str) -> Outcome:
        """Return what was shown of an arm against another."""
        if (other, arm) in self.findings:
            return self.findings[other, arm].outcome
        outcome = self.findings[arm, other].outcome
        return _REVERSED.get(outcome, outcome)

    def list_unclear(self) -> Iterator[Contrast]:
        """List what would have to be settled to know the fastest."""
        best, *others = self.contenders
        for other in others:
            if self.find_outcome(best, other) == "unclear":
                yield (min(best, other), max(best, other)), self.row

    def describe(self, names: Mapping[str, str]) -> Place:
        """Return the row's place in a verdict."""
        best, *others = self.contenders
        against = self.findings.get((self.first, best))
        return Place(
            kind=self.row[0],
            concurrency=self.row[1],
            contenders=tuple(names[arm] for arm in self.contenders),
            even=bool(others) and all(self.find_outcome(best, other) == "even" for other in others),
            speed_up=None if against is None else against.speed_up,
        )
