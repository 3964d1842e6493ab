"""The manual page slipstream(1), made from the parsers of `--help` and kept as man/slipstream.1."""

import argparse

from slipstream.cli.arguments import PEOPLES_VERBS, load_verb, make_verb_parser
from slipstream.errors import ExitCode

_EXITS = {
    ExitCode.DONE: "Done.",
    ExitCode.EXPECTED_FAILURE: "An expected failure: a fault found, a file missing or wrong.",
    ExitCode.USAGE: "The command line cannot be understood.",
    ExitCode.ENGINE: "The engine did not become ready, or died.",
    ExitCode.GATE_MISSED: "A measured figure is worse than the one required.",
    ExitCode.BUG: "A bug in slipstream.",
    ExitCode.INTERRUPTED: "Interrupted.",
}
_FILES = {
    "~/.config/slipstream/config.toml": "Defaults of options, one table per verb.",
    "~/.config/slipstream/keys.json": "Hashes of the keys that open a server.",
    "~/.config/slipstream/recipes/": "Recipes of your own.",
    "~/.local/state/slipstream/runs/": "A folder per run.",
    "~/.cache/slipstream/": "What can be made again.",
}


def render_manual() -> str:
    """Return the page in the man macros."""
    lines = [
        '.TH SLIPSTREAM 1 "" "slipstream" "User Commands"',
        ".SH NAME",
        "slipstream \\- plug-and-play DFlash speculative decoding on vLLM",
        ".SH SYNOPSIS",
        ".B slipstream",
        "VERB [arguments] [\\-\\- ENGINE ARGUMENTS]",
        ".SH VERBS",
    ]
    for verb, summary in PEOPLES_VERBS.items():
        parser = make_verb_parser(verb, load_verb(verb))
        lines += [f".SS {verb}", _escape(f"{summary[0].upper()}{summary[1:]}."), ".PP", ".nf"]
        usage = parser.format_usage().removeprefix("usage: ")
        lines += [*(_escape(line) for line in usage.rstrip().splitlines()), ".fi"]
        for action in parser._actions:
            lines += _describe(action, parser)
    lines.append(".SH EXIT STATUS")
    for code, meaning in _EXITS.items():
        lines += [".TP", f".B {int(code)}", _escape(meaning)]
    lines += [
        ".SH ENVIRONMENT",
        ".TP",
        ".B SLIPSTREAM_VERB_OPTION",
        _escape("Default of an option, such as SLIPSTREAM_SERVE_PORT; it beats config.toml."),
        ".TP",
        ".B SLIPSTREAM_CACHE, SLIPSTREAM_KEYS",
        _escape("Where the cache and the keys are. `slipstream config` shows what counts."),
        ".SH FILES",
    ]
    for path, holds in _FILES.items():
        lines += [".TP", f".I {_escape(path)}", _escape(holds)]
    return "\n".join(lines) + "\n"


def expand_help(action: argparse.Action, parser: argparse.ArgumentParser) -> str:
    """Return an option's help as `--help` shows it, with its default filled in."""
    return parser._get_formatter()._expand_help(action) if action.help else ""


def _describe(action: argparse.Action, parser: argparse.ArgumentParser) -> list[str]:
    if action.dest == "help":
        return []
    name = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    if action.option_strings:
        takes = "" if action.nargs == 0 else f" {name}"
        name = ", ".join(action.option_strings) + takes
    words = expand_help(action, parser)
    if action.choices and not action.metavar:
        words += f" (one of {', '.join(map(str, action.choices))})"
    return [".TP", f".B {_escape(name)}", _escape(words)]


def _escape(text: str) -> str:
    """Escape what roff would read as its own."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped
