"""Samples of one load of one kind -> a `StepPoint`, and what each request tells of its drafts."""

from collections.abc import Collection, Sequence

from slipstream.errors import EngineError
from slipstream.measuring.client.sample import Sample
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.step_time import StepPoint

ODD_SHARE = 0.1


def read_point(samples: Sequence[Sample], *, drafts: bool) -> StepPoint:
    """Return a load's time per step, and the sequences that shared one.

    All places of a load are busy all through, but one that reads its prompt or waits does not
    decode. `drafts` says whether the engine has a drafter.
    """
    good = _list_good(samples)
    steps = sum(sample.drafts if drafts else sample.output_tokens - 1 for sample in good)
    if not steps:
        raise EngineError(
            f"the load of {samples[0].kind} at concurrency {samples[0].concurrency} told "
            + ("of no drafts" if good else "nothing: no request got two tokens"),
            hint="start the server with --per-request-spec-decode-metrics summary"
            if good
            else "look into the server's log",
        )
    return StepPoint(
        kind=samples[0].kind,
        concurrency=samples[0].concurrency,
        sequences=_count_sequences(good),
        draft_length=sum(sample.drafted for sample in good) / steps if drafts else 0.0,
        seconds_per_step=sum(map(_decode_seconds, good)) / steps,
    )


def read_acceptance(
    loads: Sequence[Sequence[Sample]], lengths: Collection[int]
) -> tuple[DraftAcceptance, ...]:
    """Return the drafts of each kind at each of the engine's lengths.

    Where a schedule changed the length for more than a few drafts, a request is left out.
    """
    requests: dict[tuple[str, int], list[RequestDrafts]] = {}
    for samples in loads:
        load = read_point(samples, drafts=True)
        for sample in _list_good(samples):
            length = round(sample.drafted / sample.drafts) if sample.drafts else 0
            odd = abs(sample.drafted - length * sample.drafts)
            if length in lengths and odd <= max(1, ODD_SHARE * sample.drafted):
                drafts = RequestDrafts(
                    prompt_id=sample.prompt_id,
                    drafts=sample.drafts,
                    accepted=sample.accepted_by_position[:length],
                    pace=_decode_seconds(sample) / sample.drafts / load.seconds_per_step,
                )
                requests.setdefault((sample.kind, length), []).append(drafts)
    return tuple(
        DraftAcceptance(kind=kind, draft_length=length, requests=tuple(rows))
        for (kind, length), rows in sorted(requests.items())
    )


def _list_good(samples: Sequence[Sample]) -> list[Sample]:
    return [
        sample
        for sample in samples
        if sample.error is None and sample.seconds_per_token is not None
    ]


def _decode_seconds(sample: Sample) -> float:
    return sample.seconds - (sample.first_token_seconds or 0.0)


def _count_sequences(samples: Sequence[Sample]) -> float:
    """Count how many places decode beside a decoding one, itself included."""
    share = sum(map(_decode_seconds, samples)) / sum(sample.seconds for sample in samples)
    return 1 + (samples[0].concurrency - 1) * share
