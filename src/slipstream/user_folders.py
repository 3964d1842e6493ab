"""Where Slipstream and the model hub keep things for this user."""

import os
from collections.abc import Mapping
from pathlib import Path


def slipstream_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder for what can be made again: checkpoints, compiled parts."""
    if named := environment.get("SLIPSTREAM_CACHE"):
        return Path(named).expanduser()
    return _cache_home(environment) / "slipstream"


def compile_cache(environment: Mapping[str, str]) -> Path:
    """Return where torch keeps what it compiles and runs: by itself, a folder in /tmp."""
    named = environment.get("TORCHINDUCTOR_CACHE_DIR")
    return Path(named).expanduser() if named else slipstream_cache(environment) / "torchinductor"


def config_folder(environment: Mapping[str, str]) -> Path:
    if named := environment.get("XDG_CONFIG_HOME"):
        return Path(named).expanduser() / "slipstream"
    return Path(environment.get("HOME") or Path.home()) / ".config" / "slipstream"


def recipe_overlay(environment: Mapping[str, str]) -> Path:
    """Return the folder of this user's own recipes, which are read beside the shipped ones."""
    return config_folder(environment) / "recipes"


def model_cache(environment: Mapping[str, str]) -> Path:
    """Return the folder that huggingface_hub downloads into, by its own precedence."""
    if named := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(named).expanduser()
    if named := environment.get("HF_HOME"):
        return Path(named).expanduser() / "hub"
    return _cache_home(environment) / "huggingface" / "hub"


def _cache_home(environment: Mapping[str, str]) -> Path:
    if named := environment.get("XDG_CACHE_HOME"):
        return Path(named).expanduser()
    return Path(environment.get("HOME") or Path.home()) / ".cache"


def find_local(name: str) -> Path:
    """Return the path that a text names, from the user's home on if it begins with `~`.

    A text that can be no path here (too long, with a null, in the home of nobody) names one that
    does not exist, so that asking about it does not fail.
    """
    try:
        path = Path(name).expanduser()
        path.exists()
    except (OSError, RuntimeError, ValueError):
        return Path(os.devnull) / "none"
    return path
