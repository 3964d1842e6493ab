"""What a trial asks of groups on far machines, and a trial around a change of theirs."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.errors import EngineError
from slipstream.fleet.canary.answers import ANSWERS, AnswerSample
from slipstream.fleet.canary.canary_test import MOST_REQUESTS
from slipstream.fleet.canary.ledgers import MOST_LINES, GroupLedger
from slipstream.fleet.canary.record import Canary, CanaryVerdict, Subject
from slipstream.fleet.canary.trial import WITHIN_SECONDS, CanaryTrial
from slipstream.fleet.far_commands import call, explain, read_answer
from slipstream.fleet.record import Fleet
from slipstream.fleet.transport import Answer, Transport

ANSWERS_SECONDS = 1800.0


@dataclass(frozen=True, slots=True)
class TrialLimits:
    """When a trial ends undecided, and how many answers of each arm are judged."""

    requests: int = MOST_REQUESTS
    seconds: float = WITHIN_SECONDS
    answers: int = ANSWERS


@dataclass(frozen=True, slots=True)
class FarGroups:
    """The groups of a fleet, each reached on its first machine."""

    fleet: Fleet
    transport: Transport
    say: Callable[[str], None]

    def call(self, group: str, words: Sequence[str], *, timeout: float = 60) -> Answer:
        """Run Slipstream on a group's first machine."""
        machine = self.name_machine(group)
        return call(self.fleet, self.transport, machine, words, timeout=timeout)

    def read_ledger(self, group: str, after: float) -> GroupLedger:
        """Read a group's requests that ended after a moment of its machine's clock."""
        most = "0" if after == float("inf") else str(MOST_LINES)
        port = str(self.fleet.groups[group].port)
        words = ["--port", port, "--after", repr(after), "--most", most, "--json"]
        answer = self.call(group, ["fleet", "ledger", *words])
        return read_answer(self.name_machine(group), answer, GroupLedger)

    def sample_answers(self, group: str, number: int) -> AnswerSample:
        """Have a group answer prompts of ours and judge its answers."""
        self.say(f"{group}: {number} answers are judged by prefill")
        port = str(self.fleet.groups[group].port)
        words = ["fleet", "answers", "--port", port, "--number", str(number), "--json"]
        answer = self.call(group, words, timeout=ANSWERS_SECONDS)
        if answer.code:
            raise EngineError(
                f"{group}: its answers could not be judged: {explain(answer)}",
                hint=f"slipstream fleet logs {group}, or --answers 0 to do without",
            )
        return read_answer(self.name_machine(group), answer, AnswerSample)

    def name_machine(self, group: str) -> str:
        """Name the machine that answers for a group."""
        return self.fleet.groups[group].machines[0]


@dataclass(frozen=True, slots=True)
class FarTrial:
    """A trial for which the requests before it are read: the change is next, and is the caller's.

    To promote what is new or to take it back is the caller's part, too, also after an exception.
    """

    groups: FarGroups
    trial: CanaryTrial
    usual: AnswerSample | None

    def decide(self) -> CanaryVerdict:
        """Return the verdict of the requests, now that the canary serves what is new."""
        if self.usual is not None:
            number = len(self.usual.answers)
            sample = self.groups.sample_answers(self.trial.canary[0], number)
            self.trial.judge_answers(sample, self.usual)
        # Only now: answers to prompts of ours are not compared with those to the clients'.
        self.trial.begin()
        verdict = self.trial.watch()
        self.groups.say(f"{verdict.outcome}: {verdict.because}")
        return verdict


def open_trial(
    groups: FarGroups,
    subject: Subject,
    canary: Sequence[str],
    others: Sequence[str],
    limits: TrialLimits,
) -> FarTrial:
    """Read the requests before a trial, and the other groups' answers."""
    trial = CanaryTrial(
        fleet=groups.fleet.name,
        subject=subject,
        canary=canary,
        others=others,
        read=groups.read_ledger,
        clock=time.monotonic,
        sleep=time.sleep,
        say=groups.say,
        most_requests=limits.requests,
        within_seconds=limits.seconds,
    )
    trial.prepare()
    usual = groups.sample_answers(others[0], limits.answers) if limits.answers else None
    return FarTrial(groups, trial, usual)


def keep_canary(fleet: Fleet, transport: Transport, canary: Canary) -> None:
    """Keep the record in the fleet's folder on its first machine."""
    name = f"{fleet.folder}/canaries/{canary.decided_at:%Y%m%d-%H%M%S}.json"
    transport.send(fleet.first_machine, canary.to_json().encode(), name)
