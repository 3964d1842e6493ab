"""A command in a hint stands at its end, and is one: from `slipstream` on it can be pasted."""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import slipstream
from slipstream.cli.arguments import parse_arguments
from slipstream.errors import UsageError

SOURCE = Path(slipstream.__file__).parent
COMMAND = re.compile(r"(?<![\w/=-])slipstream (?=[a-z-]).*")
# What follows a command in a shell, and what stands between two.
REDIRECTED = re.compile(r" [>|] .*")
NEXT = re.compile(r"; slipstream ")
# For a value that is known when the command runs only: a number and a name.
STAND_IN, CLIENT = "8", "claude"


def read_text(node: ast.AST) -> str | None:
    """Return a text as it is in the code, with a stand-in for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(read_text(part) or "" for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return CLIENT if "client" in ast.unparse(node.value) else STAND_IN
    return None


def list_hints() -> Iterator[tuple[str, str]]:
    """Yield every hint of the code with its place."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for text in find_texts(node):
                yield f"{file.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}", text


def find_texts(node: ast.AST) -> Iterator[str]:
    """Yield the texts that an argument or a name called hint can have."""
    names = node.targets if isinstance(node, ast.Assign) else []
    called = [node.arg] if isinstance(node, ast.keyword) else [ast.unparse(name) for name in names]
    if isinstance(node, ast.keyword | ast.Assign) and any(
        (name or "").lower().endswith("hint") for name in called
    ):
        value = node.value
        branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
        yield from (text for branch in branches if (text := read_text(branch)) is not None)


def find_complaint(words: list[str]) -> str | None:
    try:
        with suppress(SystemExit):  # of --help
            parse_arguments(words)
    except UsageError as fault:
        return fault.message
    return None


COMMANDS = sorted(
    {
        (place, one)
        for place, text in list_hints()
        if (found := COMMAND.search(text)) is not None
        for one in NEXT.split(found[0].removeprefix("slipstream "))
    }
)


def test_the_hints_of_the_code_are_found() -> None:
    assert len(COMMANDS) > 100


@pytest.mark.parametrize(("place", "command"), COMMANDS, ids=lambda text: text)
def test_a_command_in_a_hint_can_be_pasted(place: str, command: str) -> None:
    words = shlex.split(REDIRECTED.sub("", command).removesuffix(')"'))
    assert find_complaint(words) is None
