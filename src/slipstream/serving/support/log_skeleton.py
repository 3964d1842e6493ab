"""What of an engine's log may leave this machine: its shape, and the words of its start.

Before a server listens nobody has asked it anything, so its words are the engine's and its
user's, and are redacted. From then on a line may quote a request: only where it was logged, the
frames of tracebacks and the classes of exceptions are kept, and those only if there is such a
function in such a file here, or such a class: a request can be written to look like a frame.
"""

import builtins
import re
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from slipstream.engines.vllm_log import read_phase
from slipstream.serving.supervision.client_records import drop_quotes
from slipstream.serving.support.redaction import Redactor

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


def list_skeleton(log: str, redactor: Redactor, *, is_whole: bool) -> list[str]:
    """Return what may be shown of a log; one without its beginning has no start-up in it."""
    lines = list(_list_lines(drop_quotes(log, calm=False), redactor, is_whole))
    head, tail = MOST_LINES // 2, len(lines) - MOST_LINES // 2
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[:head], f"... {tail - head} lines left out", *lines[tail:]]


def _list_lines(log: str, redactor: Redactor, is_starting: bool) -> Iterator[str]:
    for line in re.split(r"[\r\n]+", log):
        if is_starting and (mark := read_phase(line)) and mark.phase in ("server", "listening"):
            is_starting = "init engine" in line
        shown = _show_line(line, redactor, is_starting)
        if shown is not None:
            yield shown


def _show_line(line: str, redactor: Redactor, is_starting: bool) -> str | None:
    found = _RECORD.match(line) or _UVICORN.match(line)
    where, said = (found[1], found[2]) if found else ("", line)
    if said.strip() == _TRACEBACK:
        return f"{where} {_TRACEBACK}".strip()
    frame = _FRAME.fullmatch(said)
    if frame and _is_source(frame[1], frame[2], frame[4]):
        return f'{where}   File "{frame[2]}", {frame[3]}, in {frame[4]}'
    exception = _EXCEPTION.fullmatch(said)
    if exception and (is_starting or _is_class(exception[1])):
        words = f":{redactor.clean(exception[2])}" if exception[2] and is_starting else ""
        return f"{where} {exception[1]}{words}".strip()[:LINE_CHARACTERS]
    if found is None:
        return None
    if is_starting:
        return f"{where}{redactor.clean(said)}"[:LINE_CHARACTERS]
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
