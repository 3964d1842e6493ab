"""Redaction: text for strangers, without keys, paths, addresses or names.

What is not known to be harmless goes. A quoted string stays only if it is an engine's own word, a
path only below `site-packages`, a model's name only if the catalogue has published it.

Of a log, the words of its start are redacted: before a server listens nobody has asked it
anything. From then on a line may quote a request: only where it was logged, the frames of
tracebacks and the classes of exceptions are kept, and those only if there is such a function in
such a file here, or such a class: a request can be written to look like a frame.
"""

import builtins
import os
import pwd
import re
import socket
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slipstream.engines.vllm import PARTS
from slipstream.engines.vllm_log import read_phase
from slipstream.engines.vllm_methods import METHOD_NAMES
from slipstream.engines.vllm_tables import read_arguments
from slipstream.recipes import load_drafters, load_models, load_recipes
from slipstream.serving.supervision.causes.diagnosis import drop_quotes

_SECRET_NAMES = r"key|token(?!s|iz)|secret|passw|credential|authorization|bearer|cookie"
_SECRET_VARIABLE = re.compile(_SECRET_NAMES, re.IGNORECASE)
# As in `api_key=x`, `'token': 'x'`, `--api-key x` and `Authorization: Bearer x`.
_ASSIGNED = re.compile(
    rf"(?i)([\w-]*(?:{_SECRET_NAMES})[\w-]*[\"']?\s*[=:]\s*\[?(?:Bearer\s+)?"
    rf"|--[\w-]*(?:{_SECRET_NAMES})[\w-]*\s+"
    r"|\b(?:bearer|authorization)\s+)('[^']*'|\"[^\"]*\"|[^\s,;]+)"
)
# In a sentence a secret may have several words.
_SECRET_IN_PROSE = re.compile(
    r"(?<![-\w])((?:passw\w*|secret|(?:x-)?api-key)(?:\s+is)?)\s+[^\s,;=:][^,;]*", re.IGNORECASE
)
_MACHINE = re.compile(
    r"\b((?:host(?:name)?|server|node|machine|connect(?:ed|ing)? to)(?:\s+|\s*[=:]\s*))"
    r"(?=[\w-]*[\d-])[A-Za-z][\w-]++(?!:[0-9a-f]*:)",  # Not the beginning of an address.
    re.IGNORECASE,
)
# A key in a file, with all that follows its first line.
_ARMOURED = re.compile(r"(?:-----BEGIN |\bssh-(?:rsa|ed25519) |\bAGE-SECRET-KEY-).*", re.DOTALL)
_PREFIXED = re.compile(
    r"\b(?:slip_|sk_|hf_|sk-|ghp_|github_pat_|glpat-|xox\w-|AKIA|eyJ)[\w.~+/=-]{6,}"
)
_LONG = re.compile(r"[\w~+=-]{16,}")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"|`([^`]*)`")
_UNCLOSED = re.compile(r"(?<!\w)['\"`].*")
_URL = re.compile(r"\b[a-z][a-z+]*://[^\s,;)\]}]+", re.IGNORECASE)
_MAIL = re.compile(r"[^\s<>(),;]+@[^\s<>(),;]+")
_PATH = re.compile(r"(?<![\w.\]:/])(?:~[\w-]*|\.{1,2})?/[^\s,;:)\]}]+")
_SLASHED = re.compile(r"[\w.@%+-]+(?:/[\w.@%+-]+)+")
_ADDRESS = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|(?<![\w:])(?:[0-9a-f]{0,4}:){2,7}[0-9a-f]{1,4}(?![\w:])(?:%[\w.-]+)?"
    r"|\b[0-9a-f]{2}(?:[:-][0-9a-f]{2}){5}\b",
    re.IGNORECASE,
)
_DOTTED = re.compile(r"\b[A-Za-z][\w-]*(?:\.[\w-]+)*\.[A-Za-z]\w+\b")
_PACKAGES = {"vllm", "slipstream", "numpy", "triton", "flashinfer", *PARTS}
_PACKAGE_PATH = re.compile(r"site-packages/([\w./-]+)")
_SOURCE = re.compile(r"(?:[a-z_]+|__init__)\.py")
_HARMLESS_ADDRESS = {"127.0.0.1", "0.0.0.0", "::1"}
_HARMLESS_SLASHED = {"n/a", "it/s", "tokens/s", "and/or"}
# No secret, and too common to be replaced wherever they occur.
COMMON_NAMES = {"root", "nobody", "localhost", "anyone", "supervisor", "drafter", "model", "target"}
_NUMBER = re.compile(r"[+-]?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?%?")
_LEAST_SECRET = 6
LINE_CHARACTERS = 400
MOST_LINES = 2000
_PROCESS = r"(?:\((?:APIServer|EngineCore|Worker)[\w-]*(?: pid=\d+)?\) )?"
_RECORD = re.compile(
    rf"({_PROCESS}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) [\d-]+ [\d:]+ \[\w+\.py:\d+\])(.*)"
)
_UVICORN = re.compile(rf"({_PROCESS}(?:INFO|WARNING|ERROR|CRITICAL):)\s(.*)")
_FRAME = re.compile(
    r"\s*File \"[^\"\n]*/(site-packages|python3\.\d+|src)/([\w/.-]+\.py)\", "
    r"(line \d+), in (<module>|<lambda>|\w{1,80})\s*"
)
_EXCEPTION = re.compile(
    r"\s*((?:[a-z_]\w{0,40}\.){0,6}[A-Z]\w{0,60}(?:Error|Exception|Exit|Interrupt))(?::(.*))?"
)
_CALM = re.compile(rf"{_PROCESS}(?:DEBUG|INFO)\b")
_ENGINE_EXCEPTIONS = {
    "EngineDeadError",
    "EngineGenerateError",
    "OutOfMemoryError",
    "AcceleratorError",
}
_TRACEBACK = "Traceback (most recent call last):"


@dataclass(frozen=True, slots=True)
class Redactor:
    """Removes what a stranger must not read; `names` map to what stands for them."""

    names: Mapping[str, str]
    secrets: frozenset[str] = frozenset()

    def clean(self, text: str) -> str:
        """Return a line without anything that is not known to be harmless."""
        text = _ARMOURED.sub("[secret]", self._clean_secrets(text)).replace("\t", " ")
        text = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
        text = _ASSIGNED.sub(lambda found: f"{found[1]}{_show_assigned(found[2])}", text)
        text = _SECRET_IN_PROSE.sub(r"\1 [secret]", text)
        text = _MACHINE.sub(r"\1[host]", text)
        text = _PREFIXED.sub("[secret]", text)
        text = _URL.sub("[url]", text)
        text = _clean_quotes(text)
        text = _MAIL.sub("[address]", text)
        text = _PATH.sub(lambda found: _show_path(found[0]), text)
        text = _SLASHED.sub(lambda found: _show_slashed(found[0]), text)
        text = _ADDRESS.sub(_show_address, text)
        text = _LONG.sub(lambda found: "[secret]" if _looks_random(found[0]) else found[0], text)
        text = _DOTTED.sub(lambda found: _show_dotted(found[0]), text)
        return self.clean_known(text)

    def clean_known(self, text: str) -> str:
        """Replace secrets and names that are known, wherever they are."""
        text = self._clean_secrets(text)
        for name in sorted(self.names, key=len, reverse=True):
            text = _find_name(name).sub(self.names[name].replace("\\", ""), text)
        return text

    def _clean_secrets(self, text: str) -> str:
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "[secret]")
        return text


def make_redactor(
    environment: Mapping[str, str], names: Mapping[str, str], keys: Iterable[str] = ()
) -> Redactor:
    """Know this machine's and its users' names, those given, and the secrets of the environment."""
    secrets = {value for name, value in environment.items() if _SECRET_VARIABLE.search(name)}
    users = {*_list_users(environment), *keys}
    machine = socket.gethostname()
    hosts = {machine, machine.partition(".")[0], environment.get("HOSTNAME", "")}
    known = {**dict.fromkeys(users, "[name]"), **dict.fromkeys(hosts, "[host]"), **names}
    return Redactor(
        names={
            name: shown
            for name, shown in known.items()
            if len(name) > 1 and name.lower() not in COMMON_NAMES
        },
        secrets=frozenset(secret for secret in secrets if len(secret) >= _LEAST_SECRET),
    )


def show_model(name: str | None) -> str | None:
    """Return a model's name if it is published in the catalogue."""
    return None if name is None else name if name.lower() in _list_published() else "[model]"


def show_value(flag: str, value: str | None) -> str | None:
    """Return the value of an engine's flag or variable if it can only be a setting."""
    row = read_arguments().get(flag.partition(".")[0], {})
    if value is None or _is_plain(value) or value in map(str, row.get("choices", ())):
        return value
    return value if value.lower() in _list_published() else "[text]"


def _list_users(environment: Mapping[str, str]) -> set[str]:
    users = {environment.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER", "USERNAME")}
    users.add(Path(environment.get("HOME") or "/").name)
    for user in pwd.getpwall():
        if user.pw_uid == os.getuid() or 1000 <= user.pw_uid < 60000:
            users |= {user.pw_name, *user.pw_gecos.split(",")}
    return users - {""}


@cache
def _list_published() -> frozenset[str]:
    names = {one for recipe in load_recipes() for one in (recipe.target, recipe.drafter)}
    names |= {one for drafter in load_drafters() for one in (drafter.target, drafter.drafter or "")}
    for model in load_models():
        names |= {model.facts.name, *(build.name for build in model.builds)}
    return frozenset(name.lower() for name in names if name)


@cache
def _list_words() -> frozenset[str]:
    """List what an engine's own configuration is written in."""
    words = {"auto", "true", "false", "none", "spawn", "generate", "native", "cpu", "cuda"}
    words |= {"bfloat16", "float16", "float32", "fp8", "gloo", "nccl", "string", "openai"}
    for flag, row in read_arguments().items():
        words |= {flag.removeprefix("--"), *map(str, row.get("choices", ())), *row.get("keys", ())}
    return frozenset(word.lower().replace("-", "_") for word in (*words, *METHOD_NAMES))


@cache
def _find_name(name: str) -> re.Pattern[str]:
    """Find a short name as a word, and a longer one anywhere."""
    whole = re.escape(name)
    pattern = whole if len(name) > 4 else rf"(?<![A-Za-z0-9]){whole}(?![A-Za-z0-9])"
    return re.compile(pattern, re.IGNORECASE)


def _is_plain(text: str) -> bool:
    return bool(_NUMBER.fullmatch(text)) or text.lower().replace("-", "_") in _list_words()


def _show_assigned(value: str) -> str:
    return value if _NUMBER.fullmatch(value) or value in ("None", "True", "False") else "[secret]"


def _clean_quotes(text: str) -> str:
    """Judge every quoted string, and drop what follows a quote that nothing closes."""
    parts, end = list[str](), 0
    for found in _QUOTED.finditer(text):
        parts += [text[end : found.start()], _show_quoted(found)]
        end = found.end()
    return "".join([*parts, _UNCLOSED.sub("[text]", text[end:])])


def _show_quoted(found: re.Match[str]) -> str:
    quote, inner = found[0][0], next(part for part in found.groups() if part is not None)
    is_module = inner.partition(".")[0] in _PACKAGES and re.fullmatch(r"[\w.]+", inner)
    kept = is_module or _is_plain(inner) or inner.lower() in _list_published()
    return found[0] if kept or inner.startswith("[") else f"{quote}[text]{quote}"


def _show_path(path: str) -> str:
    if found := _PACKAGE_PATH.search(path):
        return f".../site-packages/{found[1]}"
    return "[path]"


def _show_slashed(text: str) -> str:
    if text.lower() in _list_published() | _HARMLESS_SLASHED or "site-packages" in text:
        return text
    return text if all(_NUMBER.fullmatch(part) for part in text.split("/")) else "[name]"


def _show_address(found: re.Match[str]) -> str:
    text = found[0]
    is_clock = re.fullmatch(r"\d\d:\d\d:\d\d", text)
    return text if text in _HARMLESS_ADDRESS or is_clock else "[address]"


def _looks_random(text: str) -> bool:
    """Say whether letters and digits are mixed as in no word or identifier."""
    pieces = re.findall(r"[A-Za-z0-9]+", text)
    mixed = [one for one in pieces if re.search(r"\d[A-Za-z]+\d|[A-Za-z]\d+[A-Za-z]+\d", one)]
    longest = max((len(one) for one in pieces), default=0)
    has_digit, has_letter = re.search(r"\d", text), re.search(r"[A-Za-z]", text)
    if not (has_digit and has_letter):
        return longest >= 24  # No word has as many letters, and no count as many digits.
    return longest >= 16 or bool(mixed and len(text) >= 20)


def _show_dotted(text: str) -> str:
    if text.partition(".")[0] in _PACKAGES or _SOURCE.fullmatch(text):
        return text
    return "[name]"


def list_skeleton(log: str, redactor: Redactor, *, is_whole: bool) -> list[str]:
    """Return what may be shown of a log; one without its beginning has no start-up in it."""
    lines = list(_list_lines(drop_quotes(log, calm=False), redactor, is_whole))
    head, tail = MOST_LINES // 2, len(lines) - MOST_LINES // 2
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:head], f"... {tail - head} lines left out", *lines[tail:]]


def _list_lines(log: str, redactor: Redactor, is_starting: bool) -> Iterator[str]:
    armoured = False
    for line in re.split(r"[\r\n]+", log):
        if is_starting and (mark := read_phase(line)) and mark.phase in ("server", "listening"):
            is_starting = "init engine" in line
        # Later on a request could say that a key begins, and hide all that follows.
        if armoured:
            armoured = is_starting and "-----END " not in line
            continue
        armoured = is_starting and "-----BEGIN " in line and "-----END " not in line
        shown = _show_line(line, redactor, is_starting)
        if shown is not None:
            yield shown


def _show_line(line: str, redactor: Redactor, is_starting: bool) -> str | None:
    found = _RECORD.match(line) or _UVICORN.match(line)
    where, content = (found[1], found[2]) if found else ("", line)
    if content.strip() == _TRACEBACK:
        return f"{where} {_TRACEBACK}".strip()
    frame = _FRAME.fullmatch(content)
    if frame and _is_source(frame[1], frame[2], frame[4]):
        return f'{where}   File "{frame[2]}", {frame[3]}, in {frame[4]}'
    exception = _EXCEPTION.fullmatch(content)
    if exception and (is_starting or _is_class(exception[1])):
        words = f":{redactor.clean(exception[2])}" if exception[2] and is_starting else ""
        return f"{where} {exception[1]}{words}".strip()[:LINE_CHARACTERS]
    if found is None:
        return None
    if is_starting:
        return f"{where}{redactor.clean(content)}"[:LINE_CHARACTERS]
    return None if _CALM.match(where) else where


@cache
def _is_source(kind: str, file: str, function: str) -> bool:
    """Say whether a frame's function is in that file of this Python or of ours."""
    roots = {"site-packages": "purelib", "src": None}
    root = roots.get(kind, "stdlib")
    folder = Path(__file__).parents[3] if root is None else Path(sysconfig.get_paths()[root])
    if ".." in file:
        return False
    try:
        source = (folder / file).read_text(errors="replace")
    except OSError:
        return False
    return function[0] == "<" or re.search(rf"\bdef {function}\b", source) is not None


def _is_class(name: str) -> bool:
    """Say whether an exception is Python's own or one that engines are known to end with."""
    last = name.rpartition(".")[2]
    return hasattr(builtins, last) or last in _ENGINE_EXCEPTIONS
