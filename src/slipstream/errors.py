"""Every failure that Slipstream expects, grouped by what its reader can do about it.

SlipstreamError                 exit code
├── UsageError                  2   type the command differently
├── InvalidInputError           1   correct a file or a value
├── MissingPartError            1   install or fetch something
│   └── GatedModelError         1   ask the hub for access
├── UnsupportedHostError        1   use another machine
├── UnreachableError            1   see to a machine, or the way to it
│   └── SlowError               1   it answers, and does not finish in time
└── EngineError                 3   the engine did not get ready, or died

A verb whose measured figure is worse than the one asked for returns 4 without an error.

The message is a fact with its values; the hint is what to type next, and no error can be
made without one. Anything else that escapes is a bug of ours and leaves with 70.
"""

from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the command's exit code tells the shell."""

    DONE = 0
    EXPECTED_FAILURE = 1
    USAGE = 2
    ENGINE = 3
    GATE_MISSED = 4
    BUG = 70
    INTERRUPTED = 130


class SlipstreamError(Exception):
    """An expected failure: a fact, its details if there are several, and the way out."""

    exit_code: ClassVar[ExitCode] = ExitCode.EXPECTED_FAILURE

    def __init__(self, message: str, *, hint: str, details: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details


class UsageError(SlipstreamError):
    """The command line cannot be understood."""

    exit_code = ExitCode.USAGE


class InvalidInputError(SlipstreamError):
    """A file or value that the user gave is wrong; `details` names every fault in it."""


class MissingPartError(SlipstreamError):
    """Something that can be installed or fetched is not here."""


class GatedModelError(MissingPartError):
    """The hub gives this model only to users whom it knows."""


class UnsupportedHostError(SlipstreamError):
    """This machine cannot do it, whatever is installed."""


class UnreachableError(SlipstreamError):
    """Another machine does not answer, or not as it should."""


class SlowError(UnreachableError):
    """Another machine can be reached, and what it was asked for does not end in time."""


class EngineError(SlipstreamError):
    """The engine did not get ready, or died."""

    exit_code = ExitCode.ENGINE


def explain(fault: Exception) -> str:
    """Return what a fault says; of one that nobody expected, its kind too."""
    known = isinstance(fault, SlipstreamError | OSError)
    return str(fault) if known else f"{type(fault).__name__}: {fault}"
