"""The error tree keeps its promises: a hint always, and one exit code a group."""

import inspect

import pytest

from slipstream import errors
from slipstream.errors import ExitCode, SlipstreamError

TREE = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, SlipstreamError)
]


def test_exit_codes_are_those_the_house_promises() -> None:
    found = {kind.__name__: int(kind.exit_code) for kind in TREE}
    assert found == {
        "SlipstreamError": 1,
        "UsageError": 2,
        "InvalidInputError": 1,
        "MissingPartError": 1,
        "GatedModelError": 1,
        "UnsupportedHostError": 1,
        "UnreachableError": 1,
        "SlowError": 1,
        "EngineError": 3,
    }
    assert (ExitCode.DONE, ExitCode.GATE_MISSED) == (0, 4)
    assert (ExitCode.BUG, ExitCode.INTERRUPTED) == (70, 130)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_needs_a_hint_and_stands_in_the_module_docstring_with_its_code(
    kind: type[SlipstreamError],
) -> None:
    with pytest.raises(TypeError, match="hint"):
        kind("a fact")  # type: ignore[call-arg]
    (line,) = [line for line in (errors.__doc__ or "").splitlines() if kind.__name__ in line]
    assert kind is SlipstreamError or f"  {int(kind.exit_code)}  " in line
