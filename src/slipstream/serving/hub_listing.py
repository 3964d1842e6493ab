"""What a repository of the hub holds at one commit, and what it means if the hub does not tell.

An error that waiting may mend is a MissingPartError; the others stay, however often one asks.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError

ANSWER_WITHIN_SECONDS = 10.0

_COMMIT = re.compile(r"[0-9a-f]{40}")
_TRUE = ("1", "ON", "YES", "TRUE")


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file as the hub lists it: a large one with its sha256, a small one with git's hash."""

    name: str
    size_bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True, slots=True)
class Listing:
    """A repository at one commit."""

    repository: str
    commit: str
    files: Mapping[str, RemoteFile]

    def choose(self, names: Iterable[str]) -> list[RemoteFile]:
        """Give files by name, and refuse one that could not be checked."""
        files = [self.files[name] for name in names]
        unknown = tuple(file.name for file in files if not (file.sha256 or file.git_sha1))
        if unknown:
            raise InvalidInputError(
                f"the hub lists no hash for {len(unknown)} files of {self.repository}",
                details=unknown,
                hint="ask another hub with HF_ENDPOINT",
            )
        return files

    def url(self, file: RemoteFile, environment: Mapping[str, str]) -> str:
        """Give the address of a file at this commit."""
        from huggingface_hub import hf_hub_url

        endpoint = find_endpoint(environment)
        return hf_hub_url(self.repository, file.name, revision=self.commit, endpoint=endpoint)


def is_commit(revision: str | None) -> bool:
    """Say whether a revision can only ever mean one content."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def find_endpoint(environment: Mapping[str, str]) -> str | None:
    """Give the hub that the user named, or None for the usual one."""
    return environment.get("HF_ENDPOINT", "").rstrip("/") or None


def find_token(environment: Mapping[str, str]) -> str | None:
    """Give the user's token: the environment's, or the one that `hf auth login` keeps."""
    from huggingface_hub import get_token

    token = "".join(environment.get("HF_TOKEN", "").split())
    if not token and not _is_on(environment, "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        token = get_token() or ""
    if not (token.isascii() and token.isprintable()):
        raise InvalidInputError(
            "HF_TOKEN holds characters that no token has", hint="copy the token again"
        )
    return token or None


def list_repository(name: str, revision: str | None, environment: Mapping[str, str]) -> Listing:
    """Ask the hub which commit a revision is now, and which files that has."""
    if _is_on(environment, "HF_HUB_OFFLINE"):
        raise MissingPartError(
            f"HF_HUB_OFFLINE forbids to ask the hub about {name}", hint="unset HF_HUB_OFFLINE"
        )
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=find_endpoint(environment), token=find_token(environment) or False)
    try:
        told = hub.model_info(
            name, revision=revision, files_metadata=True, timeout=ANSWER_WITHIN_SECONDS
        )
    except Exception as fault:  # the client lets its HTTP library's errors through, whichever it is
        raise explain(fault, name, revision) from fault
    commit = told.sha or ""
    if not is_commit(commit) or (is_commit(revision) and commit != revision):
        raise InvalidInputError(
            f"the hub gives commit '{commit}' for {name} at {revision or 'its default branch'}",
            hint="ask another hub with HF_ENDPOINT",
        )
    files = {file.rfilename: _read_file(file) for file in told.siblings or ()}
    return Listing(repository=name, commit=commit, files=files)


def explain(fault: Exception, name: str, revision: str | None) -> SlipstreamError:
    """Turn what went wrong into an error of ours, without an address: some are signed."""
    answer = getattr(fault, "response", None)
    if answer is None:
        lines = str(fault).strip().splitlines() or [""]
        return MissingPartError(
            f"no answer from the hub about {name}",
            details=(f"{type(fault).__name__} {lines[0]}".strip(),),
            hint="check the network and HF_ENDPOINT; a folder with the model needs no hub",
        )
    status, code = int(answer.status_code), str(answer.headers.get("X-Error-Code", ""))
    told = f"{status} {code}".strip()
    if may_pass(status):
        return MissingPartError(
            f"the hub cannot give {name} now: {told}", hint="run the same command again later"
        )
    if code == "RevisionNotFound":
        return InvalidInputError(
            f"{name} has no revision {revision}", hint="name a branch, a tag or a commit of it"
        )
    if code == "GatedRepo" or status == 403:
        return InvalidInputError(
            f"the hub does not give {name} to this user: {told}",
            hint=f"accept the terms on the hub's page of {name}, then set HF_TOKEN",
        )
    return InvalidInputError(
        f"the hub has no {name}, or does not show it to this user: {told}",
        hint="check the name; for a private or gated model set HF_TOKEN",
    )


def may_pass(status: int) -> bool:
    """Say whether an answer can be another one soon."""
    return status >= 500 or status in (408, 425, 429)


def _is_on(environment: Mapping[str, str], variable: str) -> bool:
    return environment.get(variable, "").upper() in _TRUE


def _read_file(file: Any) -> RemoteFile:
    return RemoteFile(
        name=file.rfilename,
        size_bytes=file.lfs.size if file.lfs else file.size or 0,
        sha256=file.lfs.sha256 if file.lfs else None,
        git_sha1=file.blob_id,
    )
