"""Which width to draft for the batch at hand, and what a verified token has to be worth.

The width with the most tokens per second wins. Its seconds come from one line over all batches
(`step_costs`), its tokens from what the latest drafts were worth (`survival`), so most widths are
known without being used. One that is not is tried for a few steps, if it may be better by 2 %,
and what tries have really cost stays within half a percent of the time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slipstream.vllm_plugin.steering.step_costs import StepCosts, StepWork
from slipstream.vllm_plugin.steering.survival import Survival

BETTER_BY = 1.02
STEPS_BETWEEN_LOOKS = 8
TRY_STEPS = 4
STEPS_BETWEEN_TRIES = 24
TRY_COST_SHARE = 0.005
# Of steps as they are: what the first tries may cost before there is a time to take a share of.
FIRST_TRIES = 1.5
# A width is known if its seconds are known by so much.
KNOWN_WITHIN = 0.08
# Standard errors to which a width may be better than expected.
HOPE = 2.0
UNTRIED_LOSS = 0.2
NARROWER_BY = 1.05
LEAST_PRICE, MOST_PRICE = 0.02, 0.97
COPY_SHARE = 0.05
# Set to "fixed", the length stays the planned one, and all else is the same.
VARIABLE = "SLIPSTREAM_DRAFT_LENGTH"
# Up to about so many tokens a step of a GPU takes as long as reading the weights.
FREE_TOKENS = 256


def list_lengths(
    config: Any, longest: int, schedule: list[int] | None, environment: Mapping[str, str]
) -> list[int]:
    """List the draft lengths among which may be chosen, which is one if none may.

    `schedule` is vLLM's table of lengths by batch; its index 0 is no batch.
    """
    alone = config.parallel_config.data_parallel_size == 1
    if environment.get(VARIABLE) == "fixed" or not longest or not alone:
        return [longest]
    recorded = config.compilation_config.cudagraph_mode.has_full_cudagraphs()
    if config.use_v2_model_runner and recorded:  # graphs of these lengths only
        return sorted({longest, *(schedule or ())[1:]})
    return list(range(longest + 1))


def begin_on_gpu(longest: int, seats: int, schedule: Sequence[int] | None) -> list[int]:
    """Return the length to begin with by batch, which is never 0 where something is drafted.

    Without a schedule it is as many tokens as cost little beside the weights. In one, a length that
    is shorter than that of a larger batch is there to be recorded, and not to begin with.
    """
    if schedule is None:
        affordable = (FREE_TOKENS // max(1, batch) - 1 for batch in range(seats + 1))
        return [min(longest, max(1, length)) for length in affordable]
    return [max(schedule[max(1, batch) :]) for batch in range(len(schedule))]


class Estimate(NamedTuple):
    """What a width promises at a batch; `hope` is the tokens per second that are not ruled out."""

    length: int
    step_seconds: float
    tokens_per_step: float
    tokens_per_second: float
    hope: float
    known: bool


class MeasuredStep(NamedTuple):
    """One step of the engine: its work, its tokens, and how many of them were copied."""

    work: StepWork
    tokens: int
    seconds: float
    copies: int = 0
    copied: int = 0
    copied_accepted: int = 0


class DraftLength:
    """Chooses among `lengths` for each step, within `least` and `most`: orders from outside.

    `planned` is the length to begin with by number of sequences; without it none is drafted until
    a step without drafts is known.
    """

    def __init__(self, lengths: Sequence[int], planned: Sequence[int] | None = None) -> None:
        self._planned = planned
        self.lengths = tuple(sorted(set(lengths)))
        self.costs = StepCosts()
        self.survival = Survival(self.lengths[-1])
        self.least: int | None = None
        self.most: int | None = None
        self.chosen = self._usual = self.lengths[-1]
        # In tokens: what a verified one costs, and what verifying any costs.
        self.price = self.entry = 0.0
        self.used: Counter[int] = Counter()
        self.seconds = self.lost = 0.0
        self._spent = 0.0
        self._trying: int | None = None
        self._left = self._unlooked = 0
        self._since = STEPS_BETWEEN_TRIES
        self._sequences = self._charged = 0
        self._rate = 0.0
        # Per request and step: how many are left to the drafter, tokens copied and accepted.
        self._drafted_share, self._copied, self._copied_accepted = 1.0, 0.0, 0.0
        # Of steps: how many of them verify copies.
        self._copying = 0.0

    def choose(self, sequences: int) -> int:
        """Return the width to draft in this step."""
        if self._trying in self.allowed and self._left > 0:
            self._left -= 1
            return self.chosen
        self._trying = None
        self._since += 1
        self._unlooked += 1
        moved = sequences != self._sequences
        if moved or self._unlooked >= STEPS_BETWEEN_LOOKS or self._usual not in self.allowed:
            self._look(sequences)
        self.chosen = self._usual if self._trying is None else self._trying
        return self.chosen

    def observe(self, step: MeasuredStep) -> None:
        """Learn from a step, and charge it if it was one of a try."""
        self.costs.observe(step.work, step.seconds)
        self.survival.steps += 1
        self.used[int(step.work.width)] += 1
        self.seconds += step.seconds
        rows = max(1.0, step.work.sequences)
        self._drafted_share += (1 - step.copies / rows - self._drafted_share) * COPY_SHARE
        self._copied += (step.copied / rows - self._copied) * COPY_SHARE
        self._copying += (bool(step.copied) - self._copying) * COPY_SHARE
        accepted = step.copied_accepted / rows
        self._copied_accepted += (accepted - self._copied_accepted) * COPY_SHARE
        if self._charged > 0:
            self._charged -= 1
            self._charge(step)

    def dump(self) -> dict[str, Any]:
        """Return what was learnt, for the next engine of the same plan."""
        return {"costs": self.costs.dump(), "survival": self.survival.dump()}

    def load(self, found: Any) -> None:
        """Begin with what another engine has learnt, or raise an error and begin anew."""
        costs = StepCosts()
        costs.load(found["costs"])
        self.survival.load(found["survival"])
        self.costs = costs

    def forget_drafts(self) -> None:
        """Forget the worth of drafts, since another drafter makes them."""
        self.survival.forget()
        self._trying = None

    def estimate(self, sequences: int) -> list[Estimate]:
        """Estimate every allowed width at a batch."""
        return [
            self._estimate(sequences, length, verified, gained, error)
            for length, verified, gained, error in self._list_worth()
        ]

    @property
    def allowed(self) -> tuple[int, ...]:
        """The lengths within the order, or else the shortest."""
        least = 0 if self.least is None else self.least
        most = self.lengths[-1] if self.most is None else self.most
        within = tuple(length for length in self.lengths if least <= length <= most)
        return within or self.lengths[:1]

    @property
    def is_exact(self) -> bool:
        """Whether drafts are of one length, which is then verified whole."""
        return len(self.allowed) == 1

    def _list_worth(self) -> list[tuple[int, float, float, float]]:
        verified, gained, error = self.survival.weigh(0.0 if self.is_exact else self.price)
        return [
            (length, float(verified[length]), float(gained[length]), float(error[length]))
            for length in self.allowed
        ]

    def _estimate(
        self, sequences: int, length: int, verified: float, gained: float, error: float
    ) -> Estimate:
        share = self._drafted_share
        kept = sequences * (self._copied + share * verified)
        verifying = 1.0 if length else self._copying
        work = StepWork(sequences, verified=kept, width=length, verifying=verifying)
        seconds, doubt = self.costs.expect(work), self.costs.doubt(work)
        tokens = 1 + self._copied_accepted + share * gained
        hoped = tokens + share * HOPE * error
        # It takes at least what the target alone takes for these tokens.
        least = max(self.costs.expect(work._replace(width=0.0)), seconds - HOPE * doubt)
        return Estimate(
            length,
            seconds,
            tokens,
            sequences * tokens / seconds,
            sequences * (hoped if length else tokens) / least,
            doubt < KNOWN_WITHIN * seconds,
        )

    def _look(self, sequences: int) -> None:
        """Settle on the best of the widths that are known, and perhaps try another one."""
        self._sequences, self._unlooked = sequences, 0
        self.survival.settle()
        estimates = self.estimate(sequences)
        usual = self._settle(sequences, estimates)
        self._usual, self._rate = usual.length, usual.tokens_per_second
        self.price = self._find_price(sequences)
        self.entry = min(self._rate * self.costs.per_verification, sequences)
        # A batch that has just come is served as usual first.
        if self._since >= STEPS_BETWEEN_TRIES and usual.known:
            self._try_another(usual, estimates)

    def _settle(self, sequences: int, estimates: list[Estimate]) -> Estimate:
        known = [one for one in estimates if one.known]
        if not known:
            return self._begin(sequences, estimates)
        best = max(known, key=lambda one: one.tokens_per_second)
        usual = next((one for one in known if one.length == self._usual), best)
        better = best.tokens_per_second > BETTER_BY * usual.tokens_per_second
        return best if better else usual

    def _begin(self, sequences: int, estimates: list[Estimate]) -> Estimate:
        """Return the planned length, or else the shortest."""
        if self._planned is None:
            return estimates[0]
        planned = self._planned[min(sequences, len(self._planned) - 1)]
        return next((one for one in estimates if one.length == planned), estimates[0])

    def _find_price(self, sequences: int) -> float:
        """Return what a verified token costs, in tokens that its seconds would bring otherwise."""
        if not self.costs.per_token:
            return min(MOST_PRICE, 0.05 + 0.03 * sequences)
        return min(max(self._rate * self.costs.per_token, LEAST_PRICE), MOST_PRICE)

    def _try_another(self, usual: Estimate, estimates: list[Estimate]) -> None:
        """Try the width that could be the best, if that is another one and may cost something."""
        most = max(one.hope for one in estimates)
        # A narrower one costs less to try, and teaches as much of the others.
        hoped = next(one for one in estimates if one.hope >= most / NARROWER_BY)
        if hoped.length == usual.length or hoped.hope < BETTER_BY * usual.tokens_per_second:
            return
        share = 1 - hoped.tokens_per_second / usual.tokens_per_second
        share = max(0.0 if hoped.known else UNTRIED_LOSS, share)
        cost = TRY_STEPS * share * hoped.step_seconds
        if self._spent + cost <= TRY_COST_SHARE * self.seconds + FIRST_TRIES * usual.step_seconds:
            self._trying, self._left, self._since = hoped.length, TRY_STEPS - 1, 0
            self._charged = TRY_STEPS + 1  # The last drafts are verified a step later.

    def _charge(self, step: MeasuredStep) -> None:
        """Charge what a step of a try took beyond what its tokens take as usual."""
        if not step.work.sequences:
            return
        estimates = self.estimate(int(step.work.sequences))
        usual = next((one for one in estimates if one.length == self._usual), estimates[0])
        reading = self.costs.expect(step.work) - self.costs.expect(step.work._replace(prompt=0.0))
        loss = step.seconds - reading - step.tokens / usual.tokens_per_second
        self.lost += loss
        self._spent = max(0.0, self._spent + loss)
