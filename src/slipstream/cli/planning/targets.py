"""Names of models as users write them: folders, names on the hub, and what is neither."""

import os
import re
import shlex
from difflib import get_close_matches
from pathlib import Path

from slipstream.checkpoints.files import GGUF_MESSAGE
from slipstream.checkpoints.hub import is_hub_name, name_stem
from slipstream.errors import InvalidInputError
from slipstream.hardware import list_machines
from slipstream.planning import PlanOptions
from slipstream.recipes import load_drafters, load_models, load_recipes
from slipstream.serving.run import find_run, find_runs_root
from slipstream.user_folders import find_local, recipe_overlay

# `owner/Model-GGUF`, with or without a quantization, and `Model-Q4_K_M.gguf`.
_GGUF = re.compile(r"(?i)(?:[-_.](?:i?q\d\w*|[bf]+\d+))?[-_.]gguf(?::[\w.-]*)?/?$")


def find_target(name: str) -> str:
    """Return a folder by its absolute path, and a model of the catalogue by its name on the hub.

    What is no model is refused, with the command for one.
    """
    local = find_local(name)
    if (run := find_run(name, find_runs_root(os.environ))) is not None:
        plan = run.read().plan
        model = shlex.join([plan.target, *plan.options.list_words()])
        raise InvalidInputError(f"{name} is a run", hint=f"in its place: {model}")
    if local.is_dir():
        return str(local.resolve())
    if _GGUF.search(name):
        known = find_known(_GGUF.sub("", name))
        hint = f"slipstream plan {known}" if known else "slipstream models"
        raise InvalidInputError(f"{name}: {GGUF_MESSAGE}", hint=hint)
    if not is_hub_name(name):
        recipe = next(
            (one for one in load_recipes(overlay=recipe_overlay(os.environ)) if one.name == name),
            None,
        )
        if recipe is not None:
            host = next((one for one in recipe.machines if one in list_machines()), None)
            words = ("plan", recipe.target, "--drafter", recipe.drafter)
            machine = ("--host", host) if host else ()
            raise InvalidInputError(
                f"{name} is a recipe, not a model", hint=" ".join(("slipstream", *words, *machine))
            )
        known = find_known(name)
        if known and known.lower().endswith(f"/{name.lower()}"):
            return known
        if known or (known := find_nearest(name)):
            raise InvalidInputError(
                f"{name} is neither a folder nor OWNER/MODEL", hint=f"slipstream plan {known}"
            )
    return name


def find_known(name: str) -> str | None:
    """Return the name on the hub of a model of the catalogue that is called so."""
    called = Path(name).name.lower()
    names = _list_targets()
    exact = (known for known in names if known.lower().rpartition("/")[2] == called)
    similar = (known for known in names if name_stem(known) == name_stem(called))
    return next(exact, None) or next(similar, None)


def find_nearest(name: str) -> str | None:
    """Return the model of the catalogue whose name without its owner is spelt most like this."""
    names = {known.lower().rpartition("/")[2]: known for known in _list_targets()}
    close = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
    return names[close[0]] if close else None


def _list_targets() -> list[str]:
    return [model.facts.name for model in load_models()] + [one.target for one in load_drafters()]


def find_path(name: str) -> str:
    """Return a file or folder of this machine by its absolute path, and any other text as it is."""
    local = find_local(name)
    named_as_path = name.startswith(("~", "./", "../")) or name in (".", "..")
    return str(local.resolve()) if named_as_path or local.exists() else name


def with_whole_paths(options: PlanOptions) -> PlanOptions:
    """Return options that mean the same in every folder."""
    if (drafter := options.engine.drafting.drafter) is not None:
        find_target(drafter.value)
    return options.rename_paths(find_path)
