"""Another drafter for a whole fleet: group after group, or on a canary first.

Every group is swapped by `slipstream swap` on its own machine, which proves the drafter, watches it
and keeps the one before. If a group does not take it, those that did go back.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from slipstream.errors import EngineError, InvalidInputError, SlipstreamError
from slipstream.fleet.canary.answers import AnswerSample
from slipstream.fleet.canary.ledgers import MOST_LINES, GroupLedger
from slipstream.fleet.canary.record import Canary
from slipstream.fleet.canary.trial import CanaryTrial
from slipstream.fleet.far_commands import call, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Answer, Transport, escape
from slipstream.serving.swaps import Swap

# The machine's own command waits for half an hour.
SWAP_SECONDS = 1900.0
ANSWERS_SECONDS = 1800.0
_GATE_MISSED = 4


@dataclass(slots=True)
class FleetSwap:
    """A drafter on its way through a fleet; `name` is what the machines know it by."""

    fleet: Fleet
    transport: Transport
    name: str
    say: Callable[[str], None]
    swapped: list[str] = field(default_factory=list)
    done: list[str] = field(default_factory=list)

    @property
    def groups(self) -> tuple[str, ...]:
        """The groups that draft, in the order of the file."""
        return tuple(name for name, group in self.fleet.groups.items() if group.speculation)

    def swap_all(self) -> None:
        """Swap one group after the other; if one does not take it, all go back."""
        self._swap_groups([group for group in self.groups if group not in self.swapped])

    def try_on(
        self,
        canary: Sequence[str],
        *,
        answers: int,
        key: str | None,
        most_requests: int,
        within_seconds: float,
    ) -> Canary:
        """Swap some groups, and the others too or those back, as their requests decide."""
        others = [group for group in self.groups if group not in canary]
        trial = CanaryTrial(
            fleet=self.fleet.name,
            subject="drafter",
            canary=canary,
            others=others,
            read=self.read_ledger,
            clock=time.monotonic,
            sleep=time.sleep,
            say=self.say,
            most_requests=most_requests,
            within_seconds=within_seconds,
        )
        trial.prepare()
        usual = self.sample_answers(others[0], answers, key) if answers else None
        self._swap_groups(canary)
        try:
            trial.begin()
            if usual is not None:
                trial.judge_answers(self.sample_answers(canary[0], answers, key), usual)
            verdict = trial.watch()
            self.say(f"{verdict.outcome}: {verdict.because}")
            if verdict.outcome == "promote":
                self.swap_all()
            else:
                self.go_back()
        except BaseException:
            self.go_back()
            raise
        return trial.describe(verdict, name=self.name, done=self.done)

    def go_back(self) -> None:
        """Have the drafter before in every group that took the new one, the last one first."""
        while self.swapped:
            group = self.swapped.pop()
            try:
                if self._has_returned(group):
                    self._note(f"{group} had swapped back by itself")
                else:
                    self._note(f"{group}: {self._swap(group, ['--back']).message}")
            except SlipstreamError as fault:
                self._note(f"{group} is not swapped back: {fault.message}")

    def read_ledger(self, group: str, after: float) -> GroupLedger:
        """Read a group's requests that ended after a moment of its machine's clock."""
        machine, port = self._find_place(group)
        most = "0" if after == float("inf") else str(MOST_LINES)
        words = ["--after", repr(after), "--most", most, "--json"]
        answer = call(
            self.fleet, self.transport, machine, ["fleet", "ledger", "--port", port, *words]
        )
        return read_answer(machine, answer, GroupLedger)

    def sample_answers(self, group: str, number: int, key: str | None) -> AnswerSample:
        """Have a group answer prompts of ours and judge its answers; the key goes by its input."""
        machine, port = self._find_place(group)
        self.say(f"{group}: {number} answers are judged by prefill")
        words = ["fleet", "answers", "--port", port, "--number", str(number), "--json"]
        answer = call(
            self.fleet,
            self.transport,
            machine,
            words,
            stdin=(key or "").encode(),
            timeout=ANSWERS_SECONDS,
        )
        if answer.code:
            raise EngineError(
                f"{group}: its answers could not be judged: {_read_error(answer)}",
                hint="--key FILE with a key of the fleet, or --answers 0 to do without",
            )
        return read_answer(machine, answer, AnswerSample)

    def _swap_groups(self, groups: Sequence[str]) -> None:
        for group in groups:
            try:
                swap = self._swap(group, [self.name])
                if swap.outcome != "swapped":
                    raise EngineError(swap.message, hint=swap.hint or "slipstream fleet status")
            except SlipstreamError as fault:
                self._note(f"{group} does not take it: {fault.message}")
                self.go_back()
                raise
            self.swapped.append(group)
            self._note(f"{group}: {swap.message}")

    def _swap(self, group: str, words: Sequence[str]) -> Swap:
        machine, _ = self._find_place(group)
        run = self.read_ledger(group, float("inf")).run
        command = ["swap", run, *words, "--json"]
        answer = call(self.fleet, self.transport, machine, command, timeout=SWAP_SECONDS)
        if answer.code not in (0, _GATE_MISSED):
            raise EngineError(
                f"{group}: {_read_error(answer)}", hint=f"slipstream fleet logs {group}"
            )
        return read_answer(machine, answer, Swap)

    def _has_returned(self, group: str) -> bool:
        last = self.read_ledger(group, float("inf")).last_swap
        return last is not None and last.outcome == "swapped-back"

    def _find_place(self, group: str) -> tuple[str, str]:
        chosen = self.fleet.groups[group]
        return chosen.machines[0], str(chosen.port)

    def _note(self, line: str) -> None:
        self.done.append(escape(line))
        self.say(escape(line))


def place_drafter(
    fleet: Fleet, transport: Transport, groups: Sequence[str], name: str, say: Callable[[str], None]
) -> str:
    """Return what the machines know a drafter by; a folder of this machine is sent to them all."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return name
    files = sorted(
        file for file in folder.iterdir() if file.suffix in (".json", ".safetensors", ".txt")
    )
    if not any(file.suffix == ".safetensors" for file in files):
        raise InvalidInputError(f"{folder} has no safetensors", hint=f"slipstream inspect {folder}")
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as content:
            digest.update(
                f"{file.name} {hashlib.file_digest(content, 'sha256').hexdigest()}\n".encode()
            )
    place = (
        f"{fleet.folder}/drafters/{_make_plain(folder.resolve().name)}-{digest.hexdigest()[:12]}"
    )
    for machine in [name for group in groups for name in fleet.groups[group].machines]:
        say(f"{machine}: {len(files)} files of the drafter are sent")
        for file in files:
            transport.send(machine, file, f"{place}/{file.name}")
    return f"~/{place}"


def keep_canary(fleet: Fleet, transport: Transport, canary: Canary) -> None:
    """Keep the record in the fleet's folder on its first machine."""
    name = f"{fleet.folder}/canaries/{canary.decided_at:%Y%m%d-%H%M%S}.json"
    transport.send(fleet.first_machine, canary.to_json().encode(), name)


def choose_canary(groups: Sequence[str], number: int) -> tuple[str, ...]:
    """Return the groups that try something first: the last ones, so the first serves as before."""
    if not 0 < number < len(groups):
        raise InvalidInputError(
            f"{number} of {len(groups)} groups that draft cannot be a canary: at least one tries "
            "and at least one goes on as before",
            hint="--canary 1" if len(groups) > 1 else "leave --canary out",
        )
    return tuple(groups[-number:])


def _make_plain(name: str) -> str:
    """Return a name that no shell and no path takes for more."""
    return "".join(sign if sign.isascii() and sign.isalnum() else "-" for sign in name)[:40]


def _read_error(answer: Answer) -> str:
    """Return what a machine's command failed with, on one line that is safe to show."""
    with suppress(ValueError, KeyError, TypeError):
        return escape(str(json.loads(answer.stderr)["error"]["message"]))
    return answer.last_words
