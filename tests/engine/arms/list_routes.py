"""Every route of vLLM's API server for a command line, those that its schema hides too."""

import json
import sys
from pathlib import Path

from vllm.entrypoints.launchers.app import build_app
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Build the app of the job's arguments as the server does, without an engine."""
    job = json.load(sys.stdin)
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args(job["arguments"])
    app = build_app(arguments, ("generate",))
    routes = [(route.path, sorted(getattr(route, "methods", None) or ())) for route in app.routes]
    Path(job["outcome"]).write_text(json.dumps(routes))


main()
