"""Lets vLLM's own parser read each pair of commands, and reports those it reads differently.

Also says whether the shipped table of arguments is the one that this vLLM's parser gives.
"""

import json
import runpy
import sys
from argparse import ArgumentError
from pathlib import Path
from typing import Any, NoReturn

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


class Rejected(Exception):
    """What the parser says before it would leave."""


def reject(message: str) -> NoReturn:
    raise Rejected(message)


def read(parser: Any, words: list[str]) -> dict[str, str] | str:
    try:
        parsed = parser.parse_args(list(words))
    except (Rejected, ArgumentError, TypeError, ValueError) as fault:
        return f"rejected: {fault}"
    return {name: repr(value) for name, value in vars(parsed).items()}


def check_table(script: str) -> int | str | None:
    """Run the script that made the table, in this process, and return what it exits with."""
    sys.argv = [script, "tables", "arguments", "--check"]
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        return end.code or 0
    return 0


def main() -> None:
    job = json.load(sys.stdin)
    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = reject
    rejected, different = [], []
    for original, rendered in job["pairs"]:
        first = read(parser, original)
        if isinstance(first, str):
            rejected.append([original, first])
        elif first != read(parser, rendered):
            different.append([original, rendered])
    outcome = {
        "rejected": rejected,
        "different": different,
        "same_table": check_table(job["script"]) == 0,
    }
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
