"""The variables of the container AEON-7/vllm-dflash, mapped to today's engine.

`docker run -e ...` lines written for that image keep working; a variable without a counterpart
gets a note. As in that image's start script, an empty variable counts as none, and an empty
DFLASH_DRAFTER as `off`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import shlex
from typing import Any

from slipstream.errors import InvalidInputError, UsageError
from slipstream.planning.memory.cache import TURBOQUANT_BITS
from slipstream.planning.settings import Choice, EngineOptions
from slipstream.planning.settings.options import (
    PLAIN,
    PlanOptions,
    make_engine_options,
    read_engine_arguments,
)

_NUMBERS = {
    "MAX_MODEL_LEN": "context",
    "MAX_NUM_SEQS": "sequences",
    "MAX_NUM_BATCHED_TOKENS": "batched_tokens",
    "GPU_MEMORY_UTILIZATION": "memory_utilization",
}
_WORDS = {"ATTENTION_BACKEND": "attention_backend", "KV_CACHE_DTYPE": "kv_dtype"}
_LENGTH = "DFLASH_NUM_SPEC_TOKENS"
_NAMES = {field: name for name, field in (_NUMBERS | _WORDS | {_LENGTH: "length"}).items()}
_WITHOUT_COUNTERPART = ("TQ_MODE", "TQ_RING_CAPACITY", "TQ_INITIAL_LAYERS")
_BITS = {"TQ_KEY_BITS": "4", "TQ_VALUE_BITS": "3"}
_ON = ("1", "true", "yes", "on")
_OFF = ("", "off")
_KEY_NOTE = "VLLM_API_KEY is the server's key if there is no key file; docker inspect shows it, "
_KEY_NOTE += "so use slipstream keys new instead"


@dataclass(frozen=True, slots=True)
class ContainerOptions:
    target: str | None
    options: PlanOptions
    notes: tuple[str, ...]


def read_container_variables(environment: Mapping[str, str]) -> ContainerOptions:
    """Read every variable of that container, and report all faulty ones at once."""
    given = {name: text for name, text in environment.items() if text}
    faults: list[str] = []
    notes: list[str] = []
    values: dict[str, Any] = {field: given.get(name) for name, field in _NUMBERS.items()}
    values |= {
        field: given[name] for name, field in _WORDS.items() if given.get(name, "auto") != "auto"
    }
    if (turboquant := _read_turboquant(given, faults, notes)) is not None:
        values["kv_dtype"] = turboquant
    if values.get("kv_dtype") in TURBOQUANT_BITS and "attention_backend" in values:
        named = values.pop("attention_backend")
        notes.append(f"ATTENTION_BACKEND={named} is ignored: TurboQuant has its own backend")
    if (served := given.get("SERVED_MODEL_NAME")) is not None:
        values["served_names"] = (served,)
    drafter = environment.get("DFLASH_DRAFTER")
    speculation = {"drafter": drafter or None, "length": given.get(_LENGTH)}
    try:
        engine = make_engine_options(
            "environment", "requested", speculation=speculation, names=_NAMES, **values
        )
    except UsageError as fault:
        faults += (fault.message, *fault.details)
    extra = _read_extra(given, faults)
    if faults:
        raise InvalidInputError(
            "some environment variables are invalid",
            details=tuple(faults),
            hint="once they are corrected: slipstream plan --from-env --explain",
        )
    if "VLLM_API_KEY" in given:
        notes.append(_KEY_NOTE)
    options = PlanOptions(engine=engine.override(extra))
    if drafter in _OFF:
        notes.append(f"DFLASH_DRAFTER={drafter}: plain decoding, as requested")
        method = Choice(PLAIN, "environment", "requested")
        options = options.model_copy(update={"method": method}).without_speculation()
    return ContainerOptions(given.get("MODEL_PATH"), options, tuple(notes))


def _read_extra(given: Mapping[str, str], faults: list[str]) -> EngineOptions:
    """Read QUANTIZATION and EXTRA_ARGS, split at blanks.

    Single quotes hold words together; double ones stay, as JSON needs them.
    """
    method = given.get("QUANTIZATION", "auto")
    quantization = () if method in ("auto", "none") else ("--quantization", method)
    words = shlex(given.get("EXTRA_ARGS", ""), posix=True)
    words.whitespace_split, words.commenters, words.escape, words.quotes = True, "", "", "'"
    try:
        extra = (*quantization, *words)
    except ValueError as fault:
        faults.append(f"EXTRA_ARGS: {fault}")
        return EngineOptions()
    return read_engine_arguments(extra, "environment", "set in EXTRA_ARGS")


def _read_turboquant(given: Mapping[str, str], faults: list[str], notes: list[str]) -> str | None:
    """Return the smallest of the engine's own variants with as many bits as the plugin's."""
    mode = given.get("TQ_MODE", "hybrid")
    if unused := [name for name in _WITHOUT_COUNTERPART if name in given]:
        notes.append(f"{', '.join(unused)}: vLLM's own TurboQuant has no such setting")
    on = given.get("ENABLE_TURBOQUANT", "0").lower() in _ON
    if not on or mode in ("off", "capture_only"):
        return None
    texts = {name: given.get(name, usual) for name, usual in _BITS.items()}
    if wrong := [name for name, text in texts.items() if not text.isdigit()]:
        faults += [f"{name}: '{texts[name]}' is not a whole number" for name in wrong]
        return None
    keys, values = map(int, texts.values())
    enough = [
        (sum(bits), name)
        for name, bits in TURBOQUANT_BITS.items()
        if bits[0] >= keys and bits[1] >= values
    ]
    variant = min(enough)[1] if enough else "turboquant_k8v4"
    notes.append(f"{keys} bits per key and {values} per value: vLLM's {variant}")
    return variant
