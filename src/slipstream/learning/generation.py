"""`Generation`: a drafter that a server made of its own traffic, and what became of it.

A pair's folder outlives its runs: kept text, how far it was learnt from, the round under way, and
every generation. Each of these is replaced or renamed in one step, so that whoever is killed when,
the next process finds it whole. Generation 0 is the drafter of the plan, and lies elsewhere.
"""

import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Literal

from pydantic import AwareDatetime, Field

from slipstream.atomic_files import make_folder_once, write_atomically
from slipstream.errors import InvalidInputError
from slipstream.records import Record, read_record
from slipstream.serving.run import Run
from slipstream.steering.drafts import Drafts
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerLine
from slipstream.training.run import Schedule

FIRST_WANTED_TOKENS = 20_000
MOST_WANTED_TOKENS = 50_000_000
# Of failed candidates in a row, before the wait is doubled.
FAILED_IN_A_ROW = 3
COURSE_PARTS = 40

GenerationVerdict = Literal[
    "planned", "not offered", "candidate", "on trial", "kept", "rolled back"
]


class Generation(Record):
    """A drafter with its parent, what it was trained on and how, and its verdict so far."""

    schema_version: Literal[2] = 2
    number: int
    parent: int | None = None
    drafter: Path
    made_at: AwareDatetime
    data_sha256: str = ""
    answers: int = 0
    new_tokens: int = 0
    replayed_tokens: int = 0
    schedule: Schedule | None = None
    # Held-out acceptance by kind, of its parent and of itself, and the share of the traffic.
    before: dict[str, Drafts] = Field(default_factory=dict)
    after: dict[str, Drafts] = Field(default_factory=dict)
    shares: dict[str, float] = Field(default_factory=dict)
    # Computed, without the times when it gave way to requests.
    seconds: float = 0.0
    verdict: GenerationVerdict
    because: str = ""


class CoursePoint(Record):
    """Requests of a kind that ended within some minutes of a run, answered with one drafter."""

    minute: int
    kind: str
    drafter: str
    requests: int
    tokens_per_step: float


class GenerationList(Record):
    """The generations of a pair, how its last round or trial ended, and a run's tokens per step."""

    schema_version: Literal[2] = 2
    run: str
    folder: str
    last: str
    generations: tuple[Generation, ...]
    course: tuple[CoursePoint, ...] = ()


def list_course(
    run: Run, lines: Iterable[LedgerLine], generations: Iterable[Generation]
) -> Iterator[CoursePoint]:
    """Yield tokens per step by part of a run, kind and drafter, without requests that had two."""
    clients = [one for one in lines if one.key != SUPERVISOR_KEY and one.steps]
    if not clients:
        return
    began = run.began_at.timestamp()
    first = run.drafters[0].folder if run.drafters else Path(run.plan.drafter or "")
    numbers = [one.number for one in generations if one.drafter == first]
    drafters = [(began, f"generation {numbers[0] if numbers else 0}")]
    drafters += [(one.since.timestamp(), one.name) for one in run.drafters[1:]]
    minutes = max(1, ceil((max(one.at for one in clients) - began) / 60 / COURSE_PARTS))
    found: dict[tuple[int, str, str], list[LedgerLine]] = {}
    for line in clients:
        served = [since for since, _ in drafters if since <= line.at]
        if served and line.at - line.seconds >= served[-1]:
            part = int((line.at - began) / 60 / minutes) * minutes
            name = drafters[len(served) - 1][1]
            found.setdefault((part, line.kind, name), []).append(line)
    for (minute, kind, drafter), own in sorted(found.items()):
        rate = sum(one.tokens for one in own) / sum(one.steps for one in own)
        yield CoursePoint(
            minute=minute, kind=kind, drafter=drafter, requests=len(own), tokens_per_step=rate
        )


class Progress(Record):
    """How far a pair has come: text up to a time was learnt from, and what the next round needs."""

    schema_version: Literal[1] = 1
    learnt_until: int = 0
    wanted_tokens: int = FIRST_WANTED_TOKENS
    failed: int = 0
    # Rounds that made a candidate or came to nothing, and how the last one or its trial ended.
    rounds: int = 0
    last: str = ""
    # The generation that is offered or on trial, by which order, and when that was.
    offered: int | None = None
    order: str | None = None
    offered_at: float | None = None

    def change(self, message: str, **changes: object) -> "Progress":
        return self.model_copy(update={"last": message, **changes})

    def close_round(self, message: str, until: int, **changes: object) -> "Progress":
        """Count a round; text up to its end is no longer new."""
        return self.change(message, rounds=self.rounds + 1, learnt_until=until, **changes)

    def wait_longer(self) -> "Progress":
        doubled = min(2 * self.wanted_tokens, MOST_WANTED_TOKENS)
        return self.model_copy(update={"wanted_tokens": doubled})

    def fail(self, message: str) -> "Progress":
        """Count a candidate that was not kept: three in a row double the wait."""
        failed = self.change(message, failed=self.failed + 1, offered=None, order=None)
        return failed.wait_longer() if failed.failed % FAILED_IN_A_ROW == 0 else failed


class LearningFolder:
    """The files of a pair; only the process that has locked it writes all but the text."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path / "text"
        self.work = path / "work"
        self._progress = path / "progress.json"
        self._generations = path / "generations"

    def lock(self) -> None:
        """Have this folder as long as the process lives; raise if another run learns here."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as fault:
            os.close(lock)
            raise InvalidInputError(
                f"another run of this pair is learning in {self.path}",
                hint="slipstream status; slipstream learn OTHER --stop",
            ) from fault

    def read_progress(self) -> Progress:
        if not self._progress.exists():
            return Progress()
        return read_record(self._progress, Progress, hint=f"remove {self._progress}")

    def write_progress(self, progress: Progress) -> None:
        write_atomically(self._progress, progress.to_json().encode(), mode=0o600)

    def list_generations(self) -> list[Generation]:
        """List all that are whole, the oldest first."""
        records = sorted(self._generations.glob("[0-9]*/generation.json"))
        hint = f"remove its folder below {self._generations}"
        return [read_record(record, Generation, hint=hint) for record in records]

    def find(self, number: int) -> Generation:
        for generation in self.list_generations():
            if generation.number == number:
                return generation
        raise InvalidInputError(
            f"there is no generation {number} in {self.path}",
            hint="slipstream learn RUN --history",
        )

    def find_serving(self, drafter: Path) -> Generation | None:
        """Return the generation of a drafter's folder, None for a drafter of other making."""
        known = reversed(self.list_generations())
        return next((one for one in known if one.drafter == drafter), None)

    def name_next(self) -> int:
        """Return the number of the next generation; one of a removed folder comes again."""
        return max((one.number for one in self.list_generations()), default=-1) + 1

    def add(self, generation: Generation, drafter: Path | None = None) -> None:
        """Put a generation's folder into place when it is whole, with a copy of its drafter."""

        def build(partial: Path) -> None:
            if drafter is not None:
                shutil.copytree(drafter, partial / "drafter")
                (partial / "drafter" / "README.md").write_text(render_card(generation))
            write_atomically(partial / "generation.json", generation.to_json().encode(), mode=0o600)

        make_folder_once(self._name(generation.number), build)

    def find_drafter(self, number: int) -> Path:
        return self._name(number) / "drafter"

    def set_verdict(self, number: int, verdict: GenerationVerdict, because: str) -> None:
        """Change a generation's verdict; the weights of one that is not wanted are removed."""
        changed = self.find(number).model_copy(update={"verdict": verdict, "because": because})
        record = self._name(number) / "generation.json"
        write_atomically(record, changed.to_json().encode(), mode=0o600)
        if verdict in ("not offered", "rolled back"):
            shutil.rmtree(self.find_drafter(number), ignore_errors=True)

    def end_work(self) -> None:
        """Remove the round under way; without its record it is none, however much is left."""
        with suppress(FileNotFoundError):
            (self.work / "work.json").unlink()
        shutil.rmtree(self.work, ignore_errors=True)

    def _name(self, number: int) -> Path:
        return self._generations / f"{number:05d}"


def render_card(generation: Generation) -> str:
    """Return the card that lies beside the weights."""
    schedule = generation.schedule.model_dump_json() if generation.schedule else "unknown"
    rows = [
        f"| {kind} | {generation.shares.get(kind, 0):.0%} "
        f"| {show_rate(generation.before.get(kind))} | {show_rate(drafts)} |"
        for kind, drafts in generation.after.items()
    ]
    return "\n".join(
        (
            f"# Generation {generation.number}",
            "",
            f"Trained from generation {generation.parent} by `slipstream learn` on "
            f"{generation.answers} answers of this server's own traffic: "
            f"{generation.new_tokens} new tokens, {generation.replayed_tokens} of older text, "
            f"SHA-256 {generation.data_sha256}. It can hold traces of that text.",
            "",
            f"Schedule: `{schedule}`",
            "",
            "Tokens per step, walked on held-out answers:",
            "",
            "| kind | share of traffic | parent | this |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
        )
    )


def show_rate(drafts: Drafts | None) -> str:
    rate = None if drafts is None else drafts.tokens_per_step
    return "none" if rate is None else f"{rate:.2f}"
