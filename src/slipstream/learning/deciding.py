"""Whether a round is begun, before anything is trained, and on which text.

The ledger says what a better drafter would save: a tenth more tokens per step is that many fewer
steps, each of the time that they took. Training takes idle time of the same machine, and pays if
what it saves in a week is more than it takes.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import zip_longest
from pathlib import Path

import numpy as np

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.checkpoints.reading import read_checkpoint
from slipstream.learning.generation import Generation, LearningFolder
from slipstream.learning.kept_text import KeptAnswer, read_kept
from slipstream.records import Record
from slipstream.serving.run import Run
from slipstream.steering.guardian import Drift
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine, read_ledger
from slipstream.steering.state import Kind
from slipstream.training.estimate import MEASURED_DRAFTER, MEASURED_TARGET, STATE_TOKENS_PER_S
from slipstream.training.run import Schedule
from slipstream.units import show_bytes

BETTER = 0.1
PAYS_WITHIN_DAYS = 7
DAY_SECONDS = 86_400.0
# A drift needs less new text to be acted upon.
DRIFT_SHARE = 0.25
DRIFTS = ("acceptance", "expected acceptance", "first position")
# Text that is trained on: all that is new up to a bound, and this share of older text with it.
MOST_NEW_TOKENS = 200_000
REPLAY_SHARE = 0.4
HELD_OUT_OF = 5
HELD_OUT_PER_KIND = 24
LEAST_ANSWERS = 16
MOST_SAMPLE_TOKENS = 2048
# Of the same question: a loop of one client teaches nothing more.
ANSWERS_PER_PROMPT = 2
CONTEXT = 512
RATE = 1e-4
PROBE_STEPS = 50
LEAST_STEPS, MOST_STEPS, EVALUATIONS = 50, 2000, 6
# How often a token of an answer is an anchor, in the mean.
PASSES = 3
# Of the proving ground's pair, as the rate of reading.
STEP_SECONDS = 0.5
# Weights, gradients, a float32 copy and the optimizer's momentum; and what a step computes with.
BYTES_PER_WEIGHT, STEP_BYTES = 14, 1 << 30


class KindBenefit(Record):
    """What one kind of requests took by the ledger, and what better drafts would save a day."""

    kind: str
    token_share: float
    tokens_per_step: float | None
    seconds_per_day: float
    saved_seconds_per_day: float


class Benefit(Record):
    """The decision before a round, with its reason and figures."""

    kinds: tuple[KindBenefit, ...]
    saved_seconds_per_day: float
    cost_seconds: float
    pays: bool
    because: str


@dataclass(frozen=True, slots=True)
class RoundText:
    """Answers of a round: held out by kind, and to train on, of which some are older."""

    held_out: list[KeptAnswer]
    training: list[KeptAnswer]
    new_tokens: int
    replayed_tokens: int
    until: int

    @property
    def sha256(self) -> str:
        digest = sha256()
        for one in (*self.held_out, *self.training):
            digest.update(one.prompt.tobytes() + b"|" + one.answer.tobytes() + b"\n")
        return digest.hexdigest()


def settle_schedule(training_tokens: int, steps: int | None, *, seed: int) -> Schedule:
    """Return the schedule of a round: a few passes over its text, at a low rate."""
    usual = Schedule(steps=1)
    passes = round(PASSES * training_tokens / (usual.rows * usual.anchors))
    steps = steps or min(MOST_STEPS, max(LEAST_STEPS, passes))
    return usual.model_copy(
        update={
            **{"steps": steps, "learning_rate": RATE, "seed": seed, "context": CONTEXT},
            # Compiling takes a minute of every start, and a round may have many.
            **{"compiled": False, "evaluate_every": max(1, steps // EVALUATIONS)},
        }
    )


def estimate_cost(
    tokens: int,
    schedule: Schedule,
    target: Checkpoint,
    drafter: Checkpoint,
    generations: Sequence[Generation],
) -> float:
    """Return the seconds that a round takes: as the last one did, or from the proving ground's."""
    for earlier in reversed(generations):
        if earlier.seconds and (trained := earlier.new_tokens + earlier.replayed_tokens):
            return earlier.seconds / trained * tokens
    steps = STEP_SECONDS * count_weights(drafter) / MEASURED_DRAFTER
    reading = tokens / STATE_TOKENS_PER_S * count_weights(target) / MEASURED_TARGET
    return (schedule.steps + PROBE_STEPS) * steps + reading


def count_weights(checkpoint: Checkpoint) -> int:
    """Count weights of two bytes; a checkpoint whose files do not say has those measured with."""
    return checkpoint.weights.total_bytes // 2 if checkpoint.weights else int(MEASURED_TARGET)


def find_lack_of_memory(
    target: Checkpoint, drafter: Checkpoint, free_bytes: int | None
) -> str | None:
    """Return what is missing for training beside the engine, if that is known."""
    needed = 2 * count_weights(target) + BYTES_PER_WEIGHT * count_weights(drafter) + STEP_BYTES
    if free_bytes is None or free_bytes >= needed:
        return None
    return f"training takes {show_bytes(needed)} of memory, and {show_bytes(free_bytes)} are free"


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a round would be now: why one is due, its text, its worth, and what is missing."""

    trigger: str | None
    new_tokens: int
    material: RoundText | None
    schedule: Schedule
    worth: Benefit
    lack: str | None

    def find_objection(self, *, forced: bool) -> str | None:
        """Return why no round is begun; whoever asks for one decides himself what it is worth."""
        if self.material is None:
            return "too little text is kept: too few different prompts, or none to evaluate with"
        if self.lack is not None:
            return self.lack
        return None if forced or self.worth.pays else self.worth.because


def look_ahead(
    run: Run,
    ledgers: Iterable[Path],
    home: LearningFolder,
    serving: Generation,
    free_bytes: int | None,
    steps: int | None,
) -> Prospect:
    """Read what is kept and what the ledger says, and return what a round would be."""
    progress, kept = home.read_progress(), list(read_kept(home.text))
    new_tokens = count_tokens(one for one in kept if one.at > progress.learnt_until)
    material = choose_text(kept, progress.learnt_until, context=CONTEXT)
    tokens = material.new_tokens + material.replayed_tokens if material else new_tokens
    schedule = settle_schedule(tokens, steps, seed=progress.rounds)
    target, drafter = (
        read_checkpoint(str(folder), tokenizer=False)
        for folder in (run.plan.settings.model.value, serving.drafter)
    )
    cost = estimate_cost(tokens, schedule, target, drafter, home.list_generations())
    return Prospect(
        trigger=find_trigger(new_tokens, progress.wanted_tokens, run.drifts),
        new_tokens=new_tokens,
        material=material,
        schedule=schedule,
        worth=weigh(read_ledger(ledgers), cost),
        lack=find_lack_of_memory(target, drafter, free_bytes),
    )


def weigh(lines: Iterable[LedgerLine], cost_seconds: float) -> Benefit:
    """Compare what a tenth more tokens per step would save with what training takes."""
    tokens, steps = defaultdict[str, int](int), defaultdict[str, int](int)
    seconds = defaultdict[str, float](float)
    begin, end = float("inf"), 0.0
    for line in lines:
        if line.key == SUPERVISOR_KEY:
            continue
        begin, end = min(begin, line.at - line.seconds), max(end, line.at)
        tokens[line.kind] += line.tokens
        steps[line.kind] += line.steps
        # Of the steps that it shared with others, its part.
        seconds[line.kind] += (line.seconds - (line.first_seconds or 0.0)) / max(line.batch or 1, 1)
    days = max(end - begin, 1.0) / DAY_SECONDS
    total = sum(tokens.values())
    kinds = tuple(
        KindBenefit(
            kind=kind,
            token_share=count / total if total else 0.0,
            tokens_per_step=count / steps[kind] if steps[kind] else None,
            seconds_per_day=seconds[kind] / days,
            saved_seconds_per_day=seconds[kind] / days * (1 - 1 / (1 + BETTER)),
        )
        for kind, count in sorted(tokens.items(), key=lambda pair: -pair[1])
    )
    saved = sum(one.saved_seconds_per_day for one in kinds)
    pays = saved * PAYS_WITHIN_DAYS > cost_seconds
    word = "more" if pays else "no more"
    because = (
        f"{BETTER:.0%} more tokens per step would save {saved:.0f} s a day at this load, in "
        f"{PAYS_WITHIN_DAYS} days {word} than the {cost_seconds:.0f} s that training takes"
    )
    return Benefit(
        kinds=kinds,
        saved_seconds_per_day=saved,
        cost_seconds=cost_seconds,
        pays=pays,
        because=because,
    )


def find_trigger(new_tokens: int, wanted_tokens: int, drifts: Iterable[Drift]) -> str | None:
    """Return why a round is due: enough new text, or a drift and some of it; never a time."""
    if new_tokens >= wanted_tokens:
        return f"{new_tokens} new answer tokens are kept, {wanted_tokens} are needed"
    drift = next((one for one in drifts if one.family in DRIFTS), None)
    if drift is not None and new_tokens >= DRIFT_SHARE * wanted_tokens:
        return f"the guardian saw a drift: {drift.describe()}"
    return None


def choose_text(kept: Iterable[KeptAnswer], learnt_until: int, *, context: int) -> RoundText | None:
    """Choose a round's text, None if there is too little.

    A question is on one side in every round, so that nothing held out was ever trained on.
    """
    answers = _drop_repeated(sorted(kept, key=lambda one: one.at))
    answers = [one for one in answers if len(one.prompt) + len(one.answer) <= MOST_SAMPLE_TOKENS]
    held_out = _alternate([one for one in answers if is_held_out(one)], HELD_OUT_PER_KIND)
    rest = [one for one in answers if not is_held_out(one) and len(one.prompt) < context - 1]
    new = _fill(_alternate([one for one in rest if one.at > learnt_until]), MOST_NEW_TOKENS)
    new_tokens = count_tokens(new)
    older = _alternate([one for one in rest if one.at <= learnt_until])
    replayed = _fill(older, round(new_tokens * REPLAY_SHARE / (1 - REPLAY_SHARE)))
    if len(new) < LEAST_ANSWERS or not held_out:
        return None
    training = [*new, *replayed]
    order = np.random.default_rng(len(training)).permutation(len(training))
    return RoundText(
        held_out=held_out,
        training=[training[at] for at in order],
        new_tokens=new_tokens,
        replayed_tokens=count_tokens(replayed),
        until=answers[-1].at,
    )


def is_held_out(answer: KeptAnswer) -> bool:
    return sha256(answer.prompt.tobytes()).digest()[0] % HELD_OUT_OF == 0


def count_tokens(answers: Iterable[KeptAnswer]) -> int:
    return sum(len(one.answer) for one in answers)


def _drop_repeated(answers: Sequence[KeptAnswer]) -> list[KeptAnswer]:
    """Keep the last answers to each question, no two of them equal, the oldest first."""
    seen = defaultdict[bytes, set[bytes]](set)
    kept = []
    for one in reversed(answers):
        known, text = seen[one.prompt.tobytes()], one.answer.tobytes()
        if len(known) < ANSWERS_PER_PROMPT and text not in known:
            known.add(text)
            kept.append(one)
    return kept[::-1]


def _alternate(answers: Iterable[KeptAnswer], most_per_kind: int | None = None) -> list[KeptAnswer]:
    """Take a kind after the other, the newest of each first."""
    kinds = defaultdict[Kind, list[KeptAnswer]](list)
    for one in answers:
        kinds[one.kind].append(one)
    columns = [found[::-1][:most_per_kind] for found in kinds.values()]
    return [one for row in zip_longest(*columns) for one in row if one is not None]


def _fill(answers: Iterable[KeptAnswer], most_tokens: int) -> list[KeptAnswer]:
    chosen, tokens = [], 0
    for one in answers:
        if tokens + len(one.answer) > most_tokens:
            break
        chosen.append(one)
        tokens += len(one.answer)
    return chosen
