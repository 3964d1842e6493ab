"""States, training and offline judging on a machine without a GPU."""

import shutil
from collections import deque
from statistics import fmean
from typing import Any

from slipstream.errors import InvalidInputError
from slipstream.training.cpu.acceptance import (
    SplitSamples,
    average_everywhere,
    evaluate_kinds,
    read_material,
    walk,
)
from slipstream.training.cpu.batches import extract, list_samples, row_bytes
from slipstream.training.cpu.models import (
    build_model,
    even_out,
    load_model,
    measure_scale,
    save_model,
    start_from_target,
)
from slipstream.training.cpu.trainer import train
from slipstream.training.responses import read_responses
from slipstream.training.run import (
    CurvePoint,
    Evaluation,
    Figures,
    TrainRun,
    TrainSettings,
    tokens_per_step,
)
from slipstream.training.warm_start import convert_drafter
from slipstream.training.workspace import Ticker, Workspace

EVALUATED_WHILE_TRAINING = 6


def extract_states(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    """Compute the target's hidden states of every response."""
    samples = list_samples(read_responses(space.folder.responses))
    layer_ids = run.settings.design.target_layer_ids
    tokens = sum(len(sample.tokens) for sample in samples)
    wanted_bytes = tokens * row_bytes(len(layer_ids), space.target.hidden_size or 0)
    require_room(space, wanted_bytes)
    ticker = Ticker(space.report, "states", unit="tokens")
    extract(space.target_folder, samples, layer_ids, space.folder.states, ticker.show, space.dtype)
    return run, {"tokens": tokens, "bytes": wanted_bytes}


def train_drafter(run: TrainRun, space: Workspace) -> tuple[TrainRun, Figures]:
    """Train, judging the drafter on held-out text as it goes, and save it for vLLM."""
    material = read_material(run.settings, space.folder, space.target.hidden_size or 0)
    settings = run.settings
    model, start = _make_model(settings, space, material)
    ticker = Ticker(space.report, "training", unit="steps")
    curve = list(run.curve)
    losses: deque[float] = deque(maxlen=50)

    def report(step: int, loss: float) -> None:
        losses.append(loss)
        ticker.show(step, settings.schedule.steps, f"loss {fmean(losses):.3f}")

    def evaluate(step: int, seconds: float) -> None:
        rights = evaluate_kinds(model, material, EVALUATED_WHILE_TRAINING)
        point = CurvePoint(
            step=step,
            seconds=seconds,
            loss=fmean(losses),
            uniform=tokens_per_step(
                {kind: average_everywhere(own) for kind, own in rights.items()}
            ),
            walked=tokens_per_step({kind: walk(own) for kind, own in rights.items()}),
        )
        # A run that was taken up again may come by a step that was evaluated before.
        curve[:] = [*(old for old in curve if old.step < step), point]
        space.folder.write(run.model_copy(update={"curve": tuple(curve)}))
        space.report(_describe(point))

    train(
        model,
        material.training,
        material.states,
        material.geometry,
        settings.schedule,
        space.folder.checkpoint,
        report,
        evaluate,
    )
    save_model(model, space.folder.drafter, verifier=space.target_name)
    tokens = sum(len(sample.tokens) - sample.response_start for sample in material.training)
    steps = settings.schedule.steps
    figures: Figures = {"start": start, "steps": steps, "response_tokens": tokens}
    return run.model_copy(update={"curve": tuple(curve)}), figures


def _make_model(
    settings: TrainSettings, space: Workspace, material: SplitSamples
) -> tuple[Any, str]:
    """Return the drafter to train, and what it starts from."""
    target, design = space.target_folder, settings.design
    scale = measure_scale(material.states, material.training)
    if space.start_folder is not None:
        converted = convert_drafter(space.start_folder, target, space.folder.path / "from")
        model = load_model(converted, target, space.dtype)
        even_out(model, scale)
        return model, "an earlier drafter"
    model = build_model(target, design, space.dtype, seed=settings.schedule.seed)
    model.feature_scale = scale
    states = material.states.read(material.training[0].number)
    if design.method == "dflash" and start_from_target(model, target, states):
        return model, f"the target's last {design.layers} layers"
    return model, "random weights"


def evaluate_offline(run: TrainRun, space: Workspace) -> dict[str, Evaluation]:
    """Evaluate the saved drafter on held-out text, without the engine."""
    material = read_material(run.settings, space.folder, space.target.hidden_size or 0)
    model = load_model(space.folder.drafter, space.target_folder, space.dtype)
    rights = evaluate_kinds(model, material, run.settings.evaluated_per_kind)
    return {
        kind: Evaluation(prompts=len(own), uniform=average_everywhere(own), walked=walk(own))
        for kind, own in rights.items()
    }


def require_room(space: Workspace, wanted_bytes: int) -> None:
    free = shutil.disk_usage(space.folder.path).free
    if free < wanted_bytes * 1.05:
        raise InvalidInputError(
            f"the hidden states take {wanted_bytes / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free at {space.folder.path}",
            hint="name a folder on a larger disk with --run, or use fewer prompts",
        )


def _describe(point: CurvePoint) -> str:
    kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in point.walked.items())
    return f"training: step {point.step}, loss {point.loss:.3f}, held-out tokens per step: {kinds}"
