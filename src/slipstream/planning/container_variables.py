"""The variables of the container AEON-7/vllm-dflash, mapped to today's engine.

`docker run -e ...` lines written for that image keep working; a variable without a
counterpart gets a line that says what stands in for it. As in that image's start script, an
empty variable counts as none, and an empty DFLASH_DRAFTER as `off`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from shlex import shlex

from slipstream.errors import InvalidInputError
from slipstream.planning.memory import TURBOQUANT_BITS
from slipstream.planning.wishes import Wishes

_NUMBERS = {
    "DFLASH_NUM_SPEC_TOKENS": "draft_length",
    "MAX_MODEL_LEN": "context",
    "MAX_NUM_SEQS": "users",
    "MAX_NUM_BATCHED_TOKENS": "batched_tokens",
}
_WORDS = {
    "ATTENTION_BACKEND": "attention_backend",
    "SERVED_MODEL_NAME": "served_name",
    "KV_CACHE_DTYPE": "kv_dtype",
}
_DECIDE_FOR_ME = (("attention_backend", "auto"), ("kv_dtype", "auto"))
_ON = ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class ContainerWishes:
    """The wishes that the variables express."""

    target: str | None
    wishes: Wishes
    notes: tuple[str, ...]


def read_container_variables(environment: Mapping[str, str]) -> ContainerWishes:
    """Read every variable of that container, and report all faulty ones at once."""
    given = {name: text for name, text in environment.items() if text}
    values: dict[str, object] = {}
    faults: list[str] = []
    for variable, wish in _NUMBERS.items():
        if (text := given.get(variable)) is not None:
            if text.isdigit() and int(text) > 0:
                values[wish] = int(text)
            else:
                faults.append(f"{variable}: '{text}' is not a whole number above zero")
    for variable, wish in _WORDS.items():
        if (text := given.get(variable)) is not None and (wish, text) not in _DECIDE_FOR_ME:
            values[wish] = text
    if (text := given.get("GPU_MEMORY_UTILIZATION")) is not None:
        try:
            values["memory_utilization"] = float(text)
        except ValueError:
            faults.append(f"GPU_MEMORY_UTILIZATION: '{text}' is not a number")
    turboquant, notes = _read_turboquant(given, faults)
    if turboquant is not None:
        values["kv_dtype"] = turboquant
    if values.get("kv_dtype") in TURBOQUANT_BITS and "attention_backend" in values:
        notes = (
            *notes,
            f"ATTENTION_BACKEND={values.pop('attention_backend')} is left out: TurboQuant has a "
            "backend of its own, and vLLM does not start with another",
        )
    drafter = environment.get("DFLASH_DRAFTER")
    if drafter in ("", "off"):
        values["speculation"] = False
        notes = (*notes, f"DFLASH_DRAFTER={drafter}: plain decoding, as asked for")
    extra = (*_read_quantization(given), *_read_extra(given, faults))
    if faults:
        raise InvalidInputError(
            "the environment has variables that cannot be read",
            details=tuple(faults),
            hint="slipstream plan --from-env --explain, once they are corrected",
        )
    if drafter not in (None, "", "off"):
        values["drafter"] = drafter
    wishes = Wishes.model_validate(
        {**values, "extra_arguments": extra, "from_environment": tuple(values)}
    )
    return ContainerWishes(
        target=given.get("MODEL_PATH"),
        wishes=wishes,
        notes=(*notes, *_note_key(given)),
    )


def _read_quantization(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the quantization if a method is named, else leave it to the checkpoint."""
    method = given.get("QUANTIZATION", "auto")
    return () if method in ("auto", "none") else ("--quantization", method)


def _read_extra(given: Mapping[str, str], faults: list[str]) -> tuple[str, ...]:
    """Split at blanks; single quotes hold words together, double ones stay, as JSON needs."""
    words = shlex(given.get("EXTRA_ARGS", ""), posix=True)
    words.whitespace_split, words.commenters, words.escape, words.quotes = True, "", "", "'"
    try:
        return tuple(words)
    except ValueError as fault:
        faults.append(f"EXTRA_ARGS: {fault}")
        return ()


def _read_turboquant(
    environment: Mapping[str, str], faults: list[str]
) -> tuple[str | None, tuple[str, ...]]:
    """Map the plugin's modes and bits to the engine's own variants."""
    notes = [
        f"{name}={environment[name]} has no counterpart: {instead}"
        for name, instead in (
            ("TQ_RING_CAPACITY", "vLLM's TurboQuant keeps no exact tail of recent tokens"),
            (
                "TQ_INITIAL_LAYERS",
                "vLLM keeps a dense model's first and last two layers plain",
            ),
        )
        if name in environment
    ]
    mode = environment.get("TQ_MODE", "hybrid")
    if environment.get("ENABLE_TURBOQUANT", "0").lower() not in _ON or mode == "off":
        return None, tuple(notes)
    if mode == "capture_only":
        notes.append("TQ_MODE=capture_only has no counterpart: the cache stays in bfloat16")
        return None, tuple(notes)
    if mode == "full_tq":
        notes.append("TQ_MODE=full_tq: vLLM's TurboQuant covers prefill anyway")
    bits = []
    for name, default in (("TQ_KEY_BITS", "4"), ("TQ_VALUE_BITS", "3")):
        text = environment.get(name, default)
        if not text.isdigit():
            faults.append(f"{name}: '{text}' is not a whole number")
            return None, tuple(notes)
        bits.append(int(text))
    variant = _find_variant(bits[0], bits[1])
    notes.append(
        f"TQ_KEY_BITS={bits[0]}, TQ_VALUE_BITS={bits[1]}: {variant} is the smallest of vLLM's "
        "variants that keeps at least as many bits"
    )
    return variant, tuple(notes)


def _find_variant(key_bits: int, value_bits: int) -> str:
    enough = [
        (keys + values, name)
        for name, (keys, values) in TURBOQUANT_BITS.items()
        if keys >= key_bits and values >= value_bits
    ]
    return min(enough)[1] if enough else "turboquant_k8v4"


def _note_key(given: Mapping[str, str]) -> tuple[str, ...]:
    if "VLLM_API_KEY" not in given:
        return ()
    return (
        "VLLM_API_KEY opens the server if no key file does; docker shows it to whoever may ask, so "
        "slipstream keys new is the better way",
    )
