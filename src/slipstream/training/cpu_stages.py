"""States and training on a machine without a GPU."""

import shutil
from collections.abc import Sequence

from slipstream.errors import InvalidInputError
from slipstream.training.acceptance import average_everywhere, walk
from slipstream.training.cpu_lane import Progress, train
from slipstream.training.cpu_models import (
    build_model,
    even_out,
    load_model,
    measure_scale,
    save_model,
)
from slipstream.training.material import judge_kinds, list_samples, read_material
from slipstream.training.progress import Ticker
from slipstream.training.responses import read_responses
from slipstream.training.run import CurvePoint, TrainRun
from slipstream.training.states import extract, row_bytes
from slipstream.training.warm_start import convert_drafter
from slipstream.training.workshop import Figures, Workshop

JUDGED_WHILE_TRAINING = 6


def extract_states(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    """Compute the target's hidden states of every response."""
    samples = list_samples(read_responses(shop.folder.responses))
    width = row_bytes(len(run.settings.design.target_layer_ids), shop.target.hidden_size or 0)
    tokens = sum(len(sample.tokens) for sample in samples)
    require_room(shop, tokens * width)
    ticker = Ticker(shop.report, "states", unit="tokens")
    extract(
        shop.target_folder,
        samples,
        run.settings.design.target_layer_ids,
        shop.folder.states,
        ticker.show,
        shop.dtype,
    )
    return run, {"tokens": tokens, "bytes": tokens * width}


def train_drafter(run: TrainRun, shop: Workshop) -> tuple[TrainRun, Figures]:
    """Train, judging the drafter on held-out text as it goes, and save it for vLLM."""
    material = read_material(run.settings, shop.folder, shop.target.hidden_size or 0)
    target, settings = shop.target_folder, run.settings
    scale = measure_scale(material.states, material.training)
    if shop.start_folder is None:
        model = build_model(target, settings.design, shop.dtype, seed=settings.schedule.seed)
        model.feature_scale = scale
    else:
        converted = convert_drafter(shop.start_folder, target, shop.folder.path / "from")
        model = load_model(converted, target, shop.dtype)
        even_out(model, scale)
    ticker = Ticker(shop.report, "training", unit="steps")
    curve = list(run.curve)
    recent: list[Progress] = []

    def report(progress: Progress) -> None:
        recent[:] = [*recent[-49:], progress]
        ticker.show(progress.step, settings.schedule.steps, f"loss {_mean_loss(recent):.3f}")

    def judge(step: int) -> None:
        rights = judge_kinds(model, material, JUDGED_WHILE_TRAINING)
        point = CurvePoint(
            step=step,
            seconds=recent[-1].seconds,
            loss=_mean_loss(recent),
            uniform={kind: average_everywhere(own).tokens_per_step for kind, own in rights.items()},
            walked={kind: walk(own).tokens_per_step for kind, own in rights.items()},
        )
        # A run that was taken up again may come by a step that was judged before.
        curve[:] = [*(old for old in curve if old.step < step), point]
        shop.folder.write(run.model_copy(update={"curve": tuple(curve)}))
        shop.report(_describe(point))

    train(
        model,
        material.training,
        material.states,
        material.geometry,
        settings.schedule,
        shop.folder.checkpoint,
        report,
        judge,
    )
    save_model(model, shop.folder.drafter, verifier=shop.target_name)
    tokens = sum(len(sample.tokens) - sample.response_start for sample in material.training)
    figures: Figures = {"steps": settings.schedule.steps, "response_tokens": tokens}
    return run.model_copy(update={"curve": tuple(curve)}), figures


def require_room(shop: Workshop, wanted_bytes: int) -> None:
    """Refuse to fill the disk."""
    free = shutil.disk_usage(shop.folder.path).free
    if free < wanted_bytes * 1.05:
        raise InvalidInputError(
            f"the hidden states take {wanted_bytes / 2**30:.1f} GiB, and "
            f"{free / 2**30:.1f} GiB are free at {shop.folder.path}",
            hint="name a folder on a larger disk with --run, or give fewer prompts",
        )


def _mean_loss(recent: Sequence[Progress]) -> float:
    return sum(progress.loss for progress in recent) / len(recent)


def _describe(point: CurvePoint) -> str:
    kinds = ", ".join(f"{kind} {value:.2f}" for kind, value in point.walked.items())
    return f"training: step {point.step}, loss {point.loss:.3f}, tokens per step held out: {kinds}"
