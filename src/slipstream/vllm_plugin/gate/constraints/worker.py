"""Compiles constraints where nobody waits for it: `python -m ...gate.constraints.worker`.

Reads JSON lines: first the vocabulary, then jobs and cancellations. A job runs in a child that is
forked from this process, which has xgrammar loaded and a single thread. The child may take so much
of a processor and of memory, and can be killed at any time; what xgrammar crashes on ends a child
and not the engine. Every job gets one line as its answer. The end of the input ends everything.
"""

import ctypes
import json
import os
import random
import re
import resource
import selectors
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from slipstream.vllm_plugin.gate.constraints.patterns import is_plain

NICE = 10
CHILD_NICE = 5
PR_SET_PDEATHSIG = 1
MEMORY_BYTES = 256 * 2**20
# Parts of what a job may take: vLLM reads a constraint on the API server's event loop, and fills
# the mask of every token in the engine's.
READ_SHARE = 1 / 12
MASK_SHARE = 1 / 300
STEPS = 24
HURRIED_STEPS = 64
WHY_CHARACTERS = 200
_ENDS = frozenset(b'"]},:')
_SOURCE_LINE = re.compile(r"^\[[\d:]+\] \S+:\d+: (?:Check failed: .* is false: )?")

Line = dict[str, Any]


class Costly(Exception):
    """The engine would spend too much on the constraint."""


class Faulty(Exception):
    """The engine could not use the constraint."""


def load_xgrammar() -> Any:
    """Import xgrammar without torch and transformers, of which it needs nothing here.

    That is 60 MB and half a second, in place of 270 MB and four seconds.
    """

    class Absent(ModuleType):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {"__init__": lambda *_, **__: None})

    os.environ["TVM_FFI_DISABLE_TORCH_C_DLPACK"] = "1"
    for name in ("torch", "transformers"):
        sys.modules[name] = Absent(name)
    import xgrammar

    return xgrammar


class Compiler:
    """Compiles as vLLM's xgrammar backend does, in one thread, and takes steps in the result."""

    def __init__(self, vocabulary: str, *, compact: bool) -> None:
        import numpy

        self._xgrammar, self._numpy = load_xgrammar(), numpy
        info = self._xgrammar.TokenizerInfo.deserialize_json(vocabulary)
        self._compiler = self._xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._style = {"any_whitespace": not compact, "separators": (",", ":") if compact else None}
        self._ends = numpy.array([bool(one) and one[0] in _ENDS for one in info.decoded_vocab])
        self._mask = numpy.zeros((1, -(-info.vocab_size // 32)), dtype=numpy.int32)

    def measure(self, kind: str, text: str, most_seconds: float) -> int:
        """Compile a form and take some steps in it; return the size of what was compiled."""
        self._read_seconds, self._mask_seconds = (
            most_seconds * READ_SHARE,
            most_seconds * MASK_SHARE,
        )
        grammar = self._xgrammar.Grammar
        if kind == "regex":
            _require_plain(text)
            return self._try(grammar.from_regex, self._compiler.compile_regex, text)
        if kind == "choice":
            texts = (json.dumps(one, ensure_ascii=False) for one in json.loads(text))
            choices = f"root ::= {' | '.join(texts)}"
            return self._try(grammar.from_ebnf, self._compiler.compile_grammar, choices)
        parts = [*_walk(json.loads(text))]
        for pattern in (pattern for part in parts for pattern in _list_patterns(part)):
            _require_plain(pattern)
        # A walk may not come to every format, and each costs the same wherever it is.
        for name in {name for part in parts if isinstance(name := part.get("format"), str)}:
            self._step(self._compile_schema(json.dumps({"type": "string", "format": name})))
        return self._try(grammar.from_json_schema, self._compile_schema, text)

    def _compile_schema(self, text: str) -> Any:
        return self._compiler.compile_json_schema(text, **self._style)

    def _try(self, read: Callable[[str], Any], compile_: Callable[[str], Any], text: str) -> int:
        began = time.process_time()
        read(text)
        if (seconds := time.process_time() - began) > self._read_seconds:
            raise Costly(f"reading it takes {seconds * 1000:.0f} ms")
        compiled = compile_(text)
        self._step(compiled)
        return int(compiled.memory_size_bytes)

    def _step(self, compiled: Any) -> None:
        """Follow random tokens, then those that soon end what was begun."""
        for steps, hurried in ((STEPS, False), (HURRIED_STEPS, True)):
            matcher = self._xgrammar.GrammarMatcher(compiled)
            while steps and not matcher.is_terminated():
                self._require_quick(matcher)
                matcher.accept_token(self._choose(hurried=hurried))
                steps -= 1

    def _require_quick(self, matcher: Any) -> None:
        """Fill the mask of the next token; clocks may tick coarsely, so the quickest of three."""
        seconds: list[float] = []
        while len(seconds) < 3:
            began = time.process_time()
            matcher.fill_next_token_bitmask(self._mask, 0)
            seconds.append(time.process_time() - began)
            if seconds[-1] <= self._mask_seconds:
                return
        raise Costly(f"the mask of a token takes {min(seconds) * 1000:.0f} ms")

    def _choose(self, *, hurried: bool) -> int:
        bits = self._numpy.unpackbits(self._mask.view("u1"), bitorder="little")
        allowed = self._numpy.flatnonzero(bits[: len(self._ends)])
        if not len(allowed):
            raise Faulty("it leaves no allowed token")
        ends = allowed[self._ends[allowed]]
        return int(random.choice(ends if hurried and len(ends) else allowed))


class Worker:
    """Forks a child for each job, and reports how it ended."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler = compiler
        self._children: dict[int, tuple[int, int]] = {}  # Jobs and processes by their pipes.
        self._selector = selectors.DefaultSelector()

    def run(self, lines: Iterator[list[Line]], file: int) -> None:
        self._selector.register(file, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd in self._children:
                    self._end(key.fd)
                elif (some := next(lines, None)) is None:
                    for _, process in self._children.values():
                        os.kill(process, signal.SIGKILL)
                    return
                else:
                    self.carry_out(some)

    def carry_out(self, lines: list[Line]) -> None:
        """Begin the jobs, and end those that nobody waits for any more."""
        for line in lines:
            if "cancel" in line:
                self._cancel(line["cancel"])
            else:
                self._begin(line)

    def _begin(self, line: Line) -> None:
        reading, writing = os.pipe()
        parent = os.getpid()
        if not (process := os.fork()):
            _run_child(self._compiler, line, writing, parent)
        os.close(writing)
        self._children[reading] = (line["id"], process)
        self._selector.register(reading, selectors.EVENT_READ)

    def _cancel(self, job: int) -> None:
        for file, (begun, process) in [*self._children.items()]:
            if begun == job:
                os.kill(process, signal.SIGKILL)
                self._end(file)

    def _end(self, file: int) -> None:
        job, process = self._children.pop(file)
        self._selector.unregister(file)
        content = os.read(file, 65536)
        os.close(file)
        _, status, used = os.wait4(process, 0)
        milliseconds = round((used.ru_utime + used.ru_stime) * 1000)
        answer = {"id": job, "milliseconds": milliseconds, **_describe(content, status)}
        os.write(1, json.dumps(answer).encode() + b"\n")


def _run_child(compiler: Compiler, line: Line, writing: int, parent: int) -> None:
    """Measure the forms of a job within its limits, and never return."""
    # Beside a busy engine it gets a 28th of a core. At idle priority it would get none, and an
    # ordinary schema of a neighbour would never be measured.
    os.nice(CHILD_NICE)
    try:
        _limit(line["most_milliseconds"], parent)
        random.seed()
        result = _measure(compiler, line["forms"], line["most_milliseconds"] / 1000)
        os.write(writing, json.dumps(result).encode())
    finally:
        os._exit(0)


def _measure(compiler: Compiler, forms: list[tuple[str, str]], most_seconds: float) -> Line:
    try:
        size = sum(compiler.measure(kind, text, most_seconds) for kind, text in forms)
    except (Costly, MemoryError) as fault:
        return {"outcome": "costly", "why": str(fault) or "it takes too much memory"}
    except RecursionError:
        return {"outcome": "faulty", "why": "it is nested too deep"}
    except Exception as fault:  # noqa: BLE001 whatever xgrammar says of a faulty form
        lines = _SOURCE_LINE.sub("", str(fault)).splitlines() or ["it is invalid"]
        return {"outcome": "faulty", "why": lines[0][:WHY_CHARACTERS]}
    return {"outcome": "fits", "size": size}


def _limit(milliseconds: int, parent: int) -> None:
    """Have the system end this process with its parent or beyond its time, and refuse it memory."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before it could be followed.
        os._exit(0)
    signal.setitimer(signal.ITIMER_PROF, milliseconds / 1000)
    seconds = milliseconds // 1000 + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY_BYTES, taken + MEMORY_BYTES))


def _describe(content: bytes, status: int) -> Line:
    """Return what a child says of its forms, or what its end says of them."""
    if content:
        return dict(json.loads(content))
    late = os.WIFSIGNALED(status) and os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGXCPU)
    return {"outcome": "costly", "why": "it takes too long" if late else "it cannot be compiled"}


def _require_plain(pattern: str) -> None:
    if not is_plain(pattern):
        what = f"'{pattern[:60]}' is ambiguous or invalid"
        hint = (
            "this server accepts only patterns in which every character determines what may follow"
        )
        raise Faulty(f"{what}; {hint}")


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            yield part
        if isinstance(part, dict | list):
            waiting += part.values() if isinstance(part, dict) else part


def _list_patterns(part: dict[str, Any]) -> list[str]:
    named, pattern = part.get("patternProperties"), part.get("pattern")
    return [*(named if isinstance(named, dict) else ()), *([pattern] * isinstance(pattern, str))]


def _read_lines(file: int) -> Iterator[list[Line]]:
    """Yield the lines that have come whenever there are some; wait only if asked."""
    rest = b""
    while content := os.read(file, 2**20):
        *lines, rest = (rest + content).split(b"\n")
        yield [json.loads(line) for line in lines]


def main() -> None:
    os.nice(NICE)
    # Where memory runs out, the system ends this process and its children before the engine.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    lines = _read_lines(0)
    first = next((some for some in lines if some), [])
    worker = Worker(Compiler(**first[0])) if first else None
    if worker is not None:
        # xgrammar warns of what clients send, and the log is not theirs to fill.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        worker.carry_out(first[1:])
        worker.run(lines, 0)


if __name__ == "__main__":
    main()
