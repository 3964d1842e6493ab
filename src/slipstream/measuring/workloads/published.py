"""Published prompt sets in their original files, gzipped or not.

Kinds are those for which figures are published: Spec-Bench by its six tasks, the others whole.
Of a question with several turns the first is asked: the later ones answer the target's own
words, and would differ from run to run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from slipstream.measuring.workloads.lines import read_lines
from slipstream.measuring.workloads.workload import Prompt
from slipstream.records import Record

SPECBENCH_TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


class _HumanEval(Record, extra="ignore"):
    task_id: str
    prompt: str


class _Mbpp(Record, extra="ignore"):
    task_id: int
    text: str
    test_list: list[str]


class _Gsm8k(Record, extra="ignore"):
    question: str


class _Question(Record, extra="ignore"):
    question_id: int
    category: str
    turns: list[str] = Field(min_length=1)


class _Asked(NamedTuple):
    """The prompt of a row; the name completes its id."""

    text: str
    name: str | int
    task: str = ""


class _Set(NamedTuple):
    file: str
    row: type[Any]
    ask: Callable[[Any, int], _Asked]
    max_tokens: int


def _ask_humaneval(row: _HumanEval, _: int) -> _Asked:
    text = f"Complete this Python function. Answer with the whole function.\n\n{row.prompt.strip()}"
    return _Asked(text, row.task_id.rpartition("/")[2])


def _ask_mbpp(row: _Mbpp, _: int) -> _Asked:
    tests = "\n".join(row.test_list)
    return _Asked(f"{row.text.strip()} In Python; these lines must pass:\n\n{tests}", row.task_id)


def _ask_gsm8k(row: _Gsm8k, number: int) -> _Asked:
    ending = "Show your steps, and end with a line of '#### ' and the number."
    return _Asked(f"{row.question.strip()}\n\n{ending}", number)


def _ask_specbench(row: _Question, _: int) -> _Asked:
    task = row.category if row.category in SPECBENCH_TASKS else "multi-turn"
    return _Asked(row.turns[0], row.question_id, f"-{task.replace('_', '-')}")


SETS = {
    "humaneval": _Set("HumanEval.jsonl.gz", _HumanEval, _ask_humaneval, 512),
    "mbpp": _Set("mbpp.jsonl", _Mbpp, _ask_mbpp, 512),
    "gsm8k": _Set("test.jsonl", _Gsm8k, _ask_gsm8k, 512),
    "mtbench": _Set(
        "question.jsonl", _Question, lambda row, _: _Asked(row.turns[0], row.question_id), 1024
    ),
    "specbench": _Set("question.jsonl", _Question, _ask_specbench, 1024),
}


def read_published(name: str, path: Path) -> tuple[Prompt, ...]:
    known = SETS[name]
    lines = read_lines([path], known.row, hint=f"pass the published file {known.file}: {name}:PATH")
    prompts = [known.ask(line.record, line.number) for line in lines]
    return tuple(
        Prompt(
            id=f"{name}-{one.name}",
            kind=name + one.task,
            messages=({"role": "user", "content": one.text},),
            max_tokens=known.max_tokens,
            origin=line.place,
        )
        for one, line in zip(prompts, lines, strict=True)
    )
