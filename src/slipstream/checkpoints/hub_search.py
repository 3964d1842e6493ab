"""Drafters that the hub lists for a target: by the base model they name, or by their tags.

A listing is what strangers wrote. Of it only names, tags and classes are kept, few of each; files
are read later like those of any other checkpoint, as data, and code in them is never run.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from slipstream.checkpoints.draft_part import guess_method
from slipstream.checkpoints.hub import asking_hub, is_hub_name
from slipstream.errors import MissingPartError, SlipstreamError

TAGS = ("dflash", "eagle3", "speculators")
MOST_LISTED = 100  # of each question
MOST_NAMES = 3  # a target and what it was made from
# The hub's client waits forever for an answer.
LONGEST_WAIT_S = 20.0
# Stored in a way that vLLM does not load as a drafter.
_FOREIGN = frozenset(("gguf", "mlx", "onnx", "openvino", "coreml"))
_BASE_TAG = "base_model:"
_LICENCE_TAG = re.compile(r"license:([\w.+-]{1,40})", re.ASCII)


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
    known = [name for name in names if is_hub_name(name)][:MOST_NAMES]
    found: dict[str, HubDrafter] = {}
    for model in _within_time(lambda: list(_list_models(known)), known):
        drafter = _parse(model)
        if drafter is not None and drafter.name not in names:
            found.setdefault(drafter.name, drafter)
    return tuple(found.values())


def _list_models(names: list[str]) -> Iterator[Any]:
    """Yield what names a model as its base, and what carries a drafter's tag and its name."""
    from huggingface_hub import HfApi

    stem = names[-1].rpartition("/")[2] if names else ""
    questions: list[dict[str, Any]] = [
        *({"filter": f"{_BASE_TAG}{name}", "sort": "downloads"} for name in names),
        *({"filter": tag, "search": stem} for tag in TAGS if names),
    ]
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
