"""The arguments that name a run or a server, with the same words for every verb."""

import argparse

RUN_HELP = "run id, or a prefix of it"


def add_run(parser: argparse.ArgumentParser, *, default: str) -> None:
    """Add the optional RUN argument; `default` describes the run that is used without it."""
    parser.add_argument("run", metavar="RUN", nargs="?", help=f"{RUN_HELP} (default: {default})")


def add_server(parser: argparse.ArgumentParser) -> None:
    """Add the optional argument for a server, by its address or its run."""
    parser.add_argument(
        "server",
        metavar="URL|RUN",
        nargs="?",
        help="address of a server, or the id of its run (default: the newest live run)",
    )
