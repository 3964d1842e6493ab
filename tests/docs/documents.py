"""The documents' blocks of commands, and what is to be done with each.

No page shows what follows the first word of a fence, so that is where it stands: `sh` runs
anywhere, `sh engine` with the proving ground's engine, `sh run` beside a run that is live, `sh bed`
on the machines of tests/fleet_bed (`experiments/run-fleet-tutorial`), `sh gpu` needs a GPU, the
hub, a second machine or hours. `exit=1` is what a block leaves with, `columns=80` how wide the
terminal is in which it is shown. A `text` block right after one is what that one prints, with
`...` for what is left out.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slipstream.cli.screen import wrap
from slipstream.user_folders import slipstream_cache

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(REPOSITORY))
    for path in (*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md"))
)
MARKS = ("bed", "engine", "gpu", "run")
FENCE = re.compile(r"^```(.*)$", re.MULTILINE)
COMMENT = re.compile(r"(^|\s)#.*$", re.MULTILINE)
ASSIGNMENT = re.compile(r"\w+=.*")
BORDER = "@@ block"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, and what the next one says that it prints."""

    place: str
    info: tuple[str, ...]
    text: str
    shown: str | None = None

    @property
    def is_commands(self) -> bool:
        return self.info[:1] == ("sh",)

    @property
    def exit_code(self) -> int:
        return self._read("exit") or 0

    @property
    def columns(self) -> int | None:
        return self._read("columns")

    def _read(self, name: str) -> int | None:
        pairs = (mark.partition("=") for mark in self.info)
        return next((int(value) for mark, is_set, value in pairs if is_set and mark == name), None)

    def needs(self, mark: str) -> bool:
        return mark in self.info


def read_blocks(document: str) -> list[Block]:
    """Return the blocks of a document, in order."""
    text = (REPOSITORY / document).read_text()
    fences = list(FENCE.finditer(text))
    assert len(fences) % 2 == 0, f"{document} has a fence without an end"
    blocks: list[Block] = []
    end_of_last = 0
    for begin, end in zip(fences[::2], fences[1::2], strict=True):
        assert not end[1], f"{document}: a block begins within a block: {end[0]}"
        place = f"{document}:{text.count(chr(10), 0, begin.start()) + 1}"
        block = Block(place, tuple(begin[1].split()), text[begin.end() + 1 : end.start()])
        follows = (
            blocks and blocks[-1].is_commands and not text[end_of_last : begin.start()].strip()
        )
        if follows and block.info == ("text",):
            blocks[-1] = replace(blocks[-1], shown=block.text)
        blocks.append(block)
        end_of_last = end.end()
    return blocks


def find_commands(block: Block) -> Iterator[list[str]]:
    """Yield the words of every slipstream command in a block, wherever a command can begin."""
    script = COMMENT.sub(r"\1", block.text).replace("\\\n", " ")
    lexer = shlex.shlex(script, posix=True, punctuation_chars=";|&<>()\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    words: list[str] = []
    for word in (*lexer, ";"):
        if set(word) <= set(";|&<>()\n") and word:
            if words[:1] == ["slipstream"]:
                yield words[1:]
            words = []
        elif word != "..." and (words or not ASSIGNMENT.fullmatch(word)):
            words.append(word)


def make_environment(folder: Path) -> dict[str, str]:
    """Return what a new user's shell has, in a home of its own; models that are made stay made."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SLIPSTREAM_CACHE": str(slipstream_cache(os.environ)),
        "HF_HUB_OFFLINE": "1",
        # A tree that is not the installed one.
        **{name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ},
    }


def run_blocks(
    blocks: Sequence[Block],
    folder: Path,
    variables: Mapping[str, str] | None = None,
    enter: Callable[[list[str]], list[str]] = list,
    seconds: float = 600,
) -> str | None:
    """Run blocks as one user would, in one shell and a home that holds nothing yet.

    Return what went otherwise than the document says, None if nothing did. `variables` are added
    to those of a new user's shell; `enter` makes the shell's command one on another machine.
    """
    script = "\n".join([_make_part(number, block) for number, block in enumerate(blocks)])
    done = subprocess.run(
        enter(["bash", "-euo", "pipefail", "-c", script]),
        cwd=folder,
        env={**make_environment(folder), **(variables or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=seconds,
        check=False,
    )
    printed = re.split(rf"^{BORDER}\n", done.stdout, flags=re.MULTILINE)[1:]
    last = blocks[len(printed) - 1]
    if done.returncode:
        return f"{last.place} failed:\n{last.text}\n{printed[-1]}"
    pairs = zip(blocks, printed, strict=True)
    return next(filter(None, (_find_missing(block, output) for block, output in pairs)), None)


def _make_part(number: int, block: Block) -> str:
    if block.exit_code == 0:
        return f"echo {shlex.quote(BORDER)}\n{block.text}"
    # A shell that looks at a code does not end by it, so the inner one has to.
    return (
        f"echo {shlex.quote(BORDER)}\nset +e\n(set -e\n{block.text})\nleft{number}=$?\nset -e\n"
        f"test $left{number} -eq {block.exit_code}\n"
    )


def _find_missing(block: Block, output: str) -> str | None:
    """Look for every line that the document shows, in its order."""
    if block.columns is not None:
        output = wrap(output, block.columns)
    printed = iter(output.splitlines())
    for line in (block.shown or "").splitlines():
        if line.strip() != "..." and line not in printed:
            return f"{block.place} does not print {line!r} there:\n{output}"
    return None
