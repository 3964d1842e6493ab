"""What the user says to the engine directly, after `--`: it wins, and everything follows it."""

import re

from slipstream.planning.plan import Decision
from slipstream.planning.wishes import Wishes

_WHOLE_NUMBERS = {
    "--max-model-len": "context",
    "--max-num-seqs": "users",
    "--max-num-batched-tokens": "batched_tokens",
    "--speculative-config.num_speculative_tokens": "draft_length",
}
_WORDS = {"--kv-cache-dtype": "kv_dtype", "--attention-backend": "attention_backend"}
_SPECULATIVE = "--speculative-config"


def parse_raw(raw: tuple[str, ...]) -> dict[str, str | None]:
    """Read `--flag value`, `--flag=value` and bare `--flag`."""
    asked: dict[str, str | None] = {}
    flag: str | None = None
    for word in raw:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            asked[name] = value if equals else None
            flag = None if equals else name
        elif flag is not None:
            asked[flag] = word
            flag = None
    return asked


def absorb(wishes: Wishes) -> Wishes:
    """Take raw arguments that other decisions depend on for the wishes that they are."""
    spoken: dict[str, object] = {}
    for flag, value in parse_raw(wishes.raw).items():
        if flag in _WHOLE_NUMBERS and value is not None and value.isdigit():
            spoken[_WHOLE_NUMBERS[flag]] = int(value)
        elif flag in _WORDS and value is not None:
            spoken[_WORDS[flag]] = value
        elif flag == "--gpu-memory-utilization" and re.fullmatch(r"\d*\.?\d+", value or ""):
            spoken["memory_utilization"] = float(value or 0)
    left = tuple(name for name in wishes.from_environment if name not in spoken)
    return wishes.model_copy(update={**spoken, "from_environment": left})


def override(decisions: tuple[Decision, ...], raw: tuple[str, ...]) -> tuple[Decision, ...]:
    """Put the raw arguments in the place of what was decided about the same flags."""
    asked = parse_raw(raw)
    settled = {_positive(flag) for flag in asked}
    kept = [
        decision
        for decision in decisions
        if _positive(decision.flag) not in settled
        and not (_SPECULATIVE in asked and decision.flag.startswith(f"{_SPECULATIVE}."))
    ]
    given = [
        Decision(flag=flag, value=value, source="user", because="given after --")
        for flag, value in asked.items()
    ]
    return (*kept, *given)


def _positive(flag: str) -> str:
    """Give a switch by its name, whether it is turned on or off."""
    return flag.replace("--no-", "--", 1)
