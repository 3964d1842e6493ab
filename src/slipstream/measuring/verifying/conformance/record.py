"""`CallCheck`: the part of a certificate that is about tool calls and structured output."""

from typing import Literal

from slipstream.measuring.verifying.conformance.answers import ParsedAnswer
from slipstream.records import Record

Verdict = Literal["changed", "tie", "not repeated", "engine"]


class CallDifference(Record):
    """A request that the arms answered differently, and whether speculation is the cause.

    `tie`: the target found both ways equally likely. `not repeated`: both answers are valid, and
    asked again the engine with drafts answered as the one without. `engine`: what came without
    drafts is invalid already.
    """

    request: str
    verdict: Verdict
    because: str
    reports: tuple[str, ...]
    plain: ParsedAnswer
    drafted: ParsedAnswer


class CallCheck(Record):
    """The answers of both arms to the same requests, parsed as a client would.

    `plain_invalid` and `drafted_invalid` say by request what is wrong with an answer: arguments
    that are no JSON or do not fit their schema, a stream that breaks off, a server error.
    """

    requests: int
    same: int
    plain_calls: int
    drafted_calls: int
    cut_off: int
    differences: tuple[CallDifference, ...]
    plain_invalid: dict[str, str]
    drafted_invalid: dict[str, str]
    skipped: dict[str, str]

    @property
    def changed(self) -> tuple[CallDifference, ...]:
        """Return the differences that are speculation's."""
        return tuple(one for one in self.differences if one.verdict == "changed")

    @property
    def engine_faults(self) -> dict[str, str]:
        """Return what is wrong without drafts, too, and so is the engine's (vllm#51914)."""
        return self.plain_invalid
