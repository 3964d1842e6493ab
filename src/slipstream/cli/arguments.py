"""The argument parsers of the command and its verbs, with usage errors as `UsageError`.

A verb's module is imported only when that verb is run, so `--help` stays fast.
"""

import argparse
import difflib
import math
from collections.abc import Sequence
from importlib import import_module
from textwrap import indent
from typing import NoReturn, Protocol

from slipstream import __version__
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError

VERB_GROUPS = {
    "look before you start": {
        "demo": "decode the same prompts with and without drafts, side by side, on this machine",
        "probe": "describe this machine: accelerators, memory, software",
        "inspect": "read a checkpoint without its weights, and check whether a drafter fits it",
        "recipes": "list known pairs of target and drafter, with published measurements",
        "drafters": "list the drafters for a target, and which of them `plan` would choose",
        "plan": "choose every engine setting for a target, with reasons and memory use",
    },
    "run a server": {
        "serve": "start a server, test it with a real request, and keep it running",
        "status": "list runs, or show the state of one",
        "top": "watch a run: throughput, batch, draft length, acceptance, queue, memory",
        "logs": "show the engine log, the events or the requests of a run",
        "ledger": "sum up drafted and accepted tokens of a run's requests, by kind, key or context",
        "swap": "replace the drafter of a run without a restart",
        "stop": "finish the open requests of a run and stop it",
        "connect": "configure an agent, a chat program or a client library for a server",
        "keys": "create, list, rotate and revoke API keys",
        "doctor": "check this machine, or find out why a run failed, and suggest a fix",
    },
    "judge speed and text": {
        "bench": "measure the speed of a server by kind of prompt and concurrency",
        "compare": "measure whether speculation is faster here, with confidence intervals",
        "verify": "test that speculation does not change the text",
        "tune": "find the best draft length for a load with a few engine starts",
    },
    "make a drafter": {
        "train": "train a drafter for a target on prompts or recorded requests",
    },
    "many machines": {
        "size": "find how many replicas a load needs, with and without speculation, and their cost",
    },
}
VERBS = {name: summary for group in VERB_GROUPS.values() for name, summary in group.items()}
ENGINE_ARGUMENTS = "[-- ENGINE ARGUMENTS]"
_ENGINE_ARGUMENTS_NOTE = (
    "ENGINE ARGUMENTS are vLLM's own (`-- --max-num-seqs 16`); they win over every other setting."
)


class Verb(Protocol):
    """The interface of a verb's module under `slipstream.cli`."""

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the arguments of this verb to its parser."""

    def run(self, options: argparse.Namespace, screen: Screen) -> ExitCode:
        """Do the work and print the result."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error message as a `UsageError`."""
        raise UsageError(message, hint=f"{self.prog} --help")


def parse_arguments(arguments: Sequence[str]) -> tuple[Verb | None, argparse.Namespace, str]:
    """Return the verb's module and its options; without a verb, the help to print instead."""
    root = make_root_parser()
    if not arguments or arguments[0].startswith("-"):
        options = root.parse_args(arguments)
        return None, options, root.format_help()
    name = arguments[0]
    if name not in VERBS:
        raise _unknown_verb(name)
    verb: Verb = import_module(f"slipstream.cli.{name}")
    own, raw = _split(arguments[1:])
    options = make_verb_parser(name, verb).parse_args(own)
    options.raw = raw
    return verb, options, ""


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split off the engine arguments, which follow `--`."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def make_root_parser() -> Parser:
    """Return the parser of the command without a verb."""
    parser = Parser(
        prog="slipstream",
        usage="slipstream [--help] [--version] VERB ...",
        description="Plug-and-play DFlash speculative decoding on vLLM.\n\n" + _list_verbs(),
        epilog="Run `slipstream VERB --help` for the options of a verb.",
        formatter_class=_HelpFormatter,
        add_help=False,
    )
    _add_help(parser)
    parser.add_argument(
        "--version",
        action="version",
        version=f"slipstream {__version__}",
        help="print the version and exit",
    )
    return parser


def _list_verbs() -> str:
    width = max(map(len, VERBS)) + 2
    groups = [
        f"{title}:\n" + "\n".join(f"  {name:<{width}}{text}" for name, text in verbs.items())
        for title, verbs in VERB_GROUPS.items()
        if verbs
    ]
    return "\n\n".join(groups)


def make_verb_parser(name: str, verb: Verb) -> Parser:
    """Return the parser of one verb: its own arguments, then those of every verb."""
    parser = Parser(
        prog=f"slipstream {name}",
        description=_sentence(VERBS[name]),
        formatter_class=_HelpFormatter,
        add_help=False,
    )
    verb.add_arguments(parser)
    _add_general_options(parser)
    notes = [_ENGINE_ARGUMENTS_NOTE] if ENGINE_ARGUMENTS in (parser.usage or "") else []
    parser.epilog = "\n\n".join([*notes, "examples:\n" + indent(verb.EXAMPLES, "  ").rstrip()])
    return parser


def _add_general_options(parser: argparse.ArgumentParser) -> None:
    general = parser.add_argument_group("general options")
    general.add_argument("--json", action="store_true", help="print the result as JSON")
    general.add_argument("--verbose", action="store_true", help="print the traceback of an error")
    _add_help(general)


def _add_help(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-h", "--help", action="help", help="print this help and exit")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """A help formatter with room for long option names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


def whole_number(text: str) -> int:
    """Return a count above zero; argparse names the option in its error message."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def natural_number(text: str) -> int:
    """Return a count from zero on, such as a seed or a token id."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from zero on")
    return int(text)


def positive_number(text: str) -> float:
    """Return a number above zero, such as a rate."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number above zero")
    return number


def _unknown_verb(name: str) -> UsageError:
    close = difflib.get_close_matches(name, VERBS, n=1)
    return UsageError(
        f"unknown verb '{name}'",
        hint=f"slipstream {close[0]}" if close else "slipstream --help",
    )


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
