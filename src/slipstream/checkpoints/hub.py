"""The hub's names and cards, and what it means when the hub does not answer.

A card is somebody's text: only names of repositories are taken from it, and few of them. Names are
a weak sign, too: a match by name alone is reported as such. huggingface_hub lets many exceptions
through. Each becomes an error of ours here: a MissingPartError if the model may be there later or
for another user, else an InvalidInputError.
"""

import errno
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slipstream.errors import InvalidInputError, MissingPartError, SlipstreamError

_COMMIT = re.compile(r"[0-9a-f]{40}")
_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_LONGEST_NAME = 96  # as huggingface_hub's validate_repo_id
_TRUE = ("1", "ON", "YES", "TRUE")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# How builds of a model are called: the format and its bits, the tool, the machine.
_BUILD_WORD = re.compile(
    r"[-_.](?:(?:nv|mx)?fp(?:4|8|16)|bf16|int[48](?:mix)?|w\d+a\d+(?:fp8)?|\d+(?:\.\d+)?(?:bits?|bpw)|"
    r"awq|gptq|autoround|exl[23]|bnb|modelopt|quantized|dynamic|static|block|lmhead|gb10|unsloth|qat)$"
)
_FRONT_MATTER = re.compile(rb"---\r?\n(.*?)\r?\n---\s", re.DOTALL)
_MOST_CARD_BYTES = 1 << 16
_MOST_NAMES = 4


def is_commit(revision: str | None) -> bool:
    """Return whether a revision can only ever mean one content."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


def is_offline(environment: Mapping[str, str]) -> bool:
    """Return whether the user forbids network access, by huggingface_hub's own variable."""
    return environment.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def is_hub_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None


def require_hub_name(name: str) -> None:
    if not is_hub_name(name):
        raise InvalidInputError(
            f"there is no folder {name}, and it is not the name of a model on the hub",
            hint="name a folder with a config.json, or OWNER/MODEL",
        )


def name_stem(name: str) -> str:
    """Return a model's name without its owner and without the words that name a build of it."""
    stem = name.rstrip("/").rpartition("/")[2].lower()
    # Meta's repositories lost this prefix; the builds of others keep it.
    stem = stem.removeprefix("meta-") if stem.startswith("meta-llama") else stem
    while match := _BUILD_WORD.search(stem):
        stem = stem[: match.start()]
    return stem


def parse_base_models(card: bytes | None) -> tuple[str, ...] | None:
    """Return the `base_model` of a card, None if there is no card or it names none."""
    matter = _FRONT_MATTER.match((card or b"")[:_MOST_CARD_BYTES])
    if matter is None:
        return None
    import yaml

    try:
        fields = yaml.safe_load(matter.group(1))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return keep_names(fields.get("base_model") if isinstance(fields, dict) else None)


def keep_names(stated: object) -> tuple[str, ...] | None:
    """Return what is the name of a repository, of one value or a list of them."""
    listed = stated if isinstance(stated, list) else [stated]
    names = [name for name in listed[:_MOST_NAMES] if isinstance(name, str) and is_hub_name(name)]
    return tuple(dict.fromkeys(names)) or None


def find_snapshot(name: str, revision: str | None, cache: Path | None = None) -> Path | None:
    """Return the folder of a repository's weights in the cache, without asking the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=cache,
            allow_patterns=["config.json"],
            local_files_only=True,
        )
    except LocalEntryNotFoundError:
        return None
    return Path(folder) if any(Path(folder).glob("*.safetensors")) else None


@contextmanager
def asking_hub(name: str, revision: str | None = None) -> Iterator[None]:
    """Turn whatever huggingface_hub raises into one error of ours."""
    try:
        yield
    except SlipstreamError:
        raise
    except Exception as fault:  # its HTTP library's errors, xet's, and those of the disk
        raise explain(fault, name, revision) from fault


def explain(fault: Exception, name: str, revision: str | None) -> SlipstreamError:
    """Make an error with a hint, and without an address: some are signed."""
    from huggingface_hub.errors import (
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RevisionResolutionError,
    )

    if getattr(fault, "errno", None) in _FULL or "No space left on device" in str(fault):
        return InvalidInputError(
            f"the disk is full: {getattr(fault, 'strerror', None) or 'No space left on device'}",
            details=(f"while {name} was downloaded",),
            hint="make room, or name a folder on a larger disk with HF_HUB_CACHE; "
            "files that have arrived are kept",
        )
    if isinstance(fault, OSError) and fault.errno and fault.filename:
        return InvalidInputError(
            f"cannot use {fault.filename}: {fault.strerror}",
            hint="check its permissions and its disk, or name another folder with HF_HUB_CACHE",
        )
    causes: list[BaseException] = [fault]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    answers = (getattr(cause, "response", None) for cause in causes)
    answer = next((answer for answer in answers if answer is not None), None)
    if answer is not None:
        code = str(answer.headers.get("X-Error-Code", ""))
        return _explain_status(int(answer.status_code), code, name, revision)
    root = causes[-1]
    if isinstance(root, (OfflineModeIsEnabled, LocalEntryNotFoundError, RevisionResolutionError)):
        return explain_absence(name)
    lines = str(root).strip().splitlines() or [""]
    return MissingPartError(
        f"cannot read {name} from the hub",
        details=(f"{type(root).__name__}: {lines[0].split(' (')[0]}",),
        hint="check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 starts from what the cache has",
    )


def explain_absence(name: str) -> MissingPartError:
    """Make the error of a model that may not be fetched."""
    return MissingPartError(
        f"{name} is not in the cache, and HF_HUB_OFFLINE forbids the download",
        hint="unset HF_HUB_OFFLINE",
    )


def _explain_status(status: int, code: str, name: str, revision: str | None) -> SlipstreamError:
    answered = f"{status} {code}".strip()
    if status >= 500 or status in (408, 425, 429):
        return MissingPartError(
            f"the hub cannot serve {name} now: {answered}", hint="run the same command again later"
        )
    if code == "RevisionNotFound":
        return InvalidInputError(
            f"{name} has no revision {revision}", hint="name a branch, a tag or a commit of it"
        )
    if code == "GatedRepo" or status == 403:
        return MissingPartError(
            f"{name} is gated, and this user has no access: {answered}",
            hint=f"accept the terms on the hub's page of {name}, then set HF_TOKEN",
        )
    return MissingPartError(
        f"the hub has no {name}, or does not show it to this user: {answered}",
        hint="check the name; for a private or gated model set HF_TOKEN",
    )
