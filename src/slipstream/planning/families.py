"""Families of models by class and chat template, and faults of templates: families.toml and
template_faults.toml, matched against a checkpoint."""

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from pydantic import Field, JsonValue

from slipstream.records import Record

_FOLDER = Path(__file__).parent


class Thinking(Record):
    """The arguments of a chat template that switch thinking on and off."""

    on: dict[str, JsonValue]
    off: dict[str, JsonValue]


class Family(Record):
    """What a family of models writes, and which parsers read it; see families.toml."""

    name: str
    classes: tuple[str, ...] = ()
    markers: tuple[str, ...] = ()
    class_decides: bool = False
    encoded: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    reasoning_markers: tuple[str, ...] = ()
    thinking: Thinking | None = None
    thinks_by_default: bool = True
    example: str | None = None
    source: str

    def has_class(self, architecture: str | None) -> bool:
        """Return whether a checkpoint's class is one of the family's."""
        return architecture is not None and any(
            fnmatchcase(architecture, pattern) for pattern in self.classes
        )


class TemplateFault(Record):
    """Text of a chat template that is known to fail somewhere."""

    name: str
    has: tuple[str, ...] = Field(min_length=1)
    message: str
    hint: str
    sources: tuple[str, ...]


@cache
def load_families() -> tuple[Family, ...]:
    """Read the table of families."""
    rows = tomllib.loads((_FOLDER / "families.toml").read_text())["family"]
    return tuple(Family.model_validate(row) for row in rows)


@cache
def load_template_faults() -> tuple[TemplateFault, ...]:
    """Read the known faults of chat templates."""
    rows = tomllib.loads((_FOLDER / "template_faults.toml").read_text())["fault"]
    return tuple(TemplateFault.model_validate(row) for row in rows)


def find_family(architecture: str | None, template: str | None) -> Family | None:
    """Return the family with this class and template, None if none is known."""
    own = [one for one in load_families() if one.has_class(architecture)]
    if template is None:
        return next((one for one in own if one.encoded or one.class_decides), None)
    others = [one for one in load_families() if not one.classes]
    fitting = (one for one in (*own, *others) if one.encoded or _has_all(template, one.markers))
    return next(fitting, None)


def reasons(family: Family, template: str | None) -> bool:
    """Return whether this member of a family writes what the reasoning parser reads."""
    if family.encoded or template is None:
        return True
    return _has_all(template, family.reasoning_markers)


def _has_all(template: str, texts: Iterable[str]) -> bool:
    return all(text in template for text in texts)
