"""The time of an agent's turn, with drafts and no prefix cache or with the cache. Pure.

A turn repeats the conversation so far and adds a little: with the cache only what is new is
computed, without it the whole prompt. What is drafted saves time on the answer alone.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of an agent, and the share of its prompt that is in the cache."""

    prompt_tokens: int
    cached_share: float
    answer_tokens: int


@dataclass(frozen=True, slots=True)
class Course:
    """A way of decoding, with its speeds in tokens per second."""

    name: str
    prefill: float
    decode: float
    cached: bool


def count_seconds(turn: Turn, course: Course) -> float:
    """Return how long a turn takes from request to last token."""
    share = 1 - turn.cached_share if course.cached else 1.0
    return turn.prompt_tokens * share / course.prefill + turn.answer_tokens / course.decode


def rank(turn: Turn, courses: tuple[Course, ...]) -> tuple[Course, ...]:
    """Return the courses, the fastest first; of equal ones the earlier."""
    return tuple(sorted(courses, key=lambda course: count_seconds(turn, course)))


def find_break_even(turn: Turn, drafted: Course, cached: Course) -> float | None:
    """Return the answer tokens from which drafts without the cache win, None if they never do."""
    gained = 1 / cached.decode - 1 / drafted.decode
    if gained <= 0:
        return None
    empty = Turn(turn.prompt_tokens, turn.cached_share, 0)
    return max(0.0, (count_seconds(empty, drafted) - count_seconds(empty, cached)) / gained)
