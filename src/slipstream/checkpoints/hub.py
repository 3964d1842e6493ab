"""The hub's names, cards and listings, and what it means when the hub does not answer.

Cards and listings are what strangers wrote: only names, tags and classes are taken from them, few
of each, and code in their files is never run. Names are a weak sign, too: a match by name alone is
reported as such. huggingface_hub lets many exceptions through. Each becomes an error of ours here:
a MissingPartError if the model may be there later or for another user, else an InvalidInputError.
"""

import errno
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from slipstream.checkpoints.draft_part import guess_method
from slipstream.errors import (
    GatedModelError,
    InvalidInputError,
    MissingPartError,
    SlipstreamError,
)

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
TAGS = ("dflash", "eagle3", "speculators")
MOST_LISTED = 100  # of each question
_MOST_SEARCHED = 3  # a target and what it was made from
# The hub's client waits forever for an answer.
LONGEST_WAIT_S = 20.0
CONNECT_WAIT_S = 5.0
# Stored in a way that vLLM does not load as a drafter.
_FOREIGN = frozenset(("gguf", "mlx", "onnx", "openvino", "coreml"))
_BASE_TAG = "base_model:"
_LICENCE_TAG = re.compile(r"license:([\w.+-]{1,40})", re.ASCII)


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


@cache
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
            "files that are complete are kept",
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
        hint="check the network and HF_ENDPOINT; HF_HUB_OFFLINE=1 uses only what is in the cache",
    )


def explain_absence(name: str) -> MissingPartError:
    """Make the error of a model that may not be fetched."""
    return MissingPartError(
        f"{name} is not in the cache, and HF_HUB_OFFLINE forbids downloads",
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
            f"{name} has no revision {revision}", hint="name one of its branches, tags or commits"
        )
    if code == "GatedRepo" or status == 403:
        return GatedModelError(
            f"{name} is gated, and this user has no access: {answered}",
            hint=f"accept the terms on the hub's page of {name}, then set HF_TOKEN",
        )
    return MissingPartError(
        f"the hub has no {name}, or this user may not see it: {answered}",
        hint="check the name; for a private or gated model set HF_TOKEN",
    )


@dataclass(frozen=True, slots=True)
class HubDrafter:
    name: str
    method: str
    base_models: tuple[str, ...]
    licence: str | None
    has_code: bool


def search_drafters(names: tuple[str, ...]) -> tuple[HubDrafter, ...]:
    """Ask the hub for drafters of models with these names; a target's own name comes first."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise MissingPartError(
            "HF_HUB_OFFLINE is set, so only the index was searched", hint="unset HF_HUB_OFFLINE"
        )
    known = [name for name in names if is_hub_name(name)][:_MOST_SEARCHED]
    found: dict[str, HubDrafter] = {}
    for model in _within_time(lambda: list(_list_models(known)), known):
        drafter = _parse(model)
        if drafter is not None and drafter.name not in names:
            found.setdefault(drafter.name, drafter)
    return tuple(found.values())


def _list_models(names: list[str]) -> Iterator[Any]:
    """Yield what names a model as its base, and what carries a drafter's tag and its name."""
    from huggingface_hub import HfApi, constants, get_session

    stem = names[-1].rpartition("/")[2] if names else ""
    questions: list[dict[str, Any]] = [
        *({"filter": f"{_BASE_TAG}{name}", "sort": "downloads"} for name in names),
        *({"filter": tag, "search": stem} for tag in TAGS if names),
    ]
    with asking_hub(stem):
        # A listing is asked for six times, with a line on stderr each, if the hub is out of reach.
        get_session().head(constants.ENDPOINT, timeout=CONNECT_WAIT_S)
    for question in questions:
        with asking_hub(stem):
            yield from HfApi().list_models(
                limit=MOST_LISTED, full=True, fetch_config=True, **question
            )


def _within_time(ask: Callable[[], list[Any]], names: list[str]) -> list[Any]:
    answers: SimpleQueue[list[Any] | SlipstreamError] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except SlipstreamError as fault:
            answers.put(fault)

    Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=LONGEST_WAIT_S)
    except Empty:
        raise MissingPartError(
            f"the hub listed no drafters for {names[0]} within {LONGEST_WAIT_S:g} s",
            hint="run the same command again later, or HF_HUB_OFFLINE=1 for the index only",
        ) from None
    if isinstance(answer, SlipstreamError):
        raise answer
    return answer


def _parse(model: Any) -> HubDrafter | None:
    """Read one model of a listing; None if it is no drafter that vLLM could load."""
    name = model.id
    tags = {tag.lower(): tag for tag in model.tags or () if isinstance(tag, str)}
    if not isinstance(name, str) or not is_hub_name(name) or _FOREIGN & tags.keys():
        return None
    stated = (model.config or {}).get("architectures")
    classes = [one for one in stated if isinstance(one, str)] if isinstance(stated, list) else []
    method = guess_method(name, frozenset(tags), classes)
    if method is None:
        return None
    files = [sibling.rfilename for sibling in model.siblings or ()]
    bases = (tag.rpartition(":")[2] for tag in tags.values() if tag.startswith(_BASE_TAG))
    licences = [match[1] for tag in tags if (match := _LICENCE_TAG.fullmatch(tag))]
    return HubDrafter(
        name=name,
        method=method,
        base_models=tuple(dict.fromkeys(base for base in bases if is_hub_name(base))),
        licence=next(iter(licences), None),
        has_code="custom_code" in tags or any(file.endswith(".py") for file in files),
    )
