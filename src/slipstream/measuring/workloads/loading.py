"""`load_workload`: names and files in, one workload out, the same for the same seed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from slipstream.errors import InvalidInputError, UsageError
from slipstream.measuring.workloads.own_files import read_own_file
from slipstream.measuring.workloads.published import SETS, read_published
from slipstream.measuring.workloads.shipped import (
    FAMILIES,
    KINDS,
    TASK_KINDS,
    WARM_UPS_PER_KIND,
    make_prompts,
)
from slipstream.measuring.workloads.workload import (
    CountTokens,
    Prompt,
    Workload,
    estimate_tokens,
    split_by_fit,
)


class _Source(NamedTuple):
    prompts: tuple[Prompt, ...]
    warm_up: tuple[Prompt, ...]
    left_out: dict[str, str]


def load_workload(
    names: Sequence[str],
    *,
    most_per_kind: int | None = None,
    seed: int = 0,
    context: int | None = None,
    max_tokens: int | None = None,
    count_tokens: CountTokens = estimate_tokens,
) -> Workload:
    """Return the prompts of shipped kinds, published sets (`gsm8k:PATH`) and the user's files.

    Of each class at most `most_per_kind` prompts or tasks are drawn by the seed, out of those which
    fit into the context with answers of up to `max_tokens`.
    """
    _require_positive(most_per_kind=most_per_kind, context=context, max_tokens=max_tokens)
    if not names:
        raise UsageError("no workload is named", hint=_list_names())
    _require_alike(names)
    sources = [_open(name, count_tokens) for name in names]
    every = {one.id: _limit(one, max_tokens) for source in sources for one in source.prompts}
    spare = {one.id: _limit(one, max_tokens) for source in sources for one in source.warm_up}
    left_out = {place: why for source in sources for place, why in source.left_out.items()}
    fitting, warm_up = list(every.values()), list(spare.values())
    if context is not None:
        fitting, others = split_by_fit(fitting, context, count_tokens)
        warm_up, _ = split_by_fit(warm_up, context, count_tokens)
        why = f"longer, with its answer, than a context of {context:,} tokens"
        gone = {one.unit for one in others}
        fitting = [one for one in fitting if one.unit not in gone]
        left_out |= dict.fromkeys(sorted(gone), why)
    if not fitting:
        raise _nothing_left(left_out)
    chosen = _choose(fitting, most_per_kind, seed)
    return Workload(
        name=",".join(names),
        prompts=chosen,
        warm_up=(*_find_unused(chosen, fitting, warm_up, seed), *warm_up),
        left_out=left_out,
    )


def names_tasks(names: Sequence[str]) -> bool:
    return any(name == "agent" or name in TASK_KINDS for name in names)


def _open(name: str, count_tokens: CountTokens) -> _Source:
    small_talk = make_prompts("dialogue", count_tokens, warm_up=True)
    set_name, colon, path = name.partition(":")
    if colon and set_name in SETS:
        return _Source(read_published(set_name, Path(path).expanduser()), small_talk, {})
    if name in KINDS or name in TASK_KINDS or name in FAMILIES:
        kinds = FAMILIES.get(name, (name,))
        prompts = [one for kind in kinds for one in make_prompts(kind, count_tokens)]
        spare = [one for kind in kinds for one in make_prompts(kind, count_tokens, warm_up=True)]
        return _Source(tuple(prompts), tuple(spare), {})
    file = Path(name).expanduser()
    if not file.exists() and not file.suffix:
        raise UsageError(f"there is no workload {name}", hint=_list_names(name))
    own, left_out = read_own_file(file)
    return _Source(own, small_talk, left_out)


def _limit(prompt: Prompt, max_tokens: int | None) -> Prompt:
    """Limit the longest answer, and with it the shortest."""
    if max_tokens is None or prompt.max_tokens <= max_tokens:
        return prompt
    extra = dict(prompt.extra)
    if "min_tokens" in extra:
        extra["min_tokens"] = min(extra["min_tokens"], max_tokens)
    return prompt.model_copy(update={"max_tokens": max_tokens, "extra": extra})


def _choose(prompts: Sequence[Prompt], most_per_kind: int | None, seed: int) -> tuple[Prompt, ...]:
    """Draw up to so many of each class, a task with all its turns; more include the fewer."""
    if most_per_kind is None:
        return tuple(prompts)
    chosen: set[str] = set()
    counts: Counter[str] = Counter()
    for unit, kind in _shuffle({prompt.unit: prompt.kind for prompt in prompts}, seed):
        if counts[kind] < most_per_kind:
            counts[kind] += 1
            chosen.add(unit)
    return tuple(prompt for prompt in prompts if prompt.unit in chosen)


def _find_unused(
    chosen: Sequence[Prompt], fitting: Sequence[Prompt], warm_up: Sequence[Prompt], seed: int
) -> tuple[Prompt, ...]:
    """Find what can warm up the classes that ship nothing for it: prompts that were not drawn."""
    shipped = {prompt.kind for prompt in warm_up}
    measured = {prompt.id for prompt in chosen}
    unused = [one for one in fitting if one.kind not in shipped and one.id not in measured]
    return _choose(unused, WARM_UPS_PER_KIND, seed)


def _shuffle(units: Mapping[str, str], seed: int) -> list[tuple[str, str]]:
    return sorted(units.items(), key=lambda one: sha256(f"{seed}:{one[0]}".encode()).hexdigest())


def _require_alike(names: Sequence[str]) -> None:
    """Refuse tasks together with prompts: the ones are timed as wholes, the others by the token."""
    tasks = [name for name in names if names_tasks([name])]
    if tasks and len(tasks) < len(names):
        raise UsageError(
            f"{', '.join(tasks)} cannot be measured together with other prompts",
            hint=f"--workload {' '.join(tasks)}",
        )


def _require_positive(**limits: int | None) -> None:
    for name, limit in limits.items():
        if limit is not None and limit < 1:
            named = name.replace("_", "-")
            raise UsageError(f"{named} is {limit}", hint=f"use 1 or more for {named}")


def _nothing_left(left_out: dict[str, str]) -> InvalidInputError:
    reasons = sorted(Counter(left_out.values()).items())
    return InvalidInputError(
        "no usable prompt is left",
        details=tuple(f"{reason}: {count}" for reason, count in reasons),
        hint="choose a lower --max-tokens, a longer --context, or other prompts",
    )


def _list_names(near: str = "") -> str:
    """Return what can be typed, the nearest first."""
    published = [f"{name}:PATH" for name in SETS]
    names = [*KINDS, *TASK_KINDS, *FAMILIES, *published]
    close = get_close_matches(near, names, n=1)
    meant = f"did you mean {close[0]}? " if close else ""
    return f"{meant}use {', '.join(names)} or the path of a JSONL file of prompts"
