"""The model card of a drafter: what it fits, what it reached, how to reproduce it."""

import json
from pathlib import Path

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.training.acceptance import DrafterAcceptance
from slipstream.training.run import Judged, StageName, TrainRun
from slipstream.training.served import ServedAcceptance
from slipstream.training.settings import DrafterDesign, Method

TITLES: dict[Method, str] = {
    "dflash": "DFlash drafter",
    "eagle3": "EAGLE-3 head",
    "dflash2": "DFlash2 drafter",
    "dspark": "DSpark drafter",
}
DATA_STAGES: tuple[StageName, ...] = ("prompts", "responses", "training")


def render_card(run: TrainRun, target: Checkpoint) -> str:
    """Write the card in the hub's form."""
    settings = run.settings
    name = Path(target.name).name if Path(target.name).is_dir() else target.name
    design = settings.design
    passes = "one after another" if design.method == "eagle3" else "in one pass"
    return "\n".join(
        [
            "---",
            f"base_model: {name}",
            *([f"license: {target.licence}"] if target.licence else []),
            "library_name: speculators",
            f"tags: [{design.method}, speculative-decoding, vllm]",
            "---",
            "",
            f"# {TITLES[design.method]} for {name}",
            "",
            f"Drafts up to {design.draft_tokens} tokens {passes}; vLLM 0.32 loads it as it is:",
            "",
            "```",
            f"vllm serve {name} --speculative-config '{_speculate(design)}'",
            "```",
            "",
            "## Acceptance on held-out prompts",
            "",
            "Greedy, natural end, one request at a time. *Tokens a step* is one plus the mean of",
            "accepted draft tokens: what the target brings in one pass. *Served* was measured on",
            "the real vLLM; *walked* follows the same text offline as the engine would; *uniform*",
            "drafts at every position, as trainers report it.",
            "",
            *_tabulate(run.judged),
            "",
            "## Data",
            "",
            *_describe_data(run),
            "",
            "## Settings",
            "",
            f"- design: {_list_fields(design.model_dump(exclude_none=True))}",
            f"- schedule: {_list_fields(settings.schedule.model_dump())}",
            *([f"- started from {settings.from_drafter}"] if settings.from_drafter else []),
            f"- versions: {_list_fields(run.versions)}",
            "",
            "## Held-out acceptance while training",
            "",
            *_tabulate_curve(run),
            "",
            "## The command",
            "",
            "```",
            run.command,
            "```",
            "",
        ]
    )


def _speculate(design: DrafterDesign) -> str:
    # vLLM has no method of DFlash2's own: the drafter's class tells it.
    method = "dflash" if design.method == "dflash2" else design.method
    table = {"method": method, "model": "THIS FOLDER"}
    return json.dumps({**table, "num_speculative_tokens": design.draft_tokens})


def _tabulate(judged: dict[str, Judged]) -> list[str]:
    if not judged:
        return ["Not measured."]
    positions = max(len(part.by_position) for part in judged.values())
    header = ["kind", "prompts", "served", "walked", "uniform"]
    header += [f"position {number + 1}" for number in range(positions)]
    rows = [header, ["---"] * len(header)]
    rows += [
        [
            kind,
            str(part.prompts),
            *(_show_figure(figure) for figure in (part.served, part.walked, part.uniform)),
            *(f"{share:.2f}" for share in part.by_position),
        ]
        for kind, part in judged.items()
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def _show_figure(figure: DrafterAcceptance | ServedAcceptance | None) -> str:
    return "not measured" if figure is None else f"{figure.tokens_per_step:.2f}"


def _tabulate_curve(run: TrainRun) -> list[str]:
    if not run.curve:
        return ["Not recorded."]
    kinds = list(run.curve[0].walked)
    rows = [["step", "loss", *kinds], ["---"] * (len(kinds) + 2)]
    rows += [
        [str(point.step), f"{point.loss:.3f}", *(f"{point.walked[kind]:.2f}" for kind in kinds)]
        for point in run.curve
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def _describe_data(run: TrainRun) -> list[str]:
    lines = []
    for name in DATA_STAGES:
        stage = run.find(name)
        if stage is not None:
            lines.append(f"- {name}: {_list_fields(stage.figures)}, {stage.seconds:.0f} s")
    return [*lines, "- responses regenerated greedily by the target, with its own chat template"]


def _list_fields(fields: object) -> str:
    pairs = fields.items() if isinstance(fields, dict) else ()
    return ", ".join(f"{key} {_show(value)}" for key, value in pairs)


def _show(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
