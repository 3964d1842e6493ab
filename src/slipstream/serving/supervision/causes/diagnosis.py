"""Why an engine died or did not start: its exit code, then known failures in its log.

The signatures are TOML, written by hand; each has an excerpt that a test holds it to. A dying
vLLM says why once, and in every process that it dies: the first cause comes first. What a
request can write into the log is never a cause: vLLM quotes its callers where it refuses them (the
name of a model, of a tool, what a template says of a message), so the records that quote are left
out. All lines of such a record have the same prefix. A traceback of uvicorn has none, so there
everything up to the next record is left out.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Literal, Self, get_args

from pydantic import Field, model_validator

from slipstream.errors import InvalidInputError
from slipstream.records import Record, read_toml
from slipstream.serving.kept_logs import LogPlace, read_end

_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_PROCESS = r"(?:\([^)\n]* pid=\d+[^)\n]*\) )*"
# What is logged in calm may quote a prompt. Only a wait for a worker is worth reading there.
_CALM = re.compile(rf"{_PROCESS}(?:DEBUG|INFO)\b(?!.*\[shm_broadcast\.py)")
_RECORD = re.compile(
    rf"{_PROCESS}(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?::\s+| [\d-]+ [\d:]+ (?=\[))"
)
_PLACE = re.compile(r"\[[^]]+\] ")
# Places and beginnings of records in vLLM 0.32, by what of a request they hold.
QUOTING = {
    "model": r"\[\S*?(?:batch_)?serving\.py:\d+\] ",
    "fields": r"\[\S*?protocol\.py:\d+\] ",
    "messages": r"\[\S*?(?:chat_utils|harmony|context)\.py:\d+\] ",
    "responses": r"\[\S*?utils\.py:\d+\] (?:Previous assistant message|Using summary text)",
    "template": r"\[\S*?hf\.py:\d+\] (?:Chat template|Error )",
    "dialect": r"\[\S*?(?:mistral|inkling)\.py:\d+\] ",
    "tokenization": r"\[\S*?params\.py:\d+\] ",
    "tools": r"\[\S*?tool_parser\.py:\d+\] ",
    "reasoning": r"\[\S*?reasoning_parser\.py:\d+\] ",
    "grammar": r"\[\S*\] (?:Failed to compile grammar for request|LLMatcher error: )",
    # A failing step dumps the requests in it: their stop strings and schemas.
    "dump": r"\[\S*?dump_input\.py:\d+\] ",
    "request": r"\[\S*\] Unexpected error pre-processing request ",
    "refusal": r"\[\S*\] (?:Engine )?(?:\w*Exception|RequestValidationError) caught\. Request id: ",
    "traceback": r"Exception in ASGI application",
    "serialization": r".*\bPydantic(?:Serialization| serializer warnings)",
}
_QUOTING = {name: re.compile(pattern) for name, pattern in QUOTING.items()}


def drop_quotes(log_text: str, *, calm: bool = True) -> str:
    """Return the log without records that quote a request, calm records and colours."""
    kept, quoting, in_traceback = list[str](), set[str](), False
    for line in _COLOUR.sub("", log_text).split("\n"):
        parts = list[str]()
        # What follows a carriage return within a quoting record is quoted, too.
        for part in line.split("\r") if "\r" in line else (line,):
            if record := _RECORD.match(part):
                words = part[record.end() :]
                in_traceback = bool(_QUOTING["traceback"].match(words))
                place = _PLACE.match(words)
                prefix = record[0] + place[0] if place else None
                if prefix in quoting or any(one.match(words) for one in _QUOTING.values()):
                    quoting |= {prefix} if prefix else set()
                    break
            elif in_traceback or ("Pydantic" in part and _QUOTING["serialization"].match(part)):
                break
            if calm and _CALM.match(part):
                break
            parts.append(part)
        kept.append("\r".join(parts))
    return "\n".join(kept)


SHIPPED = Path(__file__).parent / "signatures"
READ_BYTES = 4 << 20
LINE_CHARACTERS = 400
SHELL_SIGNALS = 128

_OfPlan = Literal["illegal-access", "out-of-memory", "hang", "configuration", "pairing"]
_OfMachine = Literal["port", "disk", "weights", "driver", "host"]
# The supervisor itself finds that no draft is accepted, and that another rank is lost.
Cause = Literal[_OfPlan, _OfMachine, "request", "slow", "no-acceptance", "rank-lost", "unknown"]
# What says why, what says only of which kind, what a dying engine adds, and what ends none.
Role = Literal["cause", "general", "echo", "notice"]

_PREFIX = re.compile(rf"^{_PROCESS}(?:[A-Z]+ [\d-]+ [\d:]+ \[[^]\n]+\] )?", re.MULTILINE)


class Signature(Record):
    """A known failure: the pattern of its log lines, its meaning and its remedy."""

    name: str
    cause: Cause
    role: Role = "cause"
    retry: bool
    pattern: str
    exit_codes: tuple[int, ...] = ()
    meaning: str
    remedy: str
    sources: tuple[str, ...] = Field(min_length=1)
    since: str | None = None
    until: str | None = None
    excerpt: str

    @model_validator(mode="after")
    def _require_figures(self) -> Self:
        """Raise if a pattern is invalid, or names a figure that it does not capture."""
        try:
            figures = set(re.compile(self.pattern, re.MULTILINE).groupindex)
            named = {name for _, name, _, _ in Formatter().parse(self.meaning + self.remedy)}
        except (re.error, ValueError) as fault:
            raise ValueError(f"{self.name}: {fault}") from fault
        if unknown := sorted(name for name in named - figures if name is not None):
            raise ValueError(f"{self.name}: its pattern finds no {', '.join(unknown)}")
        return self


class SignatureFile(Record):
    schema_version: Literal[1]
    signatures: tuple[Signature, ...]


class Finding(Record):
    """A known failure found in a log, with its line and its figures."""

    signature: str
    cause: Cause
    meaning: str
    remedy: str
    line: str
    sources: tuple[str, ...]
    retry: bool


@dataclass(frozen=True, slots=True)
class _Sighting:
    """A match of a signature, before matches are ranked."""

    signature: Signature
    position: int
    line: str
    figures: dict[str, str]

    def rank(self) -> tuple[bool, int, int]:
        """Return the sort key: refused requests last, specific signatures before general ones."""
        role = get_args(Role).index(self.signature.role)
        return self.signature.cause == "request", role, self.position


@cache
def load_signatures(folder: Path = SHIPPED) -> tuple[Signature, ...]:
    found: dict[str, Signature] = {}
    for path in sorted(folder.glob("*.toml")):
        known = read_toml(path, SignatureFile, called="signatures", hint=f"correct {path}")
        for signature in known.signatures:
            if signature.name in found:
                raise InvalidInputError(
                    f"{path.name} has a second {signature.name}", hint=f"correct {path}"
                )
            found[signature.name] = signature
    return tuple(found.values())


def diagnose(
    log_text: str, *, exit_code: int | None = None, notices: bool = False
) -> tuple[Finding, ...]:
    """Return the known failures in a log, the first cause first; notices are of a live engine.

    `exit_code` is the engine's own, negative for a signal; leave out one that we gave it. An
    engine that one signal ended was not ended by another, whatever its log says.
    """
    if len(log_text) > READ_BYTES:
        log_text = log_text[-READ_BYTES - 1 :].partition("\n")[2]
    text = _clean(log_text)
    met = [
        sighting
        for signature in load_signatures()
        if notices or signature.role != "notice"
        if (sighting := _look_for(signature, text, exit_code)) is not None
    ]
    ranked = sorted(_leave_out_known(met), key=_Sighting.rank)
    return tuple(_make_finding(sighting) for sighting in ranked)


def diagnose_file(
    path: Path,
    *,
    exit_code: int | None = None,
    healthy: LogPlace | None = None,
    notices: bool = False,
) -> tuple[Finding, ...]:
    """Diagnose the end of a log file, after the position at which the engine was last healthy."""
    try:
        text = read_end(path, READ_BYTES, healthy)
        if not text:
            path.stat()
    except OSError as fault:
        raise InvalidInputError(
            f"cannot read {path}: {fault.strerror or fault}", hint="give the engine's log"
        ) from fault
    return diagnose(text, exit_code=exit_code, notices=notices)


def _clean(text: str) -> str:
    return _PREFIX.sub("", drop_quotes(text).replace("\r", "\n"))


def _look_for(signature: Signature, text: str, exit_code: int | None) -> _Sighting | None:
    if signature.exit_codes and _is_signal(exit_code) and exit_code not in signature.exit_codes:
        return None
    pattern = re.compile(signature.pattern, re.MULTILINE)
    if match := pattern.search(text):
        figures = {name: value or "unknown" for name, value in match.groupdict().items()}
        return _Sighting(signature, match.start(), _find_line(text, match.end()), figures)
    if exit_code in signature.exit_codes:
        figures = dict.fromkeys(pattern.groupindex, "unknown")
        return _Sighting(signature, len(text), f"exit code {exit_code}", figures)
    return None


def _is_signal(exit_code: int | None) -> bool:
    """Return whether a signal ended a process, as its parent sees it or as a shell reports it."""
    return exit_code is not None and (exit_code < 0 or exit_code > SHELL_SIGNALS)


def _find_line(text: str, end: int) -> str:
    """Return the line on which a match ends: after frames, it is the message."""
    start = text.rfind("\n", 0, max(0, end - 1)) + 1
    return text[start:].split("\n", 1)[0].strip()[:LINE_CHARACTERS]


def _leave_out_known(met: list[_Sighting]) -> Iterable[_Sighting]:
    """Drop matches that only repeat: kinds whose cause is known, and echoes."""
    causes = {s.signature.cause for s in met if s.signature.role == "cause"}
    fatal = any(
        s.signature.role in ("cause", "general") and s.signature.cause != "request" for s in met
    )
    for sighting in met:
        role = sighting.signature.role
        if role == "general" and sighting.signature.cause in causes:
            continue
        if not (role == "echo" and fatal):
            yield sighting


def _make_finding(sighting: _Sighting) -> Finding:
    signature = sighting.signature
    return Finding(
        signature=signature.name,
        cause=signature.cause,
        meaning=signature.meaning.format_map(sighting.figures),
        remedy=signature.remedy.format_map(sighting.figures),
        line=sighting.line,
        sources=signature.sources,
        retry=signature.retry,
    )
