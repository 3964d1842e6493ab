"""Engine arguments from the user or a recipe, parsed before anything is decided.

That is what follows `--`, a container's EXTRA_ARGS, and a recipe's extra arguments. Whatever a
rule depends on becomes a typed setting here; JSON, dotted keys and `--spec-*` are one speculation.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from slipstream.engines.arguments import parse_arguments
from slipstream.errors import UsageError
from slipstream.planning.settings import FLAGS, SPECULATION, SPECULATION_KEYS, Choice
from slipstream.planning.wishes import Wishes

_FIELDS = {flag: name for name, flag in FLAGS.items()}
_PARTS = {key: name for name, key in SPECULATION_KEYS.items()}
_SHORT_FORMS = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
_OF_DRAFTS = (*_SHORT_FORMS, SPECULATION, FLAGS["draft_metrics"])
_TUPLES = ("served_names", "middleware")
# What drafts is read and checked; other methods, given as arguments, are passed on as they are.
CHECKED_METHODS = (None, "dflash", "dspark", "eagle3", "draft_model")


@dataclass(frozen=True, slots=True)
class AskedSettings:
    """Typed settings by field, parts of the speculation by field, and the rest by flag."""

    settings: Mapping[str, Choice[Any]] = field(default_factory=dict)
    speculation: Mapping[str, Choice[Any]] = field(default_factory=dict)
    speculation_rest: Mapping[str, Choice[Any]] = field(default_factory=dict)
    rest: Mapping[str, Choice[Any]] = field(default_factory=dict)

    @property
    def method(self) -> str | None:
        """Return the method of speculation that was requested."""
        choice = self.speculation.get("method")
        return choice.value if choice else None

    @property
    def drafter(self) -> str | None:
        """Return the drafter that was requested."""
        choice = self.speculation.get("drafter")
        return choice.value if choice else None


def read_asked(wishes: Wishes) -> AskedSettings:
    """Parse the user's engine arguments; without speculation, those about it are left out."""
    words = (*wishes.extra_arguments, *wishes.raw)
    own = parse(wishes.raw)
    values = {
        flag: value
        for flag, value in parse(words).items()
        if wishes.speculation or flag not in _OF_DRAFTS
    }
    return _sort(
        {
            flag: Choice(value, "user", "given after --")
            if flag in own
            else Choice(value, "environment", "given in EXTRA_ARGS")
            for flag, value in values.items()
        }
    )


def read_advised(words: tuple[str, ...], recipe: str) -> AskedSettings:
    """Parse a recipe's engine arguments."""
    because = f"recipe {recipe} runs with it"
    return _sort({flag: Choice(value, "recipe", because) for flag, value in parse(words).items()})


@cache
def parse(words: tuple[str, ...]) -> Mapping[str, Any]:
    """Parse words for the engine, once; an explicit None is the same as not given."""
    if not words:
        return {}
    return {flag: value for flag, value in parse_arguments(words).items() if value is not None}


def _sort(given: Mapping[str, Choice[Any]]) -> AskedSettings:
    settings: dict[str, Choice[Any]] = {}
    rest: dict[str, Choice[Any]] = {}
    for flag, choice in given.items():
        if (name := _FIELDS.get(flag)) is None:
            if flag not in _OF_DRAFTS:
                rest[flag] = choice
            continue
        typed = tuple(choice.value) if name in _TUPLES else choice.value
        settings[name] = Choice(typed, choice.source, choice.because)
    parts = _gather_speculation(given)
    return AskedSettings(
        settings=settings,
        speculation={_PARTS[key]: choice for key, choice in parts.items() if key in _PARTS},
        speculation_rest={key: choice for key, choice in parts.items() if key not in _PARTS},
        rest=rest,
    )


def _gather_speculation(given: Mapping[str, Choice[Any]]) -> dict[str, Choice[Any]]:
    """Merge JSON, dotted keys and short forms; as in vLLM, each key may be given once."""
    parts: dict[str, Choice[Any]] = {}
    if (config := given.get(SPECULATION)) is not None:
        if not isinstance(config.value, dict):
            raise UsageError(
                f"{SPECULATION} {config.value} is no JSON object",
                hint=f"""{SPECULATION} '{{"method": "dflash", "num_speculative_tokens": 7}}'""",
            )
        parts = {
            key.replace("-", "_"): Choice(value, config.source, config.because)
            for key, value in config.value.items()
        }
    for flag, key in _SHORT_FORMS.items():
        if (choice := given.get(flag)) is None:
            continue
        if key in parts:
            raise UsageError(
                f"{flag} and {key} of {SPECULATION} exclude each other",
                hint="leave out all but one",
            )
        parts[key] = choice
    return parts
