"""`vllm bench serve` by its function: the CPU wheel's script looks for a package named vllm.

Takes its arguments; runs once for each line on stdin and writes the result as a line of JSON.
"""

import asyncio
import json
import sys
from contextlib import redirect_stdout

from vllm.benchmarks.serve import add_cli_args, main_async
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    for _ in sys.stdin:
        with redirect_stdout(sys.stderr):
            result = asyncio.run(main_async(parser.parse_args(sys.argv[1:])))
        sys.stdout.write(f"{json.dumps(result)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
