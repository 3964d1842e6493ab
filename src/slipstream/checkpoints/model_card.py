"""The model that a model was made from, as the front matter of its card (README.md) names it.

A card is somebody's text: only names of repositories are taken from it, and few of them.
"""

import re

from slipstream.checkpoints.hub import is_hub_name

_FRONT_MATTER = re.compile(rb"---\r?\n(.*?)\r?\n---\s", re.DOTALL)
_MOST_BYTES = 1 << 16
_MOST_NAMES = 4


def parse_base_models(card: bytes | None) -> tuple[str, ...] | None:
    """Return the `base_model` of a card, None if there is no card or it names none."""
    matter = _FRONT_MATTER.match((card or b"")[:_MOST_BYTES])
    if matter is None:
        return None
    import yaml

    try:
        fields = yaml.safe_load(matter.group(1))
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return keep_names(fields.get("base_model") if isinstance(fields, dict) else None)


def keep_names(stated: object) -> tuple[str, ...] | None:
    """Return what is the name of a repository, of one value or a list of them."""
    listed = stated if isinstance(stated, list) else [stated]
    names = [name for name in listed[:_MOST_NAMES] if isinstance(name, str) and is_hub_name(name)]
    return tuple(dict.fromkeys(names)) or None
