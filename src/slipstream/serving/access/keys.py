"""API keys: the secret is shown once, the file holds its hash.

The key file has one key a line and is replaced in one step, so a gate that reads it sees
all of it or what was there before. Nobody but its owner may write it. vLLM's API process imports
this module: it imports nothing that is heavy.
"""

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, PositiveFloat, PositiveInt, ValidationError

from slipstream.atomic_files import write_atomically
from slipstream.errors import InvalidInputError
from slipstream.records import Record, describe_faults

KEYS_HINT = "slipstream keys list"
BORROWED_FOR = timedelta(minutes=15)
# The gate follows its key file four times a second.
FOLLOWED_SECONDS = 1.0


# What a key may be used for: an API each, and what reads the engine's metrics.
Scope = Literal[
    "chat",
    "completions",
    "responses",
    "messages",
    "embeddings",
    "rerank",
    "score",
    "pooling",
    "tokenize",
    "detokenize",
    "models",
    "metrics",
]


class KeyTerms(Record):
    """What a key may use; None takes the gate's defaults for keys."""

    routes: tuple[Scope, ...] | None = None
    models: tuple[str, ...] | None = None
    concurrent_requests: PositiveInt | None = None
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    max_tokens: PositiveInt | None = None
    weight: PositiveFloat | None = None
    priority: int | None = None
    drafts: Literal["on", "off"] | None = None
    # Whether its text may be kept to train the drafter, where the server learns.
    learning: Literal["on", "off"] | None = None


class Key(KeyTerms):
    """A key as the file holds it, without its secret."""

    id: str
    name: str
    sha256: str
    created: AwareDatetime
    expires: AwareDatetime | None = None

    def is_valid(self, now: datetime) -> bool:
        return self.expires is None or now < self.expires


class NewKey(Record):
    """A key with its secret, for the only time that it is shown."""

    schema_version: Literal[1] = 1
    secret: str
    key: Key


class KeyList(Record):
    schema_version: Literal[1] = 1
    file: str
    keys: tuple[Key, ...]


def find_key_file(environment: Mapping[str, str]) -> Path:
    if named := environment.get("SLIPSTREAM_KEYS"):
        return Path(named).expanduser()
    if named := environment.get("XDG_CONFIG_HOME"):
        return Path(named).expanduser() / "slipstream" / "keys.json"
    return Path(environment.get("HOME") or Path.home()) / ".config" / "slipstream" / "keys.json"


def read_keys(file: Path) -> tuple[Key, ...]:
    """Return the keys of a file, none if there is no file."""
    try:
        lines = file.read_bytes().splitlines()
        _require_own(file)
    except FileNotFoundError:
        return ()
    except OSError as fault:
        message = f"cannot read {file}: {fault.strerror or fault}"
        raise InvalidInputError(message, hint=f"ls -l {file}") from fault
    keys: list[Key] = []
    faults: list[str] = []
    for number, line in enumerate(lines, start=1):
        try:
            keys.append(Key.model_validate_json(line))
        except ValidationError as fault:
            faults.append(f"line {number}: {'; '.join(describe_faults(fault))}")
    if faults:
        raise InvalidInputError(
            f"{file} is not a file of keys", details=tuple(faults), hint=f"remove {file}"
        )
    return tuple(keys)


def make_key(
    file: Path,
    name: str,
    *,
    now: datetime,
    expires: datetime | None,
    terms: KeyTerms | None = None,
) -> NewKey:
    secret, digest = _make_secret()
    key = Key(
        **(terms or KeyTerms()).model_dump(),
        id=secrets.token_hex(4),
        name=name,
        sha256=digest,
        created=now,
        expires=expires,
    )
    with _locked_folder(file):
        _replace(file, (*read_keys(file), key))
    return NewKey(secret=secret, key=key)


def rotate_key(file: Path, identity: str, *, now: datetime, overlap: timedelta) -> NewKey:
    """Create a new secret for a key; the old one stays valid for the overlap.

    A key that expires lives as long again as it did before.
    """
    secret, digest = _make_secret()
    with _locked_folder(file):
        keys = read_keys(file)
        old = _find_last(keys, identity, file)
        expires = None if old.expires is None else now + (old.expires - old.created)
        new = old.model_copy(update={"sha256": digest, "created": now, "expires": expires})
        kept = [one for one in keys if one.id != identity or one.is_valid(now)]
        ending = [_end_by(one, now + overlap) if one.id == identity else one for one in kept]
        _replace(file, (*ending, new))
    return NewKey(secret=secret, key=new)


def revoke_key(file: Path, identity: str) -> Key:
    """Remove a key from the file, with the ones that it replaced."""
    with _locked_folder(file):
        keys = read_keys(file)
        key = _find_last(keys, identity, file)
        _replace(file, [one for one in keys if one.id != identity])
    return key


def _make_secret() -> tuple[str, str]:
    secret = secrets.token_urlsafe(32)
    return secret, sha256(secret.encode()).hexdigest()


def _find_last(keys: Sequence[Key], identity: str, file: Path) -> Key:
    found = [key for key in keys if key.id == identity]
    if not found:
        raise InvalidInputError(f"unknown key {identity} in {file}", hint=KEYS_HINT)
    return found[-1]


def _end_by(key: Key, end: datetime) -> Key:
    return key.model_copy(update={"expires": min(key.expires or end, end)})


@contextmanager
def _locked_folder(file: Path) -> Iterator[None]:
    """Lock the folder, so that two commands do not write the same file."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as fault:
        message = f"cannot store keys in {file.parent}: {fault.strerror or fault}"
        raise InvalidInputError(message, hint="name another file with SLIPSTREAM_KEYS") from fault
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _replace(file: Path, keys: Sequence[Key]) -> None:
    """Replace the file in one step; only its owner can ever read it."""
    content = "".join(f"{key.model_dump_json(exclude_none=True)}\n" for key in keys)
    write_atomically(file, content.encode(), mode=0o600)


def _require_own(file: Path) -> None:
    """Raise if another user could have written the keys."""
    for path, mode in ((file, 600), (file.parent, 700)):
        bits = path.stat().st_mode
        if bits & 0o022 and not bits & stat.S_ISVTX:
            message = f"other users can write to {path} and could add a key"
            raise InvalidInputError(message, hint=f"chmod {mode} {path}")


@contextmanager
def borrow_key(file: Path | None) -> Iterator[str | None]:
    """Have a key that a gate with this key file takes, None without one; then it is revoked."""
    if file is None:
        yield None
        return
    now = datetime.now(UTC).replace(microsecond=0)
    terms = KeyTerms(routes=("chat", "completions", "models", "metrics"))
    new_key = make_key(file, "verify", now=now, expires=now + BORROWED_FOR, terms=terms)
    try:
        time.sleep(FOLLOWED_SECONDS)
        yield new_key.secret
    finally:
        with suppress(InvalidInputError):  # The file was replaced by one without it.
            revoke_key(file, new_key.key.id)
