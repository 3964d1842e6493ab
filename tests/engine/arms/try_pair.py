"""How far vLLM gets with a pair: its config, the engine's start, the first request."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs


def answer(engine: Any, prompt: list[int], max_tokens: int) -> list[int]:
    """Return the tokens of a greedy answer."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    (given,) = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
    return list(given.outputs[0].token_ids)


def main() -> None:
    """Take the steps in turn and write down where and how they ended."""
    job = json.load(sys.stdin)
    outcome: dict[str, Any] = {"passed": [], "error": None, "token_ids": None}

    def attempt(step: str, action: Callable[[], Any]) -> Any:
        try:
            result = action()
        except Exception as fault:  # noqa: BLE001 - whatever ends the engine is the finding
            outcome["error"] = f"{type(fault).__name__}: {fault}"
            Path(job["outcome"]).write_text(json.dumps(outcome))
            sys.exit(0)
        outcome["passed"].append(step)
        return result

    attempt("config", EngineArgs(**job["engine"]).create_engine_config)
    engine = attempt("start", lambda: LLM(**job["engine"]))
    outcome["token_ids"] = attempt(
        "request", lambda: answer(engine, job["prompt"], job["max_tokens"])
    )
    Path(job["outcome"]).write_text(json.dumps(outcome))


main()
