"""Serving in a container: the address, readable models, and the key in a variable.

Nobody reaches the loopback of a container's own network from outside, so the server listens
at every address there, and that takes a key. In the host's network the loopback is the
host's: its programs are served without one.
"""

import os
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import get_args

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.hardware import Host
from slipstream.serving.access.keys import Key, Scope

KEY_VARIABLE = "VLLM_API_KEY"
SHORTEST_KEY = 16
STATE_FOLDER = "/var/lib/slipstream"
_INTERFACES = Path("/sys/class/net")
_FOLDERS = ("MODEL_PATH", "DFLASH_DRAFTER")


def decide_bind(host: Host, *, has_key: bool, interfaces: Path = _INTERFACES) -> str | None:
    """Return the address to listen at if nobody named one; None is this machine only."""
    if host.container in (None, "none"):
        return None
    if has_key:
        return "0.0.0.0"
    if is_host_network(interfaces):
        return None
    volume = f"-v slipstream:{STATE_FOLDER}"
    raise InvalidInputError(
        "other machines can reach the container's port, and there is no valid key",
        details=("with --network host it serves this machine only and needs no key",),
        hint=f"docker run --rm --log-driver none {volume} IMAGE keys new, then {volume} here too",
    )


def is_host_network(interfaces: Path) -> bool:
    """Return whether an interface is hardware, real or virtual; those of a container are not."""
    return any(interfaces.glob("*/device"))


def require_readable(environment: Mapping[str, str]) -> None:
    """Raise if files of the mounted models are unreadable for this user, who is not root."""
    named = [Path(text) for name in _FOLDERS if (text := environment.get(name))]
    for folder in (path for path in named if path.is_dir()):
        files = (folder, *sorted(folder.glob("*")))
        closed = tuple(str(path) for path in files if not os.access(path, os.R_OK))
        if closed:
            raise InvalidInputError(
                f"user {os.getuid()} cannot read the model in {folder}",
                details=closed,
                hint=f"chmod -R a+rX FOLDER, on the host, with the one mounted at {folder}",
            )


def read_variable_key(environment: Mapping[str, str], now: datetime) -> Key | None:
    """Return the key in vLLM's own variable, as its hash."""
    secret = environment.get(KEY_VARIABLE, "").strip()
    if not secret:
        return None
    if len(secret) < SHORTEST_KEY:
        raise InvalidInputError(
            f"{KEY_VARIABLE} has {len(secret)} characters and could be guessed",
            hint=f"export {KEY_VARIABLE}=$(openssl rand -hex 32)",
        )
    digest, routes = sha256(secret.encode()).hexdigest(), get_args(Scope)
    return Key(id="variable", name=KEY_VARIABLE, sha256=digest, created=now, routes=routes)


def write_key(file: Path, key: Key) -> None:
    write_atomically(file, f"{key.model_dump_json(exclude_none=True)}\n".encode())


def without_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the key, which vLLM would otherwise ask for again."""
    return {name: text for name, text in environment.items() if name != KEY_VARIABLE}
