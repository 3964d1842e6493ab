"""The phases of a start, from the log of vLLM 0.32.

The runner for GPUs says nothing when it turns to the drafter: the bar of the weights begins
again. It also captures some graphs twice, the first time to learn what they take.
"""

import re
from dataclasses import dataclass, field
from typing import Literal, get_args

Phase = Literal[
    "boot",
    "engine",
    "weights",
    "drafter",
    "compile",
    "profile",
    "cache",
    "graphs",
    "server",
    "listening",
]
PHASES: tuple[Phase, ...] = get_args(Phase)

# How a line of each phase begins; the first phase has begun before there is a line.
_BEGINNINGS: dict[Phase, str] = {
    "engine": r"Initializing a V1 LLM engine",
    "weights": r"Starting to load model |Loading model from scratch|Multi-thread loading "
    r"|Loading (?:safetensors|pt|np_cache) (?:checkpoint shards|using )",
    "drafter": r"Loading drafter model",
    "compile": r"Warming up model for the compilation|Starting torch\.compile"
    r"|Dynamo bytecode transform|Compiling a graph |Directly load |torch\.compile took ",
    "profile": r"Profiling CUDA graph memory|Initial profiling/warmup run took ",
    "cache": r"Available KV cache memory|(?:Explicitly|Auto) set \(\S+\) GiB for KV cache"
    r"|Initial free memory \S+ GiB, reserved |[A-Z]+(?: \+ host)? KV cache size: ",
    "graphs": r"JIT kernel warmup starting|Compile and warming up model "
    r"|Capturing CUDA graphs|Capturing model for |Graph capturing finished ",
    "server": r"init engine \(profile|Starting vLLM server on ",
    "listening": r"Application startup complete",
}
# What an engine took, as a contributed measurement compares it with the plan.
KV_TOKENS = re.compile(r"KV cache size: ([\d,]+) tokens")
LOADED = re.compile(r"Model loading took ([\d.]+) GiB")
_SIGNS = {phase: re.compile(beginning) for phase, beginning in _BEGINNINGS.items()}
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PREFIX = re.compile(
    r"^(?:\([^)]*pid=\d+\) )?(?:[A-Z]{4,8}:? +)?(?:\d\d-\d\d [\d:]{8} \[[^]]+\] )?(?:\[\w+\] )?"
)
_PERCENTAGE = re.compile(r": +(\d{1,3})%(?: Completed \||\|)")
# A bar has no line end until it is full: what another process says lands behind it.
_BREAK = re.compile(r"[\r\n]+|(?=\([\w-]+ pid=\d+\) )")


@dataclass(frozen=True, slots=True)
class PhaseMark:
    """A phase, with its progress where the engine logs it."""

    phase: Phase
    share: float | None = None


def list_beginnings() -> list[str]:
    """Return the texts of vLLM's own that we look for, each up to its first figure."""
    ours = [text for phase, text in _BEGINNINGS.items() if phase != "listening"]
    ours += [sign.pattern.partition("(")[0] for sign in (KV_TOKENS, LOADED)]
    whole = re.sub(r"\(\?:[^)]*\)", r"\\", "|".join(ours)).replace(r"\.", ".")
    parts = {part.partition("\\")[0] for part in whole.split("|")}
    return sorted(part for part in parts if part[:1].isalpha())


def read_phase(line: str) -> PhaseMark | None:
    message = _PREFIX.sub("", _COLOUR.sub("", line.strip()))
    for phase, sign in _SIGNS.items():
        if sign.match(message):
            percentage = _PERCENTAGE.search(message)
            return PhaseMark(phase, int(percentage[1]) / 100 if percentage else None)
    return None


@dataclass(slots=True)
class PhaseTracker:
    """The current phase of a start, from its growing log; it never goes back."""

    started_at: float
    drafts: bool
    reached: PhaseMark = field(default=PhaseMark("boot"), init=False)
    _begun: dict[Phase, float] = field(default_factory=dict, init=False)
    _tail: str = field(default="", init=False)

    def __post_init__(self) -> None:
        self._begun["boot"] = self.started_at

    def feed(self, text: str, now: float) -> tuple[PhaseMark, ...]:
        """Read what was added to the log, and give every step forward in it."""
        *lines, self._tail = _BREAK.split(self._tail + text)
        marks = (read_phase(line) for line in lines)
        steps = (self._advance(self._place(mark), now) for mark in marks if mark)
        return tuple(step for step in steps if step)

    def seconds_by_phase(self, now: float) -> dict[Phase, float]:
        """Return how long each phase took; the last one lasts until now."""
        ends = [*list(self._begun.values())[1:], now]
        return {
            phase: end - begun
            for (phase, begun), end in zip(self._begun.items(), ends, strict=True)
            if phase != "listening"
        }

    def _place(self, mark: PhaseMark) -> PhaseMark:
        """Return a line the phase that it has at this point of the start."""
        if mark.phase == "weights" and (self.reached.phase == "drafter" or self._restarts(mark)):
            return PhaseMark("drafter", mark.share)
        if mark.phase == "graphs":
            # Several bars follow each other, and none says how many: no share is true.
            return PhaseMark("graphs" if self._is_past("cache") else "profile")
        return mark

    def _restarts(self, mark: PhaseMark) -> bool:
        return (
            self.drafts and self.reached == PhaseMark("weights", 1) and mark.share not in (None, 1)
        )

    def _is_past(self, phase: Phase) -> bool:
        return PHASES.index(self.reached.phase) >= PHASES.index(phase)

    def _advance(self, mark: PhaseMark, now: float) -> PhaseMark | None:
        if mark.phase == self.reached.phase:
            if (mark.share or 0) <= (self.reached.share or 0):
                return None
        elif self._is_past(mark.phase):
            return None
        self._begun.setdefault(mark.phase, now)
        self.reached = mark
        return mark
