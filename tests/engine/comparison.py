"""Where two generations part, and whether the model itself could not decide there."""

from dataclasses import dataclass

from tests.engine.offline import Answer

# bfloat16 keeps 8 bits: logits between 16 and 32 lie 1/8 apart. Rounding can move each of the
# two leading ones by a step, so a gap of up to two steps is a tie that rounding decides.
NEAR_TIE_GAP = 0.25 + 1e-3  # log-probabilities carry their own rounding


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first position at which two answers to one prompt differ."""

    prompt: int
    position: int
    tokens: tuple[int, int]
    leading: tuple[int, int]
    gap: float

    @property
    def is_near_tie(self) -> bool:
        """Return whether both went with one of two leading tokens that rounding can swap."""
        return set(self.tokens) == set(self.leading) and self.gap <= NEAR_TIE_GAP


def find_divergences(expected: list[Answer], found: list[Answer]) -> list[Divergence]:
    """Compare two arms prompt by prompt; the candidates are those of the expected arm."""
    divergences = []
    for prompt, (left, right) in enumerate(zip(expected, found, strict=True)):
        pairs = enumerate(zip(left.token_ids, right.token_ids, strict=False))
        position = next((at for at, (one, other) in pairs if one != other), None)
        if position is None:
            assert len(left.token_ids) == len(right.token_ids), f"prompt {prompt} was cut short"
            continue
        (first, first_token), (second, second_token) = left.leading[position]
        divergences.append(
            Divergence(
                prompt=prompt,
                position=position,
                tokens=(left.token_ids[position], right.token_ids[position]),
                leading=(first_token, second_token),
                gap=first - second,
            )
        )
    return divergences
