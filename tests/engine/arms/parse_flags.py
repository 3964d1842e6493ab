"""Lets vLLM's own parser and tables judge commands, without starting anything.

The parser itself knows the choices of `--kv-cache-dtype` only, the same ones on every platform;
other names (a loader, a backend) it passes on, so they are looked up in vLLM's tables here.
"""

import json
import sys
from argparse import ArgumentError
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn, get_args

from pydantic import TypeAdapter, ValidationError
from vllm import envs
from vllm.config import SpeculativeConfig
from vllm.config.parallel import DistributedExecutorBackend
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS
from vllm.model_executor.model_loader import LoadFormats
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.attention.backends.registry import AttentionBackendEnum

TABLES = {
    "attention_backend": list(AttentionBackendEnum.__members__),
    "load_format": get_args(LoadFormats),
    "quantization": QUANTIZATION_METHODS,
    "distributed_executor_backend": get_args(DistributedExecutorBackend),
}


class Rejected(Exception):
    """What the parser says before it would leave."""


def reject(message: str) -> NoReturn:
    """Take the place of argparse's exit."""
    raise Rejected(message)


def find_fault(parser: Any, command: list[str]) -> str | None:
    """Parse a command as the server does and say what is wrong with it, if anything."""
    try:
        parsed, left_over = parser.parse_known_args(command)
        validate_parsed_serve_args(parsed)
    except (Rejected, ArgumentError, TypeError, ValueError) as fault:
        return str(fault)
    if left_over:
        return f"not understood: {left_over}"
    for flag, names in TABLES.items():
        value = getattr(parsed, flag)
        if value is not None and str(value) not in names:
            return f"no {flag} is called {value}"
    return find_speculative_fault(parsed.speculative_config or {})


def find_speculative_fault(given: dict[str, Any]) -> str | None:
    """Compare every key of the speculative config with the field of that name."""
    known: dict[str, Any] = {field.name: field.type for field in fields(SpeculativeConfig)}
    for key, value in given.items():
        if key not in known:
            return f"SpeculativeConfig has no {key}"
        if key == "attention_backend":
            if value not in AttentionBackendEnum.__members__:
                return f"no attention backend is called {value}"
            continue
        try:
            TypeAdapter(known[key]).validate_python(value)
        except ValidationError as fault:
            return f"SpeculativeConfig.{key}: {fault}"
    return None


def main() -> None:
    """Judge every command and every variable of the job."""
    job = json.load(sys.stdin)
    parser = make_arg_parser(FlexibleArgumentParser())
    parser.error = reject
    faults = [find_fault(parser, command) for command in job["commands"]]
    unknown = [name for name in job["variables"] if name not in envs.environment_variables]
    Path(job["outcome"]).write_text(json.dumps({"faults": faults, "unknown": unknown}))


main()
