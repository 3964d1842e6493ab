"""How verbs define their arguments: as the help shows them, with the same words everywhere."""

import argparse
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

RUN_HELP = "run id, or a prefix of it"


class OptionAdder:
    """Adds arguments to a parser or a group of it, each written as its help shows it.

    `--now` is a switch, `--port N` takes a value, `--workload NAME ...` takes several; `TARGET`,
    `[RUN]` and `[GROUP ...]` are positional. `KINDS` are types of values, unless another one is
    named. The help ends with the default if it does not say so itself.
    """

    def __init__(
        self, parser: argparse.ArgumentParser, group: argparse._ActionsContainer | None = None
    ) -> None:
        self.parser, self._group = parser, group or parser

    def group(self, title: str, about: str | None = None) -> "OptionAdder":
        """Return what adds to a new group of the parser, under a title of its own."""
        return OptionAdder(self.parser, self.parser.add_argument_group(title, about))

    def exclusive(self, *, required: bool = False) -> "OptionAdder":
        """Return what adds options that exclude each other."""
        group = self._group.add_mutually_exclusive_group(required=required)
        return OptionAdder(self.parser, group)

    def __call__(
        self,
        words: str,
        text: str,
        kind: Callable[[str], object] | None = None,
        default: object = None,
        aliases: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        """Add an argument; aliases are other names of choices, further keywords argparse's."""
        optional = words.startswith("[")
        parts = (words[1:-1] if optional else words).split()
        if parts[-1] == "...":
            parts.pop()
            more["nargs"] = "*" if optional else "+"
        elif optional:
            more["nargs"] = "?"
        flags = [part for part in parts if part.startswith("-")]
        metavar = None if len(flags) == len(parts) else parts[-1]
        if aliases:
            kind = partial(_rename, aliases)
        if metavar or "choices" in more:
            more |= {"metavar": metavar, "type": kind or KINDS.get(metavar)}
            more |= {} if default is None else {"default": default}
        else:
            more.setdefault("action", "store_true")
        if (default or default == 0) and "(default" not in text:
            usual = " ".join(map(str, default)) if isinstance(default, tuple) else default
            text += f" (default {usual})"
        names = flags or [more.pop("dest", parts[0].lower())]
        self._group.add_argument(*names, help=text, **more)


def _rename(aliases: Mapping[str, str], text: str) -> str:
    return aliases.get(text, text)


def add_host(add: OptionAdder, what: str) -> None:
    """Add the option that names a machine."""
    add(
        "--host NAME|FILE",
        f"{what}: a known name such as gb10, h100x8 or 2x-gb10, or a file written by "
        "`slipstream probe --json` (default: this machine)",
    )


def add_run(add: OptionAdder, *, default: str) -> None:
    """Add the optional RUN argument; `default` describes the run that is used without it."""
    add("[RUN]", f"{RUN_HELP} (default: {default})")


def add_server(add: OptionAdder) -> None:
    """Add the optional argument for a server, by its address or its run."""
    text = "address of a server, or the id of its run (default: the newest live run)"
    add("[URL|RUN]", text, dest="server")


def add_accept_changes(add: OptionAdder) -> None:
    """Add the option that accepts a local model whose files were changed on purpose."""
    add(
        "--accept-changes",
        "accept files of a local model folder that changed since their first use "
        "(default: refuse them)",
    )


def whole_number(text: str) -> int:
    """Return a count above zero; argparse names the option in its error message."""
    if not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number above zero")
    return int(text)


def natural_number(text: str) -> int:
    """Return a count from zero on, such as a seed or a token id."""
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number of zero or more")
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


def local_path(text: str) -> Path:
    """Return a path, from the user's home on if it begins with `~`."""
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError) as fault:
        raise argparse.ArgumentTypeError(f"'{text[:80]}' is not a usable path: {fault}") from fault
    return path


# The types of values by their name in the help.
KINDS: dict[str | None, Callable[[str], object]] = {
    **dict.fromkeys(("N", "TOKENS"), whole_number),
    **dict.fromkeys(("FILE", "FOLDER", "PLAN"), local_path),
}
