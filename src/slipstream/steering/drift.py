"""`Drift`: a figure of a running engine that has become worse, by how much and since when."""

from typing import Literal

from slipstream.records import Record
from slipstream.steering.streams import Family

Decay = Literal["context collapse", "low power", "traffic of one key"]
_WORDS: dict[Family, tuple[str, str, float]] = {
    "acceptance": ("acceptance of a token after an accepted one fell", "{:.0%}", 1),
    "first position": ("acceptance of the first position fell", "{:.0%}", 1),
    "step seconds": ("the time of a step rose", "{:.1f} ms", 1000),
    "first token seconds": ("time to first token rose", "{:.2f} s", 1),
    "cached share": ("the cached share of prompts fell", "{:.0%}", 1),
}
_DECAYS: dict[Decay, str] = {
    "context collapse": "it collapses with the length of the context, as in vllm#50021",
    "low power": "the accelerator is in a low-power state: unplug it, and plug it in again",
    "traffic of one key": "only the requests of key {key} changed",
}


class Drift(Record):
    """A lasting change for the worse; `times` counts how often it was seen since.

    `decay` names a known one. `key` is set where only this key's requests changed.
    """

    family: Family
    where: str
    before: float
    after: float
    requests: int
    times: int
    at: float
    decay: Decay | None = None
    key: str | None = None

    def describe(self) -> str:
        """Return it as a sentence with its figures."""
        words, form, factor = _WORDS[self.family]
        before, after = (form.format(factor * figure) for figure in (self.before, self.after))
        change = f" ({self.after / self.before - 1:+.0%})" if self.before > 0 else ""
        decay = f"; {_DECAYS[self.decay].format(key=self.key)}" if self.decay else ""
        return (
            f"{self.where}: {words} from {before} to {after}{change} over {self.requests} "
            f"requests{decay}"
        )
