"""`EngineSpeed` from what was measured, whichever form the file of `--profile` has.

A tuning has loads and drafts. A ledger has every request's steps, their time and its batch: a
request's time after its first token is its steps, times a fixed part, a part by sequence, a part by
verified token, plus the prompts that others had read in between; the first token of a request that
was alone is one step and its own prompt.
"""

import json
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil, inf, sqrt
from pathlib import Path
from statistics import median
from typing import Any

from pydantic import ValidationError

from slipstream.errors import InvalidInputError
from slipstream.records import describe_faults
from slipstream.sizing.engine_speed import (
    DERIVED_PROMPTS,
    USUAL_BATCHED_TOKENS,
    DraftYield,
    EngineSpeed,
    make_geometric,
    make_yield,
)
from slipstream.steering.drafts import Drafts
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine, read_ledger
from slipstream.steering.step_time import FAR, StepFit, StepRow, fit_steps, t_quantile
from slipstream.tuning.acceptance import find_drafts
from slipstream.tuning.profile import SpeedProfile
from slipstream.tuning.tuner import Tuning

MOST_BYTES = 1 << 27
LEAST_STEPS = 4
LEAST_LINES = 20
# Per step, of an engine that fits each request's draft: below it, hardly any step has one.
LEAST_VERIFIED = 0.1
_FILES = "the file of slipstream tune --json, or a run's ledger.jsonl"
_LEDGER = "a ledger of a run under several loads, or the file of slipstream tune --json"


def read_speed(path: Path) -> EngineSpeed:
    """Read a tuning, a speed profile, a ledger, or what `size` printed."""
    if path.suffix == ".jsonl":
        return take_ledger(list(read_ledger([path])), path.name)
    document = _read_document(path)
    try:
        if "starts" in document:
            tuning = Tuning.model_validate(document)
            seconds = [start.start_seconds for start in tuning.starts]
            return take_profile(tuning.profile, seconds, path.name)
        if "step_time" in document:
            return take_profile(SpeedProfile.model_validate(document), (), path.name)
        return EngineSpeed.model_validate(document.get("speed", document))
    except ValidationError as fault:
        raise InvalidInputError(
            f"{path} has no speed of an engine that this version reads",
            details=describe_faults(fault)[:8],
            hint=_FILES,
        ) from fault


def _read_document(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
        document = json.loads(path.read_bytes())
        if not isinstance(document, dict):
            raise ValueError("it is not a JSON object")
    except (OSError, ValueError, RecursionError) as fault:
        why = getattr(fault, "strerror", None) or fault
        raise InvalidInputError(f"cannot read {path}: {why}", hint=_FILES) from fault
    return document


def take_profile(profile: SpeedProfile, start_seconds: Sequence[float], source: str) -> EngineSpeed:
    """Return the speed that a tuning measured; a prompt's cost is derived."""
    plan, steps = profile.conditions.plan, profile.step_time
    batched = plan.settings.batched_tokens if plan else None
    yields: list[DraftYield] = []
    for kind in profile.shares:
        for length in filter(None, profile.model.lengths):
            found = find_drafts(profile.acceptance, kind, length)
            assert found is not None
            tokens = found.expect(length).value
            yields.append(make_yield(kind, length, found.requests, tokens))
    return EngineSpeed(
        source=source,
        drafting=steps.drafting,
        plain=steps.plain,
        yields=tuple(yields),
        per_prompt_token=steps.drafting.per_token,
        prompt_source=DERIVED_PROMPTS,
        error=profile.choice.prediction.error,
        max_sequences=profile.max_sequences,
        batched_tokens=batched.value if batched else USUAL_BATCHED_TOKENS,
        start_seconds=median(start_seconds) if start_seconds else None,
        cautions=profile.cautions,
    )


def take_ledger(lines: Sequence[LedgerLine], source: str) -> EngineSpeed:
    """Fit the speed of the engine, or engines, that wrote these lines; order does not matter."""
    served = [
        line for line in lines if line.key != SUPERVISOR_KEY and line.first_seconds is not None
    ]
    rows = _list_rows(served) + _list_lone_prompts(served)
    fitted = any(line.copies or line.expected is not None for line in served)
    drafting = _fit([row for row in rows if row.draft_length >= (LEAST_VERIFIED if fitted else 1)])
    plain = _fit([row for row in rows if not row.draft_length])
    fits = [fit for fit in (drafting, plain) if fit]
    if not fits:
        raise InvalidInputError(
            f"{source} has too few requests of several tokens to estimate the cost of a step",
            hint=_LEDGER,
        )
    prompts = [fit.per_prompt_token for fit, _ in fits if fit.per_prompt_token > 0]
    list_yields = _list_realised_yields if fitted else _list_yields
    yields = list_yields(served) if drafting else ()
    return EngineSpeed(
        source=source,
        drafting=drafting[0].cost if drafting and yields else None,
        plain=plain[0].cost if plain else None,
        yields=yields,
        # A plain step's token counts as its sequence's.
        per_prompt_token=min(
            prompts, default=max(fit.cost.per_token or fit.cost.per_sequence for fit, _ in fits)
        ),
        prompt_source="fitted to the ledger" if prompts else DERIVED_PROMPTS,
        error=max(error for _, error in fits),
        max_sequences=max(1, round(max(row.sequences for row in rows))),
        cautions=("first tokens are those of the engine's core, without its API server",),
    )


def _list_rows(lines: Sequence[LedgerLine]) -> list[StepRow]:
    """List the steps after requests' first tokens, with the prompts that others had read then."""
    read = sorted(
        ((line.at - line.seconds + (line.first_seconds or 0), line) for line in lines),
        key=lambda pair: pair[0],
    )
    times = [time for time, _ in read]
    before = [0, *accumulate(line.uncached_tokens for _, line in read)]
    rows: list[StepRow] = []
    for time, line in read:
        seconds = line.seconds - (line.first_seconds or 0.0)
        if line.steps > LEAST_STEPS and line.batch is not None and seconds > 0:
            prompts = before[bisect_right(times, line.at)] - before[bisect_right(times, time)]
            steps, verified = line.steps - 1, line.drafted + line.copied
            rows.append(StepRow(line.batch, verified / steps, seconds, steps, prompts))
    return rows


def _list_lone_prompts(lines: Sequence[LedgerLine]) -> list[StepRow]:
    """List the first steps of requests that met no other one."""
    spans = sorted(
        ((line.at - line.seconds, line.at, line) for line in lines), key=lambda span: span[:2]
    )
    begins = [began for began, _, _ in spans]
    busy_until, rows = 0.0, list[StepRow]()
    for (began, ended, line), following in zip(spans, [*begins[1:], inf], strict=True):
        first = line.first_seconds or 0.0
        if began > busy_until and following > began + first and first > 0:
            length = line.drafted / line.drafts if line.drafts else 0.0
            rows.append(StepRow(1.0, length, first, prompt_tokens=line.uncached_tokens))
        busy_until = max(busy_until, ended)
    return rows


def _fit(rows: Sequence[StepRow]) -> tuple[StepFit, float] | None:
    """Return a step's costs and half of the 95 % interval of the mean step, as a share of it.

    Requests that shared their steps say the same of them: of a batch of n, one in n counts.
    """
    if len(rows) < LEAST_LINES:
        return None
    batches = [row.sequences for row in rows]
    if max(batches) < FAR * min(batches):
        raise InvalidInputError(
            "all requests of the ledger had about the same batch: "
            "the cost of a sequence cannot be estimated",
            hint=_LEDGER,
        )
    fit = fit_steps(rows)
    if fit is None:
        raise InvalidInputError("the ledger's times fit no line", hint=_LEDGER)
    independent = sum(1 / batch for batch in batches)
    degrees_of_freedom = max(1, round(independent) - len(fit.columns))
    spread = sqrt(fit.squares / max(1, fit.degrees_of_freedom))
    error = t_quantile(degrees_of_freedom) * spread * sqrt(len(fit.columns) / independent)
    return fit, min(1.0, error)


def _list_yields(lines: Iterable[LedgerLine]) -> tuple[DraftYield, ...]:
    by_kind = defaultdict[str, list[LedgerLine]](list)
    for line in lines:
        if line.drafts:
            by_kind[line.kind].append(line)
    yields: list[DraftYield] = []
    for kind, own in sorted(by_kind.items()):
        longest = max(round(line.drafted / line.drafts) for line in own)
        whole: list[Drafts] = [one for one in own if one.drafted / one.drafts > longest - 0.5]
        yields += [make_yield(kind, length, whole) for length in range(1, longest + 1)]
    return tuple(yields)


def _list_realised_yields(lines: Iterable[LedgerLine]) -> tuple[DraftYield, ...]:
    """List what drafts fitted to each request, and copies, gave: one length, the mean verified.

    Such an engine has no other length, and what it would give with a fixed one is not known: its
    drafts are cut where they are least sure.
    """
    served = [line for line in lines if line.steps > LEAST_STEPS]
    verified = sum(line.drafted + line.copied for line in served)
    length = max(1, ceil(verified / sum(line.steps - 1 for line in served)))
    by_kind = defaultdict[str, list[Drafts]](list)
    for line in served:
        steps, tokens = line.steps - 1, line.tokens - 1
        shares = make_geometric(min(tokens / steps, length + 1), length)
        accepted = tuple(round(steps * share) for share in shares)
        by_kind[line.kind].append(Drafts(drafts=steps, drafted=steps * length, accepted=accepted))
    return tuple(make_yield(kind, length, own) for kind, own in sorted(by_kind.items()))
