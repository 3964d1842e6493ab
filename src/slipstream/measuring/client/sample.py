"""`Sample`: one measured request, the basis of bench, compare and verify."""

from typing import Literal

from slipstream.records import Record
from slipstream.steering.drafts import Drafts

CallOutcome = Literal["parsed", "no call", "wrong tool", "not JSON", "schema mismatch"]


class ToolCall(Record):
    """A call as it arrived; `arguments` is the JSON text, valid or not."""

    id: str = ""
    name: str
    arguments: str


class Sample(Record):
    """One request, from when it was sent to its last token; seconds, on one monotonic clock.

    `began_at` counts from the beginning of its load; opening a connection comes before.
    `concurrency` is what the load kept in flight or, where requests arrive by the clock, how
    many were then, with this one. Token counts are the server's: a chunk can hold several
    tokens. A failed request has an `error`, and of the rest what had come until then; a time
    that the server gave no cause to take is None. A turn of a task has the task's name and its
    number; `call` is what became of the tool call that was asked for, None where none was.
    """

    prompt_id: str
    kind: str
    concurrency: int
    began_at: float
    seconds: float
    first_token_seconds: float | None = None
    longest_pause_seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int | None = None
    output_tokens: int = 0
    token_ids: tuple[int, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_by_position: tuple[int, ...] = ()
    error: str | None = None
    task: str | None = None
    turn: int | None = None
    calls: tuple[ToolCall, ...] = ()
    call: CallOutcome | None = None

    @property
    def draft_counts(self) -> Drafts:
        return Drafts(drafts=self.drafts, drafted=self.drafted, accepted=self.accepted_by_position)

    @property
    def seconds_per_token(self) -> float | None:
        """Return the time of each token after the first: decoding alone, without the prompt."""
        if self.first_token_seconds is None or self.output_tokens < 2:
            return None
        return (self.seconds - self.first_token_seconds) / (self.output_tokens - 1)
