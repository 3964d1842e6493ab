"""A rank of a group that answers nobody: `vllm serve --headless`, without its command's metadata.

`python -m vllm.entrypoints.openai.api_server` ignores `--headless`, and the rank dies.
"""

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.common.cli_args import make_arg_parser
    from vllm.entrypoints.common.startup import cli_env_setup
except ModuleNotFoundError:  # 0.32
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.entrypoints.serve.utils.api_utils import cli_env_setup


def main() -> None:
    cli_env_setup()
    command = ServeSubcommand()
    arguments = make_arg_parser(FlexibleArgumentParser()).parse_args()
    # Without it the rank would be a server, and one without a gate.
    if not arguments.headless:
        raise SystemExit("a rank that serves the API is started by vLLM's own API server")
    command.validate(arguments)
    arguments.model_tag = None
    command.cmd(arguments)


if __name__ == "__main__":
    main()
