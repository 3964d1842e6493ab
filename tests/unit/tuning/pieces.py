"""A model made of costs and chances instead of measurements, and a profile made of it."""

from datetime import UTC, datetime

from slipstream.measuring.bench import Conditions
from slipstream.planning.plan import LaunchPlan
from slipstream.tuning.acceptance import DraftAcceptance, RequestDrafts
from slipstream.tuning.speed_model import SpeedModel
from slipstream.tuning.step_time import FigureWithError, StepLine, StepTime

NO_ERRORS = ((0.0,) * 3,) * 3


def make_line(*costs: float, most_sequences: float = 64, most_tokens: float = 1024) -> StepLine:
    fixed, by_sequence, by_token = (FigureWithError(value=cost, error=0) for cost in costs)
    return StepLine(
        fixed=fixed,
        by_sequence=by_sequence,
        by_token=by_token,
        covariance=NO_ERRORS,
        points=9,
        set_aside=0,
        most_sequences=most_sequences,
        most_tokens=most_tokens,
    )


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
    plain: tuple[float, float] | None = (0.073, 0.0008),
    likely: float = 0.7,
    *,
    length: int = 15,
    sequences: int = 64,
    measured: float = 64,
) -> SpeedModel:
    reach = {"most_sequences": measured, "most_tokens": measured * (length + 1)}
    steps = StepTime(
        drafting=make_line(*drafting, **reach),
        plain=None if plain is None else make_line(*plain, 0.0, **reach),
        spread=0.01,
        degrees_of_freedom=10,
    )
    return SpeedModel(steps, (make_acceptance("code", likely, length),), {"code": 1.0}, sequences)


def make_conditions(plan: LaunchPlan | None = None) -> Conditions:
    return Conditions(
        at=datetime(2026, 10, 1, tzinfo=UTC),
        command="slipstream tune",
        model="m",
        versions={"vllm": "0.32.0"},
        plan=plan,
        host=None,
        workload="code",
        workload_sha256="0" * 64,
        left_out={},
        seed=0,
        max_tokens=128,
        thinking=None,
        prefix_cache="cold",
    )
