"""`slipstream completion`: a script that has bash, zsh or fish complete the command.

The script is made from the verbs' own parsers and needs no Python at a keypress, but for names
that change: runs, recipes, machines and targets are listed by `completion --list`.
"""

import argparse
import os
from importlib.resources import files
from itertools import chain

from slipstream.cli.arguments import FLEET_VERBS, ONE_WORD_VERBS, VERBS, load_verb, make_verb_parser
from slipstream.cli.completion_scripts import RENDERERS, Option, VerbWords
from slipstream.cli.manual import expand_help
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.records import Record
from slipstream.user_folders import recipe_overlay

_LISTS = ("runs", "recipes", "machines", "targets")


class Completion(Record):
    """A script for a shell, or names to choose from."""

    schema_version: int = 1
    lines: tuple[str, ...]


EXAMPLES = """\
# complete in bash from now on
slipstream completion bash > ~/.local/share/bash-completion/completions/slipstream
# the script for fish
slipstream completion fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `completion`."""
    parser.add_argument(
        "shell",
        choices=tuple(RENDERERS),
        nargs="?",
        help="print the script for this shell; its first lines say where it goes",
    )
    parser.add_argument(
        "--list", choices=_LISTS, help="print the names that complete, one per line"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print a script or a list of names."""
    if (options.shell is None) == (options.list is None):
        raise UsageError("name a shell or a list", hint="slipstream completion bash")
    if options.list is not None:
        lines = tuple(_list_names(options.list))
    else:
        lines = tuple(RENDERERS[options.shell](describe_verbs()).splitlines())
    screen.show_data(text="\n".join(lines), document=Completion(lines=lines).to_json())
    return ExitCode.DONE


def describe_verbs() -> list[VerbWords]:
    """Return every verb with the words that it takes, from its own parser."""
    fleet = VerbWords(
        name="fleet", summary=VERBS["fleet"], options=(), choices=tuple(FLEET_VERBS), kinds=()
    )
    return [*(_describe(verb, summary) for verb, summary in ONE_WORD_VERBS.items()), fleet]


def _describe(verb: str, summary: str) -> VerbWords:
    parser = make_verb_parser(verb, load_verb(verb))
    options = [action for action in parser._actions if action.option_strings]
    positionals = [action for action in parser._actions if not action.option_strings]
    return VerbWords(
        name=verb,
        summary=summary,
        options=tuple(
            Option(
                flag=action.option_strings[-1],
                help=expand_help(action, parser),
                takes_value=action.nargs != 0,
                choices=_list_choices(action),
                kind=_find_kind(action),
            )
            for action in options
        ),
        choices=tuple(chain.from_iterable(map(_list_choices, positionals))),
        kinds=tuple(filter(None, map(_find_kind, positionals))),
    )


def _list_choices(action: argparse.Action) -> tuple[str, ...]:
    return tuple(map(str, action.choices or ()))


def _find_kind(action: argparse.Action) -> str | None:
    """Tell by an argument's name in the usage what completes it."""
    names = {*str(action.metavar or "").split("|")}
    if "RUN" in names:
        return "runs"
    if "RECIPE" in names:
        return "recipes"
    if "TARGET" in names or action.dest == "target":
        return "targets"
    if action.dest == "host":
        return "machines"
    return "files" if {"FILE", "FOLDER", "PLAN", "DRAFTER"} & names else None


def _list_names(kind: str) -> list[str]:
    """List names without reading a record: it answers while somebody waits at a keypress."""
    if kind == "runs":
        from slipstream.serving.run import find_runs_root

        return sorted(path.parent.name for path in find_runs_root(os.environ).glob("*/run.json"))
    if kind == "machines":
        names = (
            entry.name for entry in files("slipstream.hardware").joinpath("machines").iterdir()
        )
        return sorted(name.removesuffix(".json") for name in names if name.endswith(".json"))
    if kind == "recipes":
        shipped = (
            entry.name for entry in files("slipstream.recipes").joinpath("catalogue").iterdir()
        )
        own = (path.name for path in recipe_overlay(os.environ).glob("*.json"))
        ends = (".toml", ".json")
        return sorted(name.rsplit(".", 1)[0] for name in chain(shipped, own) if name.endswith(ends))
    from slipstream.recipes import load_recipes

    recipes = load_recipes(overlay=recipe_overlay(os.environ))
    return sorted({recipe.target for recipe in recipes})
