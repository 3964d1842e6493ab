"""An engine of known costs and a demand, for tests."""

from slipstream.sizing.demand import Demand, KindDemand
from slipstream.sizing.engine_speed import DraftYield, EngineSpeed, make_geometric
from slipstream.steering.step_time import StepCost
from slipstream.tuning.goal import Goal, parse_goal

TOKENS = {"code": 5.67, "prose": 2.63}


def make_speed(
    *,
    fixed: float = 0.076,
    per_token: float = 0.00077,
    per_prompt_token: float = 0.0002,
    longest: int = 15,
    max_sequences: int = 16,
    start_seconds: float | None = None,
    error: float = 0.1,
) -> EngineSpeed:
    """Return the engine that matches the published rates of a 27B model on a GB10."""
    return EngineSpeed(
        source="test",
        drafting=StepCost(fixed=fixed, per_token=per_token),
        plain=StepCost(fixed=fixed, per_sequence=per_token),
        yields=tuple(
            DraftYield(
                kind=kind,
                draft_length=length,
                by_position=make_geometric(tokens, longest)[:length],
            )
            for kind, tokens in TOKENS.items()
            for length in range(1, longest + 1)
        ),
        per_prompt_token=per_prompt_token,
        prompt_source="test",
        error=error,
        max_sequences=max_sequences,
        start_seconds=start_seconds,
    )


def make_goal(*words: str) -> Goal:
    return parse_goal(words, aims=("throughput",), figures=("ttft", "tpot"))


def make_demand(
    code: float = 5.0, prose: float = 5.0, *, prompt: int = 500, answer: int = 400
) -> Demand:
    return Demand(
        source="test",
        kinds=tuple(
            KindDemand(
                kind=kind, requests_per_second=rate, prompt_tokens=prompt, output_tokens=answer
            )
            for kind, rate in (("code", code), ("prose", prose))
            if rate
        ),
    )
