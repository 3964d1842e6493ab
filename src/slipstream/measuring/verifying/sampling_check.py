"""Whether two arms sample alike: a permutation test over the beginnings of their texts.

Samples are sorted by their first tokens as far as enough of them share these, and the rest of
each branch together. The sorting does not know the arms, so the test is exact: with nothing
changed it fails once in a thousand times. The first token after a prompt is never drafted, so
the prompt ends where the next token is all but certain and the one after it is open.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from math import exp
from random import Random

from slipstream.measuring.client.completions import Answer, Request
from slipstream.records import Record

TOKENS = 4
LEADING = 20
WAYS = 4
LEVEL = 0.001
PERMUTATIONS = 3000
LEAST_SHARED = 12
CELLS = 32
POWER = 0.9
TRIALS = 200
DISTANCES = tuple(step / 100 for step in range(2, 51, 2))

Tokens = tuple[int, ...]
Leading = Sequence[Mapping[int, float]]
"""In each place of an answer, the log-probabilities of its token and of the likeliest ones."""


class SamplingCheck(Record):
    """Samples of two arms at temperature 1 for one prompt, in `cells` of like beginnings.

    `distance` is the total variation between the arms, of which chance makes some; `detectable`
    is the least that would have been seen with a probability of 90 %, None if none would.
    """

    samples: int
    tokens: int
    cells: int
    distance: float
    p_value: float
    detectable: float | None
    prompt_ids: tuple[int, ...] = ()

    @property
    def passed(self) -> bool:
        """Return whether chance explains the difference."""
        return self.p_value >= LEVEL


def choose_prompt(answers: Sequence[Answer], leading: Sequence[Leading]) -> Tokens:
    """Cut a greedy answer where the next token is certain and the one after it is open."""
    places = [
        (_rate(tokens[at], likely[at], likely[at + 1]), number, at)
        for number, (tokens, likely) in enumerate(
            zip((answer.token_ids for answer in answers), leading, strict=True)
        )
        for at in range(len(tokens) - 1)
    ]
    _, number, at = max(places, default=(0.0, 0, 0))
    return (*answers[number].prompt_ids, *answers[number].token_ids[:at])


def _rate(token: int, here: Mapping[int, float], beyond: Mapping[int, float]) -> float:
    """Return the chance to come by this token, less if as few or many as may follow tell little."""
    ways = 1 / sum(exp(2 * likely) for likely in beyond.values())
    return exp(here[token]) * min(ways / WAYS, WAYS / ways)


def list_sampled_requests(prompt: Tokens, count: int, *, seed: int, turn: int) -> list[Request]:
    """Return many requests of one prompt; the arms have different seeds, or they would agree."""
    first = (2 * seed + turn) * 1_000_000
    return [
        Request(
            prompt_id=f"sampled-{number}",
            prompt_ids=prompt,
            max_tokens=TOKENS,
            temperature=1.0,
            extra={"seed": first + number},
        )
        for number in range(count)
    ]


def compare_samples(
    plain: Sequence[Tokens], drafted: Sequence[Tokens], *, prompt: Tokens, seed: int
) -> SamplingCheck:
    """Test whether two equally many samples have one distribution."""
    count, chance = len(plain), Random(seed)
    cells = sort_into_cells([*plain, *drafted], max(LEAST_SHARED, 2 * count // CELLS))
    whole, half = Counter(cells), Counter(cells[:count])
    observed = _measure(half, whole)
    by_chance = sorted(
        _measure(Counter(chance.sample(cells, count)), whole) for _ in range(PERMUTATIONS)
    )
    # Rounding must not let a shuffle that equals what was observed count as less.
    reached = PERMUTATIONS - bisect_left(by_chance, observed - 1e-9)
    critical = by_chance[int((1 - LEVEL) * PERMUTATIONS)]
    return SamplingCheck(
        samples=count,
        tokens=max(map(len, [*plain, *drafted])),
        cells=len(whole),
        distance=sum(abs(2 * half[cell] - whole[cell]) for cell in whole) / (2 * count),
        p_value=(reached + 1) / (PERMUTATIONS + 1),
        detectable=_find_detectable(whole, critical, chance),
        prompt_ids=prompt,
    )


def sort_into_cells(samples: Sequence[Tokens], least: int) -> list[int]:
    """Return each sample's cell: those that share a beginning, as long as `least` of them do."""
    names: dict[Tokens, int] = {}
    shared = Counter(sample[:end] for sample in samples for end in range(1, len(sample) + 1))
    cells = []
    for sample in samples:
        end = 0
        while end < len(sample) and shared[sample[: end + 1]] >= least:
            end += 1
        # What ends here is told from what goes on otherwise.
        name = sample[:end] if end == len(sample) else (*sample[:end], -1)
        cells.append(names.setdefault(name, len(names)))
    return cells


def _measure(half: Counter[int], whole: Counter[int]) -> float:
    """Add up the squared differences between the halves, each by what chance makes of it."""
    return sum((2 * half[cell] - total) ** 2 / total for cell, total in whole.items())


def _find_detectable(whole: Counter[int], critical: float, chance: Random) -> float | None:
    """Find by simulation from which distance on the test fails nine times out of ten."""
    count = whole.total() // 2

    def is_seen(distance: float) -> bool:
        seen = 0
        for _ in range(TRIALS):
            half = Counter(chance.choices(list(whole), list(whole.values()), k=count))
            moved = _move(whole, distance, chance)
            other = Counter(chance.choices(list(moved), list(moved.values()), k=count))
            seen += _measure(half, half + other) > critical
        return seen >= POWER * TRIALS

    at = bisect_left(DISTANCES, True, key=is_seen)
    return DISTANCES[at] if at < len(DISTANCES) else None


def _move(weights: Counter[int], distance: float, chance: Random) -> dict[int, float]:
    """Move this share from one half of the cells, drawn anew, to the lighter half."""
    total = weights.total()
    rest = set(weights)
    while rest and sum(weights[cell] for cell in rest) > total / 2:
        rest.remove(chance.choice(sorted(rest)))
    mass = sum(weights[cell] for cell in rest) / total
    up, down = 1 + distance / (mass or 1), 1 - distance / (1 - mass)
    return {cell: weight * (up if cell in rest else down) for cell, weight in weights.items()}
