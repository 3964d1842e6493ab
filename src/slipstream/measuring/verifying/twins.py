"""Answers to the same prompts, compared: where they differ, and whether at a tie."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from slipstream.errors import EngineError
from slipstream.measuring.client.completions import Answer
from slipstream.measuring.verifying.certificate import ArmName, Condition, Side, TwinCheck
from slipstream.measuring.verifying.regret import Key, Profile, key_of

Answers = dict[str, Answer]
"""By the id of the prompt."""
Given = dict[Condition, Answers]

FAILED = Answer(prompt_ids=(), token_ids=(), finish_reason="failed", seconds=0)
"""In the place of an answer that only the engine with drafts failed to give."""


class AnswerDifference(NamedTuple):
    """Where two answers differ, and how much likelier one token is; None if one ends or fails."""

    position: int
    gap: float | None


class TokenFault(NamedTuple):
    """A prompt for which a drafted answer has a token that is no tie."""

    condition: Condition
    prompt_id: str
    answer: Answer
    position: int
    gap: float | None


def list_profiles(given: Given, profiles: Mapping[Key, Profile]) -> list[Profile]:
    """Return the profiles of an arm's answers, without those whose best token may be barred."""
    return [
        profiles[key_of(answer)]
        for condition, answers in given.items()
        if condition != "constrained"
        for answer in answers.values()
    ]


@dataclass(frozen=True, slots=True)
class Twins:
    """The answers of both arms, the target's judgement, and the gap up to which tokens are tied."""

    given: Mapping[ArmName, Given]
    profiles: Mapping[Key, Profile]
    gap: float

    def list_checks(self) -> list[TwinCheck]:
        """Compare the arms with each other, and each against itself under other conditions."""
        conditions = self.given["plain"]
        sides: list[tuple[Side, Side]] = [(("plain", one), ("drafted", one)) for one in conditions]
        arms: tuple[ArmName, ...] = ("drafted", "plain")
        again: tuple[Condition, ...] = ("cached", "batched")
        sides += [((arm, "alone"), (arm, other)) for arm in arms for other in again]
        return [self._check(left, right) for left, right in sides]

    def list_faults(self) -> Iterator[TokenFault]:
        """Find the answers with drafts that are at fault, by the target or else by their twin."""
        for condition, answers in self.given["drafted"].items():
            for name, answer in answers.items():
                profile = self.profiles[key_of(answer)]
                at = None if condition == "constrained" else profile.find_fault(self.gap)
                if at is not None:
                    yield TokenFault(condition, name, answer, at, profile.regrets[at])
                    continue
                twin = self.given["plain"][condition][name]
                found = find_difference(twin, answer, self.profiles)
                if found is not None and not self._is_tie(found):
                    yield TokenFault(condition, name, twin, *found)

    def _check(self, left: Side, right: Side) -> TwinCheck:
        ours, theirs = self.given[left[0]][left[1]], self.given[right[0]][right[1]]
        if right[1] == "cached":
            ours = self.given[left[0]]["long"] | ours
        shared = [name for name in theirs if name in ours]
        found = [find_difference(ours[name], theirs[name], self.profiles) for name in shared]
        differences = [one for one in found if one is not None]
        ties = sum(map(self._is_tie, differences))
        return TwinCheck(
            left=left,
            right=right,
            prompts=len(shared),
            equal=len(shared) - len(differences),
            ties=ties,
            faults=len(differences) - ties,
            worst_gap=max((one.gap for one in differences if one.gap is not None), default=None),
            earliest=min((one.position for one in differences), default=None),
        )

    def _is_tie(self, difference: AnswerDifference) -> bool:
        return difference.gap is not None and difference.gap <= self.gap


def find_difference(
    left: Answer, right: Answer, profiles: Mapping[Key, Profile]
) -> AnswerDifference | None:
    """Return where two answers to the same prompt part, None if they do not."""
    if left is FAILED or right is FAILED:
        return None if left is right else AnswerDifference(0, None)
    if left.prompt_ids != right.prompt_ids:
        raise EngineError(
            "the engines made different tokens of the same prompt",
            hint="use a chat template that does not depend on the time",
        )
    if left.token_ids == right.token_ids:
        return None
    pairs = zip(left.token_ids, right.token_ids, strict=False)
    at = next((at for at, (one, other) in enumerate(pairs) if one != other), None)
    if at is None:
        return AnswerDifference(min(len(left.token_ids), len(right.token_ids)), None)
    likely = [profiles[key_of(answer)].chosen[at] for answer in (left, right)]
    return AnswerDifference(at, abs(likely[0] - likely[1]))
