"""What a canary's test knows, as records and in words."""

from collections.abc import Sequence
from math import isinf
from statistics import fmean

from slipstream.fleet.canary.contrast import Contrast
from slipstream.fleet.canary.record import KindEvidence, Ratio, RegretEvidence


def describe_ratio(contrast: Contrast) -> Ratio | None:
    """Return a contrast of octaves as a ratio."""
    if contrast.mean is None:
        return None
    low, high = contrast.interval
    return Ratio(
        estimate=2**contrast.mean,
        low=None if isinf(low) else 2**low,
        high=None if isinf(high) else 2**high,
    )


def describe_kind(
    name: str, contrast: Contrast, canary: Sequence[float], others: Sequence[float]
) -> KindEvidence:
    """Return the acceptance of a kind in both arms, and the change."""
    low, high = contrast.interval
    return KindEvidence(
        kind=name,
        requests=len(canary),
        canary=fmean(canary),
        others=fmean(others),
        change=contrast.mean,
        low=None if isinf(low) else low,
        high=None if isinf(high) else high,
    )


def tell_ratio(contrast: Contrast) -> str:
    """Write a ratio with its interval."""
    ratio = describe_ratio(contrast)
    if ratio is None:
        return "an unknown number of"
    if ratio.low is None or ratio.high is None:
        return f"{ratio.estimate:.2f}"
    return f"{ratio.estimate:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def tell_regret(regret: RegretEvidence) -> str:
    """Write how many answers are at fault."""
    return (
        f"{regret.canary_faults} of {regret.answers} answers have a token that the target would "
        f"not have chosen, {regret.other_faults} of the others'"
    )
