"""The stages of a run, in order; each writes its file and record before the next begins."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import InvalidInputError
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.training import gpu
from slipstream.training.cpu import stages as cpu
from slipstream.training.export import render_card
from slipstream.training.preparation import require_both_sides
from slipstream.training.prompts import (
    count_tokens,
    read_conversations,
    read_prompts,
    write_conversations,
)
from slipstream.training.responses import Response, measure_served, read_responses, regenerate
from slipstream.training.run import (
    Evaluation,
    Figures,
    StageName,
    StageRecord,
    TrainRun,
    tokens_per_step,
)
from slipstream.training.workspace import Ticker, Workspace

CONCURRENT_REQUESTS = 128
LEAST_TOKENS = 2

Stage = Callable[[TrainRun, Workspace], tuple[TrainRun, Figures]]


def run_pipeline(fresh: TrainRun, space: Workspace) -> TrainRun:
    """Run every stage that is not done yet."""
    run = space.folder.begin(fresh)
    for name, stage in list_stages(on_gpu=bool(space.host.accelerators)).items():
        if run.find(name) is not None:
            continue
        started = time.monotonic()
        run, figures = stage(run, space)
        record = StageRecord(name=name, seconds=time.monotonic() - started, figures=figures)
        run = run.model_copy(update={"stages": (*run.stages, record)})
        space.folder.write(run)
    return run


def list_stages(*, on_gpu: bool) -> dict[StageName, Stage]:
    """Return every stage in its order, as this kind of machine does it."""
    return {
        "prompts": _collect_prompts,
        "responses": _regenerate_responses,
        "states": gpu.extract_states if on_gpu else cpu.extract_states,
        "training": gpu.train_drafter if on_gpu else cpu.train_drafter,
        "acceptance": _measure_acceptance,
        "export": _write_card,
    }


def _collect_prompts(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    conversations, counts = read_prompts(
        [Path(file) for file in run.settings.prompts],
        held_out_share=run.settings.held_out_share,
        seed=run.settings.schedule.seed,
    )
    counted = count_tokens(space.target_folder, conversations, run.settings.thinking)
    # An answer to draft in has two tokens; the engine refuses a longer prompt.
    longest = (space.target.context or 1 << 30) - LEAST_TOKENS
    fitting = [one for one in counted if (one.tokens or 0) <= longest]
    require_both_sides(fitting)
    write_conversations(space.folder.prompts, fitting)
    return run, {**counts, "too_long": len(counted) - len(fitting)}


def _regenerate_responses(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    conversations = read_conversations(space.folder.prompts)
    plan = space.plan_engine(run.settings, conversations, drafter=None, users=CONCURRENT_REQUESTS)
    ticker = Ticker(space.report, "responses", unit="responses")
    with run_engine(plan, log=space.folder.engine_log, environment=space.environment) as url:
        regenerate(
            url,
            conversations,
            space.folder.responses,
            run.settings,
            lambda done, total, tokens: ticker.show(done, total, f"{tokens} tokens"),
            concurrency=CONCURRENT_REQUESTS,
        )
    responses = read_responses(space.folder.responses)
    require_unused(run.settings.design.mask_token_id, responses)
    return run, {
        "responses": len(responses),
        "tokens": sum(len(row.response_ids) for row in responses),
        "cut": sum(row.finish_reason == "length" for row in responses),
    }


def _measure_acceptance(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    """Evaluate the drafter on the first held-out prompts of every kind, offline and served."""
    offline = {} if space.host.accelerators else cpu.evaluate_offline(run, space)
    held_out = [row for row in read_conversations(space.folder.prompts) if row.held_out]
    chosen = [
        row
        for kind in sorted({row.kind for row in held_out})
        for row in [row for row in held_out if row.kind == kind][: run.settings.evaluated_per_kind]
    ]
    drafter = read_checkpoint(str(space.folder.drafter), tokenizer=False)
    plan = space.plan_engine(run.settings, chosen, drafter=drafter, users=1)
    ticker = Ticker(space.report, "acceptance", unit="answers")
    with run_engine(plan, log=space.folder.engine_log, environment=space.environment) as url:
        served = measure_served(url, chosen, run.settings, ticker.show)
    prompts = Counter(row.kind for row in chosen)
    evaluated = {
        kind: offline.get(kind, Evaluation(prompts=prompts[kind])).model_copy(
            update={"served": drafts}
        )
        for kind, drafts in served.items()
    }
    return run.model_copy(update={"evaluated": evaluated}), {**tokens_per_step(served)}


def _write_card(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    drafter = space.folder.drafter
    (drafter / "README.md").write_text(render_card(run, space.target))
    return run, {
        "bytes": (drafter / "model.safetensors").stat().st_size,
        "drafter": drafter.name,
    }


def require_unused(mask_token: int | None, responses: Sequence[Response]) -> None:
    """Refuse a mask token that the text holds: the drafter could not tell it from a gap."""
    for response in responses if mask_token is not None else ():
        if mask_token in response.prompt_ids or mask_token in response.response_ids:
            raise InvalidInputError(
                f"mask token {mask_token} occurs in the text of prompt {response.id}",
                hint="name a token that never occurs: --mask-token-id ID",
            )
