"""`slipstream completion`: a script that has bash, zsh or fish complete the command.

shtab makes it from the verbs' own parsers, so a keypress needs no Python, but for names that
change: runs, recipes, machines and targets are listed by `completion --list`.
"""

import argparse
import json
import os
import re
from importlib.resources import files

from slipstream.cli.arguments import (
    FLEET_VERBS,
    ONE_WORD_VERBS,
    VERBS,
    Parser,
    add_verb_arguments,
    load_verb,
    make_root_parser,
)
from slipstream.cli.options import OptionAdder
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.user_folders import recipe_overlay

_LISTS = {"RUN": "runs", "RECIPE": "recipes", "TARGET": "targets", "MACHINE": "machines"}
_TARGET = re.compile(r'^\s*"?target"?\s*[=:]\s*"([^"]+)"', re.MULTILINE)
_MACHINE = re.compile(r"^\[machines\.([\w-]+)\]$", re.MULTILINE)
_FILES = {"FILE", "FOLDER", "PLAN", "DRAFTER"}

EXAMPLES = """\
# complete in bash from now on
slipstream completion bash > ~/.local/share/bash-completion/completions/slipstream
# the script for fish
slipstream completion fish
"""


def add_arguments(add: OptionAdder) -> None:
    add.parser.add_argument(
        "shell",
        choices=("bash", "zsh", "fish"),
        nargs="?",
        help="print the script for this shell; its first lines explain where to save it",
    )
    add(
        "--list", "print the known names of this kind, one per line", choices=tuple(_LISTS.values())
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Print a script or a list of names."""
    if (options.shell is None) == (options.list is None):
        raise UsageError("name a shell or a list", hint="slipstream completion bash")
    lines = _list_names(options.list) if options.list else make_script(options.shell).splitlines()
    document = json.dumps({"schema_version": 1, "lines": lines})
    screen.show_data(text="\n".join(lines), document=document, as_is=True)
    return ExitCode.DONE


def make_script(shell: str) -> str:
    """Return the script of a shell, from one parser that has every verb."""
    import shtab

    root = make_root_parser()
    verbs = root.add_subparsers()
    for name, summary in ONE_WORD_VERBS.items():
        _add_verb(verbs, name, name, summary)
    fleet = verbs.add_parser("fleet", help=VERBS["fleet"]).add_subparsers()
    for name, summary in FLEET_VERBS.items():
        _add_verb(fleet, f"fleet {name}", name, summary)
    return shtab.complete(root, shell)


def _add_verb(verbs: "argparse._SubParsersAction[Parser]", verb: str, name: str, text: str) -> None:
    parser = verbs.add_parser(name, help=text, add_help=False)
    add_verb_arguments(parser, load_verb(verb))
    for action in parser._actions:
        names = {*str(action.metavar or action.dest.upper()).split("|")}
        kind = next((kind for word, kind in _LISTS.items() if word in names), None)
        if action.dest == "host":
            kind = "machines"
        if kind or names & _FILES:
            action.complete = _complete(kind)  # type: ignore[attr-defined]


def _complete(kind: str | None) -> dict[str, str | dict[str, str]]:
    """Return what completes names of a list, and files."""
    command = f"slipstream completion --list {kind} 2>/dev/null" if kind else ":"
    name = f"_slipstream_{kind or ''}_files"
    return {
        "bash": name,
        "zsh": name,
        "fish": f"({command}; __fish_complete_path (commandline -ct))",
        "preamble": {
            "bash": f'{name}() {{ compgen -W "$({command})" -- "$1"; compgen -f -- "$1"; }}',
            "zsh": f"{name}() {{ compadd -- $({command}); _files }}",
        },
    }


def _list_names(kind: str) -> list[str]:
    """List names without reading a record: it answers while somebody waits at a keypress."""
    if kind == "runs":
        from slipstream.serving.run import find_runs_root

        return sorted(path.parent.name for path in find_runs_root(os.environ).glob("*/run.json"))
    if kind == "machines":
        table = files("slipstream").joinpath("hardware", "machines.toml").read_text()
        return sorted(_MACHINE.findall(table))
    shipped = files("slipstream").joinpath("recipes", "catalogue").iterdir()
    recipes = [one for one in shipped if one.name.endswith(".toml")]
    recipes += recipe_overlay(os.environ).glob("*.json")
    if kind == "recipes":
        return sorted(one.name.rpartition(".")[0] for one in recipes)
    return sorted({found[1] for one in recipes if (found := _TARGET.search(one.read_text()))})
