"""Published sets are read from files of their published form."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.workloads.published import SETS, read_published

REPOSITORY = Path(__file__).parents[4]
HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": '\ndef double(n: int) -> int:\n    """Give twice the number."""\n',
    "entry_point": "double",
    "canonical_solution": "    return 2 * n\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n",
}
MBPP = {
    "text": "Write a function to triple a number.",
    "code": "def triple(n):\r\n  return 3 * n",
    "task_id": 11,
    "test_setup_code": "",
    "test_list": ["assert triple(1) == 3", "assert triple(0) == 0"],
    "challenge_test_list": [],
}
GSM8K = {"question": "Tom has 2 pens and buys 3. How many has he?", "answer": "2+3=5\n#### 5"}
MTBENCH = {"question_id": 81, "category": "writing", "turns": ["Write a haiku.", "Now rhyme it."]}


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("name", "row", "prompt_id", "kind", "asked"),
    [
        ("humaneval", HUMANEVAL, "humaneval-7", "humaneval", 'def double(n: int) -> int:\n    """'),
        (
            "mbpp",
            MBPP,
            "mbpp-11",
            "mbpp",
            "triple a number. In Python; these lines must pass:\n\n"
            "assert triple(1) == 3\nassert triple(0) == 0",
        ),
        ("gsm8k", GSM8K, "gsm8k-1", "gsm8k", "How many has he?\n\nShow your steps"),
        ("mtbench", MTBENCH, "mtbench-81", "mtbench", "Write a haiku."),
        ("specbench", MTBENCH, "specbench-81", "specbench-multi-turn", "Write a haiku."),
        (
            "specbench",
            {**MTBENCH, "category": "math_reasoning"},
            "specbench-81",
            "specbench-math-reasoning",
            "Write a haiku.",
        ),
    ],
)
def test_a_row_becomes_a_question(
    tmp_path: Path, name: str, row: Any, prompt_id: str, kind: str, asked: str
) -> None:
    path = write(tmp_path / "published.jsonl", row)
    (prompt,) = read_published(name, path)
    assert (prompt.id, prompt.kind, prompt.origin) == (prompt_id, kind, f"{path}:1")
    ((role, text),) = [(one["role"], one["content"]) for one in prompt.messages]
    assert role == "user"
    assert asked in text
    assert not [hidden for hidden in ("return 2", "return 3", "2+3=5", "rhyme") if hidden in text]


def test_humaneval_is_read_gzipped_as_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps(HUMANEVAL).encode()))
    assert [prompt.id for prompt in read_published("humaneval", path)] == ["humaneval-7"]


@pytest.mark.parametrize("name", SETS)
def test_rows_of_another_form_are_refused_by_line(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "other.jsonl", {"turns": []})
    with pytest.raises(InvalidInputError, match="lines that cannot be read: 1") as caught:
        read_published(name, path)
    assert caught.value.details[0].startswith(f"{path}:1: ")
    assert caught.value.hint.endswith(f": {name}:PATH")


SPECBENCH = ("multi-turn", "translation", "summarization", "qa", "math-reasoning", "rag")
PUBLISHED = (
    ("humaneval", "humaneval.jsonl", {"humaneval": 164}),
    ("mbpp", "mbpp.jsonl", {"mbpp": 974}),
    ("gsm8k", "gsm8k_test.jsonl", {"gsm8k": 1319}),
    ("mtbench", "mt_bench.jsonl", {"mtbench": 80}),
    (
        "specbench",
        "spec_bench.jsonl",
        {f"specbench-{task}": 80 for task in SPECBENCH},
    ),
)


@pytest.mark.parametrize(("name", "file", "counts"), PUBLISHED)
def test_the_published_files_themselves_are_read(
    name: str, file: str, counts: dict[str, int]
) -> None:
    path = next(REPOSITORY.parent.glob(f"*/data/{file}"), None)
    if path is None:
        pytest.skip(f"no folder beside the repository holds data/{file}")
    prompts = read_published(name, path)
    assert Counter(prompt.kind for prompt in prompts) == counts
    assert len({prompt.id for prompt in prompts}) == len(prompts)
