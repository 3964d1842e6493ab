"""The words of a command line: which are ours, which are vLLM's, and what was meant by the rest."""

import argparse
import difflib
import shlex
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from slipstream.errors import UsageError

if TYPE_CHECKING:
    from slipstream.cli.arguments import Parser

# Verbs of other programs and of an earlier version, and what begins the same command here.
FOREIGN_VERBS = {
    **dict.fromkeys(("run", "start", "launch", "pull", "download"), "serve"),
    **dict.fromkeys(("list", "ls", "search", "show", "info", "inspect", "drafters"), "models"),
    **dict.fromkeys(("rm", "kill", "down"), "stop"),
    "ps": "status",
    "benchmark": "bench",
    "recipes": "models",
    "recipes --show": "models --recipe",
    "ledger": "status --by kind",
    "contribute": "compare --rounds 1 --recipe FILE",
    "fleet endpoints": "fleet status --json",
}
FOREIGN_FLAGS = {"--gpu": "--host", "--machine": "--host", "--hardware": "--host"}


def unknown_verb(words: Sequence[str], known: Iterable[str]) -> UsageError:
    """Name our verb that does the same, else the one that is spelt most like it."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if ours := FOREIGN_VERBS.get(name):
            line = " ".join(["slipstream", ours, shlex.join(words[count:])]).rstrip()
            return UsageError(f"there is no verb '{name}'; use `{ours}`", hint=line)
    close = difflib.get_close_matches(words[0], known, n=1)
    return UsageError(
        f"unknown verb '{words[0]}'",
        hint=f"slipstream {close[0]}" if close else "slipstream --help",
    )


def parse_words(
    parser: "Parser", words: Sequence[str], raw: Sequence[str], *, for_engine: bool
) -> argparse.Namespace:
    """Parse a verb's words; arguments of the engine among them mean the same as after `--`.

    `raw` came after it, so that those win.
    """
    options, unknown = parser.parse_known_args(words)
    options.raw = [*raw]
    if not unknown:
        return options
    own, engine = _take_engine_words(parser, words)
    if not engine or not for_engine:
        raise _unknown_words(parser, unknown, for_engine=for_engine)
    if "--bind" in parser._option_string_actions and "--host" in engine:
        address = ["--bind" if word == "--host" else word for word in engine]
        line = [*parser.prog.split(), *own, *address, *(["--", *raw] if raw else [])]
        message = "--host is vLLM's; the address to listen on is --bind"
        raise UsageError(message, hint=shlex.join(line))
    options, unknown = parser.parse_known_args(own)
    if unknown:
        raise _unknown_words(parser, unknown, for_engine=for_engine)
    options.raw = [*engine, *raw]
    return options


def _unknown_words(parser: "Parser", words: Sequence[str], *, for_engine: bool) -> UsageError:
    """Say what was not understood, and the option that is spelt most like it."""
    flag = words[0].partition("=")[0]
    flag = FOREIGN_FLAGS.get(flag, flag)
    close = difflib.get_close_matches(flag, parser._option_string_actions, n=1)
    if not close and for_engine and flag.startswith("--"):
        from slipstream.engines.vllm_tables import read_arguments

        close = difflib.get_close_matches(flag.replace("_", "-"), read_arguments(), n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return UsageError(
        f"unrecognized arguments: {shlex.join(words)}{meant}", hint=f"{parser.prog} --help"
    )


def _take_engine_words(parser: "Parser", words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the engine's arguments that are none of the verb's, each with its values."""
    from slipstream.engines.arguments import list_negations
    from slipstream.engines.vllm_tables import read_arguments

    table = read_arguments()
    rows = {flag: row for first, row in table.items() for flag in list_negations(first, row)}
    rows |= {flag: row for row in table.values() for flag in row["flags"]}
    own, engine, left = list[str](), list[str](), list(words)
    while left:
        word = left.pop(0)
        name, equals, _ = word.partition("=")
        first = name.partition(".")[0].replace("_", "-")
        row = None if name in parser._option_string_actions else rows.get(first)
        (own if row is None else engine).append(word)
        takes = row is not None and row["kind"] != "switch" and not equals
        while row and takes and left and (left[0][:1] != "-" or left[0][1:2].isdigit()):
            engine.append(left.pop(0))
            takes = row.get("values") == "many"
    return own, engine
