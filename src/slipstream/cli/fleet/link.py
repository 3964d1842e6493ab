"""`slipstream fleet link`: one end of a link that is measured; other verbs run it over SSH."""

import argparse
import json
import sys

from slipstream.cli.arguments import positive_number, whole_number
from slipstream.cli.screen import Screen
from slipstream.errors import ExitCode, UsageError
from slipstream.fleet.far_side.link_transfer import SECRET_BYTES, measure_link, serve_link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `fleet link`; the secret of both ends is on its standard input."""
    parser.add_argument("--here", metavar="ADDRESS", required=True, help="address of this machine")
    parser.add_argument(
        "--there", metavar="ADDRESS", help="address of the end that listens (default: listen here)"
    )
    parser.add_argument("--port", type=whole_number, help="TCP port of the end that listens")
    parser.add_argument(
        "--seconds", type=positive_number, default=1.0, help="length of the transfer (default 1)"
    )


def run(options: argparse.Namespace, screen: Screen) -> ExitCode:
    """Listen, or measure the way to the end that does."""
    secret = bytes.fromhex(sys.stdin.readline(2 * SECRET_BYTES + 1).strip())
    if len(secret) != SECRET_BYTES:
        raise UsageError("the secret of both ends is missing", hint="slipstream fleet probe")
    if options.there is None:
        serve_link(
            options.here,
            secret,
            lambda port: screen.show_data(text=str(port), document=json.dumps({"port": port})),
            seconds=options.seconds,
        )
        return ExitCode.DONE
    figures = measure_link(
        options.there, options.port, secret, source=options.here, seconds=options.seconds
    )
    screen.show_data(text=figures.to_json(), document=figures.to_json())
    return ExitCode.DONE
