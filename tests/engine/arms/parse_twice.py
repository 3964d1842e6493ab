"""Lets vLLM's own parser read each pair of commands, and reports those it reads differently.

Also says whether the shipped table of arguments is the one that this vLLM's parser gives.
"""

import json
import subprocess
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
    check = subprocess.run([sys.executable, job["script"], "--check"], check=False)
    outcome = {"rejected": rejected, "different": different, "same_table": check.returncode == 0}
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
