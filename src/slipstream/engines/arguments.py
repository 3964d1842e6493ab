"""vLLM's command line, parsed and rendered as vLLM does.

The table of arguments is made from vLLM's own parser, so a short form, an underscore, `32k` or a
dotted key means here what it means there. What no known version would understand is refused, with
the nearest name, and so is an abbreviation, which another version may read as another argument;
what the planned one lacks is a fault of the plan. An argument that the engine reads from another
file (`--config`) is refused, too: what a plan cannot see it cannot plan for.
"""

import argparse
import difflib
import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

from slipstream.engines.vllm_tables import VERSIONS, read_arguments
from slipstream.errors import UsageError

Value = Any
"""A switch is a bool, an argument with many values a list, JSON what it holds, else a scalar."""

# Not `vllm serve`, which fails in the CPU build.
ENGINE_HELP = "python -m vllm.entrypoints.openai.api_server --help=all"

_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SUFFIXES |= {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_SIZE_WITHIN_JSON = re.compile(r'("(?:[^"\\]|\\.)*")|\b\d+(?:\.\d+)?[kKmMgGtT]\b')
_FILE_OF_ARGUMENTS = "--config"
_BOUNDS = {"ge": (operator.ge, "at least"), "gt": (operator.gt, "above")}
_BOUNDS |= {"le": (operator.le, "at most"), "lt": (operator.lt, "below")}


def parse_arguments(words: Sequence[str]) -> dict[str, Value]:
    """Return the value of every argument that is given, by its full name, in the order given.

    As in vLLM the last of several wins, unless the argument repeats, and dotted keys come last.
    """
    plain, dotted = _take_dotted([_spell(word) for word in _expand_levels(list(words))])
    plain += [part for flag, value in dotted.items() for part in (flag, json.dumps(value))]
    parsed, unknown = _make_parser().parse_known_args(plain)
    if unknown:
        raise _not_understood(unknown[0])
    if _FILE_OF_ARGUMENTS in parsed:
        raise UsageError(
            f"{_FILE_OF_ARGUMENTS} {getattr(parsed, _FILE_OF_ARGUMENTS)} cannot be planned for",
            hint="write its settings after --",
        )
    return dict(vars(parsed))


def require_in_range(flag: str, value: Value) -> None:
    """Raise ValueError unless vLLM's own records would take the number."""
    for bound, limit in read_arguments()[flag].get("range", {}).items():
        holds, words = _BOUNDS[bound]
        if not isinstance(value, int | float) or not holds(value, limit):
            raise ValueError(f"{flag} should be {words} {limit}, not {value}")


def render_arguments(values: Mapping[str, Value]) -> list[str]:
    """Write arguments so that vLLM reads the same values again."""
    return [word for flag, value in values.items() for word in render_argument(flag, value)]


def render_argument(flag: str, value: Value) -> list[str]:
    row = read_arguments()[flag]
    if row["kind"] == "switch":
        return [flag] if value else [row["negation"]] if "negation" in row else []
    if row.get("values") == "many":
        return [flag, *(_write(row, one) for one in value)]
    if row.get("values") == "optional" and value is True:
        return [flag]
    return [
        word
        for one in (value if row.get("repeats") else [value])
        for word in _join(flag, _write(row, one))
    ]


def _join(flag: str, text: str) -> list[str]:
    """Join a value that looks like an argument with its own argument."""
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _write(row: dict[str, Any], value: Value) -> str:
    if value is None:
        return "None"
    if row["kind"] == "size-or-auto" and value == -1:
        return "auto"
    return value if isinstance(value, str) and row["kind"] != "json" else json.dumps(value)


def parse_size(text: str) -> int:
    """Read a whole number such as 32768, 32k (32,000) or 32K (32,768)."""
    if (found := _SIZE.fullmatch(text.strip())) is None:
        return int(text)
    number, suffix = found.groups()
    return int((float if suffix.islower() else int)(number) * _SUFFIXES[suffix])


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"vLLM would reject this: {message}", hint=ENGINE_HELP)


@cache
def _make_parser() -> _Parser:
    parser = _Parser(
        prog="vllm", add_help=False, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    named = {flag for row in read_arguments().values() for flag in row["flags"]}
    for flag, row in read_arguments().items():
        if row["kind"] == "switch":
            parser.add_argument(*row["flags"], dest=flag, action="store_const", const=True)
            if negations := [one for one in list_negations(flag, row) if one not in named]:
                parser.add_argument(*negations, dest=flag, action="store_const", const=False)
            continue
        arity: dict[str, dict[str, Any]] = {
            "many": {"nargs": "+"},
            "optional": {"nargs": "?", "const": True},
        }
        parser.add_argument(
            *row["flags"],
            dest=flag,
            type=_make_reader(row),
            action="append" if row.get("repeats") else "store",
            **arity.get(row.get("values", "one"), {}),
        )
    return parser


def list_negations(flag: str, row: dict[str, Any]) -> list[str]:
    """List what turns a switch off: `--no-enable-x` and, as 0.33 says it, `--disable-x`."""
    if "negation" not in row:
        return []
    for prefix, opposite in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
        if flag.startswith(prefix):
            return [row["negation"], opposite + flag.removeprefix(prefix)]
    return [row["negation"]]


def find_unknown(values: Mapping[str, Value], version: str) -> list[str]:
    """Return what of these arguments a version of vLLM would not understand."""
    rows, unknown = read_arguments(version), []
    for flag, value in values.items():
        row = rows.get(flag)
        if row is None:
            unknown.append(flag)
        elif "choices" in row and value is not None and value not in row["choices"]:
            unknown.append(f"{flag} {value}")
        elif "keys" in row and isinstance(value, dict):
            unknown += [f"{flag}.{key}" for key in value if key not in row["keys"]]
        if flag == "--speculative-config" and isinstance(value, dict) and "method" in value:
            named = find_unknown({"--spec-method": value["method"]}, version)
            unknown += [one.replace("--spec-method", f"{flag}.method") for one in named]
    return unknown


def _make_reader(row: dict[str, Any]) -> Callable[[str], Value]:
    convert = _READERS[row["kind"]]

    def read(text: str) -> Value:
        if row.get("none") and text in ("", "None"):
            return None
        try:
            value = convert(text)
        except ValueError as fault:
            raise argparse.ArgumentTypeError(f"'{text}' cannot be read as {row['kind']}") from fault
        if "choices" in row:
            _require_one_of(row["choices"], value, "choice")
        for key in value if "keys" in row and isinstance(value, dict) else ():
            _require_one_of(row["keys"], key.replace("-", "_"), "key")
        return value

    return read


def _require_one_of(known: Sequence[Any], given: Value, what: str) -> None:
    if given in known:
        return
    near = difflib.get_close_matches(str(given), map(str, known), n=1)
    meant = f"did you mean {near[0]}?" if near else f"there are {', '.join(map(str, known))}"
    raise argparse.ArgumentTypeError(f"there is no {what} {given}; {meant}")


def _read_json_or_text(text: str) -> Value:
    return json.loads(text) if re.fullmatch(r"\s*{.*}\s*", text, re.DOTALL) else text


def _read_config(text: str) -> Value:
    """Read JSON in which numbers may have a suffix, outside of strings."""
    return json.loads(_SIZE_WITHIN_JSON.sub(lambda one: one[1] or str(parse_size(one[0])), text))


_READERS: dict[str, Callable[[str], Value]] = {
    "integer": int,
    "number": float,
    "text": str,
    "name": lambda text: text.lower().replace("-", "_"),
    "json": json.loads,
    "config": _read_config,
    "json-or-text": _read_json_or_text,
    "size": parse_size,
    "size-or-auto": lambda text: -1 if text.strip().lower() in ("auto", "-1") else parse_size(text),
}


def _spell(word: str) -> str:
    """Write an argument's name with dashes; keys after a dot keep their underscores."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    first, dot, keys = name.partition(".")
    return first.replace("_", "-") + dot + keys + equals + value


def _expand_levels(words: list[str]) -> list[str]:
    """Write -O3, -O=3 and -O 3 in full."""
    expanded: list[str] = []
    for number, word in enumerate(words):
        if word == "-O" and words[number + 1 : number + 2] in (["0"], ["1"], ["2"], ["3"]):
            expanded.append("--optimization-level")
        elif word.startswith("-O") and word != "-O":
            expanded += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        else:
            expanded.append(word)
    return expanded


def _take_dotted(words: Sequence[str]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """Split off `--argument.key value`, merged into one object per argument."""
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    left = iter(words)
    for word in left:
        name, equals, value = word.partition("=")
        if not word.startswith("-") or "." not in name:
            plain.append(word)
            continue
        if not equals and (value := next(left, "")) == "":
            raise UsageError(f"{name} has no value", hint=f"{name} VALUE")
        flag, *keys = name.removesuffix("+").split(".")
        read: Any = value.split(",") if name.endswith("+") else _read_dotted(value)
        for key in reversed(keys):
            read = {key: read}
        _merge(dotted.setdefault(flag, {}), read)
    return plain, dotted


def _read_dotted(text: str) -> Value:
    for convert in (json.loads, parse_size):
        try:
            return convert(text)
        except ValueError:
            continue
    return text


def _merge(original: dict[str, Any], update: dict[str, Any]) -> None:
    """Merge objects key by key, and lists by joining them."""
    for key, value in update.items():
        before = original.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            _merge(before, value)
        elif isinstance(value, list) and isinstance(before, list):
            before += value
        else:
            original[key] = value


def _not_understood(word: str) -> UsageError:
    name = word.partition("=")[0].partition(".")[0]
    flags = [
        flag
        for first, row in read_arguments().items()
        for flag in (*row["flags"], *list_negations(first, row))
    ]
    full = [flag for flag in flags if name.startswith("--") and flag.startswith(name)]
    near = difflib.get_close_matches(name, flags, n=1)
    if not word.startswith("-"):
        return UsageError(
            f"'{word}' is not a value of the engine argument before it",
            hint="give one value per argument after --, unless vLLM takes several",
        )
    if full:
        return UsageError(
            f"{name} is an abbreviation of {' or '.join(full[:4])}: write the argument in full",
            hint=full[0],
        )
    return UsageError(
        f"vLLM {' or '.join(VERSIONS)} has no argument {name}",
        hint=near[0] if near else ENGINE_HELP,
    )
