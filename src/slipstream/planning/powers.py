"""What a plan or a recipe from others could do beyond settings: run code, or read other files.

A recipe may set what is listed in its record and nothing else. A saved plan may hold more, which
its user has to name: whoever wrote the file could have written anything, its sources and reasons
too. Numbers, most switches, choices of a list and plain words only set; a word with a dot or a
slash may be a module or a file.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from slipstream.engines.vllm_tables import read_arguments
from slipstream.hardware import Host
from slipstream.planning.plan import LaunchPlan
from slipstream.recipes.recipe import RECIPE_VARIABLES

# Those that a plan sets by itself.
_VARIABLES = RECIPE_VARIABLES | {
    *("VLLM_USE_V2_MODEL_RUNNER", "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_HOST_IP"),
    "GLOO_SOCKET_IFNAME",
    *("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_KVCACHE_SPACE", "OMP_NUM_THREADS"),
    *("SLIPSTREAM_COPY", "SLIPSTREAM_PATCHES"),
}
# Names, addresses and what is handed to the model: data, whatever they say.
_DATA = frozenset(
    {
        *("--model", "--revision", "--tokenizer-revision", "--served-model-name", "--host"),
        *("--master-addr", "--data-parallel-address", "--generation-config", "--response-role"),
        *("--override-generation-config", "--default-chat-template-kwargs", "--device-ids"),
        *("--limit-mm-per-prompt", "--kv-cache-dtype-skip-layers"),
        *("--speculative-config.model", "--speculative-config.revision"),
    }
)
# Of the others those whose values are words or trees of them.
_WORDS = frozenset(
    {
        *("--attention-backend", "--quantization", "--reasoning-parser", "--tool-call-parser"),
        *("--distributed-executor-backend", "--data-parallel-backend", "--load-format"),
        *("--mamba-backend", "--mm-encoder-attn-backend", "--optimization-level"),
        *("--compilation-config", "--structured-outputs-config", "--reasoning-config"),
        *("--attention-config", "--kernel-config", "--pooler-config", "--eplb-config"),
    }
)
# Switches that trust others, serve beside the gate or write down what is asked.
_SWITCHES = re.compile(r"--(?:trust-.*|enable-lora|grpc|enable-scale-out|enable-log-.*)")
_NUMBERS = ("integer", "number", "size", "size-or-auto")
_PLAIN_WORD = re.compile(r"[\w+-]{0,64}", re.ASCII)
# Formats of weights that may be pickles.
_PICKLES = ("auto", "hf", "pt", "npcache")
_TRUSTING = re.compile(r"trust_.*|(?:draft_)?load_(?:config|format)")
_CUSTOM = ("--speculative-config.method", "custom_class")


def list_powers(plan: LaunchPlan, host: Host | None) -> tuple[str, ...]:
    """List variables and arguments of a plan that do more than set, by their names."""
    library = host.software.openmp_library if host else None
    variables = [
        name
        for name, choice in plan.environment.items()
        if name not in _VARIABLES and (name, choice.value) != ("LD_PRELOAD", library)
    ]
    arguments = {name for name, value in _list_values(plan) if is_power(name, value)}
    return (*sorted(variables), *sorted(arguments))


def _list_values(plan: LaunchPlan) -> Iterator[tuple[str, Any]]:
    for name, choice in plan.settings.list_choices():
        yield name, choice.value
    for key, choice in plan.speculation.list_choices() if plan.speculation else ():
        yield f"--speculative-config.{key}", choice.value


def is_power(name: str, value: object) -> bool:
    """Return whether an argument could do more than set."""
    row = read_arguments().get(name, {})
    if row.get("kind") == "switch":
        return _SWITCHES.fullmatch(name) is not None
    if row.get("kind") in _NUMBERS or "choices" in row or name in _DATA:
        return False
    if name == "--load-format" and value in _PICKLES:
        return True
    main, _, key = name.partition(".")
    if main == "--speculative-config":
        return (name, value) == _CUSTOM or not _is_plain({key: value})
    return name not in _WORDS or not _is_plain(value)


def _is_plain(value: object) -> bool:
    """Return whether a value has nothing but numbers and plain words."""
    if isinstance(value, dict):
        words = all(_is_plain(key) and not _TRUSTING.fullmatch(key) for key in value)
        return words and all(map(_is_plain, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return not isinstance(value, str) or _PLAIN_WORD.fullmatch(value) is not None


def find_unnamed(powers: Iterable[str], allowed: Iterable[str]) -> tuple[str, ...]:
    """Return those that the user has not named, with or without the dashes."""
    named = {one.removeprefix("--") for one in allowed}
    return tuple(one for one in powers if one.removeprefix("--") not in named)
