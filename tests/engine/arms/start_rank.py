"""Starts a headless rank up to the point where vLLM's own command takes over, and reports it."""

import json
import sys
from pathlib import Path
from unittest.mock import patch

from vllm.entrypoints.cli.serve import ServeSubcommand

from slipstream.vllm_plugin import headless

KEPT = ("headless", "node_rank", "nnodes", "master_addr", "master_port", "tensor_parallel_size")


def main() -> None:
    """Start the rank of the job's words."""
    job, seen = json.load(sys.stdin), dict[str, object]()
    with (
        patch.object(ServeSubcommand, "cmd", lambda _, arguments: seen.update(vars(arguments))),
        patch.object(sys, "argv", ["headless", *job["words"]]),
    ):
        headless.main()
    Path(job["outcome"]).write_text(json.dumps({name: seen[name] for name in KEPT}))


main()
