"""A model made of costs and chances instead of measurements, and a profile made of it."""

from slipstream.steering.step_time import COSTS, StepCost
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.speed_model import SpeedModel, StepTime


def make_acceptance(kind: str, likely: float, length: int = 15) -> DraftAcceptance:
    """Make requests that lie around a chance by which the next token is accepted."""
    rows = [
        RequestDrafts(
            prompt_id=f"{kind} {number}",
            drafts=1000,
            accepted=tuple(round(1000 * (likely + off) ** place) for place in range(1, length + 1)),
        )
        for number, off in enumerate((-0.02, -0.01, 0, 0.01, 0.02))
    ]
    return DraftAcceptance(kind=kind, draft_length=length, requests=tuple(rows))


def make_model(
    drafting: tuple[float, float, float] = (0.076, 0.0, 0.00077),
    plain: tuple[float, float] = (0.073, 0.0008),
    likely: float = 0.7,
    *,
    length: int = 15,
    sequences: int = 64,
    measured: float = 64,
) -> SpeedModel:
    def take(*costs: float) -> StepCost:
        reach = {"most_sequences": measured, "most_tokens": measured * (length + 1)}
        return StepCost.model_validate(dict(zip(COSTS, costs, strict=False)) | reach)

    steps = StepTime(
        drafting=take(*drafting),
        plain=take(*plain),
        spread=0.01,
        degrees_of_freedom=10,
    )
    return SpeedModel(steps, (make_acceptance("code", likely, length),), {"code": 1.0}, sequences)
