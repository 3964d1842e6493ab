"""The stages of a run, in order; each writes its file and record before the next begins."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from slipstream.checkpoints.reading import read_checkpoint
from slipstream.errors import InvalidInputError
from slipstream.serving.supervision.engine_process import run_engine
from slipstream.training import cpu_stages, gpu_stages
from slipstream.training.acceptance import average_everywhere, walk
from slipstream.training.card import render_card
from slipstream.training.cpu_models import load_model
from slipstream.training.material import judge_kinds, read_material
from slipstream.training.progress import Ticker
from slipstream.training.prompts import (
    Conversation,
    read_conversations,
    read_prompts,
    write_conversations,
)
from slipstream.training.responses import Response, read_responses, regenerate
from slipstream.training.run import Judged, StageName, StageRecord, TrainRun
from slipstream.training.served import measure_served
from slipstream.training.workshop import Figures, Workshop, plan_engine

AT_ONCE = 128

Stage = Callable[[TrainRun, Workshop], tuple[TrainRun, Figures]]


def run_pipeline(fresh: TrainRun, shop: Workshop) -> TrainRun:
    """Run every stage that is not done yet."""
    run = shop.folder.begin(fresh)
    for name, stage in list_stages(on_gpu=bool(shop.host.accelerators)).items():
        if run.find(name) is not None:
            continue
        started = time.monotonic()
        run, figures = stage(run, shop)
        record = StageRecord(name=name, seconds=time.monotonic() - started, figures=figures)
        run = run.model_copy(update={"stages": (*run.stages, record)})
        shop.folder.write(run)
    return run


def list_stages(*, on_gpu: bool) -> dict[StageName, Stage]:
    """Return every stage in its order, as this kind of machine does it."""
    lane = gpu_stages if on_gpu else cpu_stages
    return {
        "prompts": _collect_prompts,
        "responses": _regenerate_responses,
        "states": lane.extract_states,
        "training": lane.train_drafter,
        "acceptance": _measure_acceptance,
        "export": _write_card,
    }


def _collect_prompts(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    conversations, report = read_prompts(
        [Path(file) for file in run.settings.prompts],
        held_out_share=run.settings.held_out_share,
        seed=run.settings.schedule.seed,
    )
    write_conversations(shop.folder.prompts, conversations)
    return run, {
        "read": report.read,
        "duplicates": report.duplicates,
        "skipped": sum(report.skipped.values()),
        "training": sum(report.training.values()),
        "held_out": sum(report.held_out.values()),
    }


def _regenerate_responses(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    conversations = read_conversations(shop.folder.prompts)
    plan = plan_engine(run.settings, shop, conversations, drafter=None, users=AT_ONCE)
    ticker = Ticker(shop.report, "responses", unit="responses")
    with run_engine(plan, log=shop.folder.engine_log, environment=shop.environment) as url:
        regenerate(
            url,
            conversations,
            shop.folder.responses,
            max_tokens=run.settings.max_tokens,
            thinking=run.settings.thinking,
            concurrency=AT_ONCE,
            report=lambda done, total, tokens: ticker.show(done, total, f"{tokens} tokens"),
        )
    responses = read_responses(shop.folder.responses)
    require_unused(run.settings.design.mask_token_id, responses)
    return run, {
        "responses": len(responses),
        "tokens": sum(len(row.response_ids) for row in responses),
        "cut": sum(row.finish_reason == "length" for row in responses),
    }


def _measure_acceptance(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    limit = run.settings.judged_a_kind
    judged = {} if shop.host.accelerators else _judge_offline(run, shop)
    held_out = [row for row in read_conversations(shop.folder.prompts) if row.held_out]
    kinds = sorted({row.kind for row in held_out})
    asked = [row for kind in kinds for row in _first(held_out, kind, limit)]
    drafter = read_checkpoint(str(shop.folder.drafter), tokenizer=False)
    plan = plan_engine(run.settings, shop, asked, drafter=drafter, users=1)
    ticker = Ticker(shop.report, "acceptance", unit="answers")
    with run_engine(plan, log=shop.folder.engine_log, environment=shop.environment) as url:
        served = measure_served(
            url,
            asked,
            max_tokens=run.settings.max_tokens,
            thinking=run.settings.thinking,
            concurrency=1,
            report=ticker.show,
        )
    judged = {
        kind: judged.get(kind, Judged(prompts=figures.requests)).model_copy(
            update={"served": figures}
        )
        for kind, figures in served.items()
    }
    steps: Figures = {kind: figures.tokens_per_step for kind, figures in served.items()}
    return run.model_copy(update={"judged": judged}), steps


def _judge_offline(run: TrainRun, shop: Workshop) -> dict[str, Judged]:
    material = read_material(run.settings, shop.folder, shop.target.hidden_size or 0)
    model = load_model(shop.folder.drafter, shop.target_folder, shop.dtype)
    rights = judge_kinds(model, material, run.settings.judged_a_kind)
    return {
        kind: Judged(prompts=len(own), uniform=average_everywhere(own), walked=walk(own))
        for kind, own in rights.items()
    }


def _first(rows: Sequence[Conversation], kind: str, limit: int) -> list[Conversation]:
    return [row for row in rows if row.kind == kind][:limit]


def _write_card(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    card = render_card(run, shop.target)
    (shop.folder.drafter / "README.md").write_text(card)
    weights = shop.folder.drafter / "model.safetensors"
    return run, {"bytes": weights.stat().st_size, "drafter": shop.folder.drafter.name}


def require_unused(mask_token: int | None, responses: Sequence[Response]) -> None:
    """Refuse a mask token that the text holds: the drafter could not tell it from a gap."""
    for response in responses if mask_token is not None else ():
        if mask_token in response.prompt_ids or mask_token in response.response_ids:
            raise InvalidInputError(
                f"mask token {mask_token} occurs in the text of prompt {response.id}",
                hint="name a token that never occurs: --mask-token-id ID",
            )
