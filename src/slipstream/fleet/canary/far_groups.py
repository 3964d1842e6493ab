"""What a trial asks of groups on far machines, and the trial of a change that the caller makes."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slipstream.errors import EngineError
from slipstream.fleet.canary.answers import ANSWERS, AnswerSample
from slipstream.fleet.canary.canary_test import MOST_REQUESTS
from slipstream.fleet.canary.ledgers import MOST_LINES, GroupLedger
from slipstream.fleet.canary.record import CanaryVerdict, Subject
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


def run_canary(
    groups: FarGroups,
    subject: Subject,
    canary: Sequence[str],
    others: Sequence[str],
    change: Callable[[], None],
    limits: TrialLimits,
) -> tuple[CanaryTrial, CanaryVerdict]:
    """Have `change` give some groups what is new, and return the verdict of their requests.

    To promote it or to take it back is the caller's part, also after an exception.
    """
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
    answers = limits.answers
    usual = groups.sample_answers(others[0], answers) if answers else None
    change()
    if usual is not None:
        trial.judge_answers(groups.sample_answers(canary[0], answers), usual)
    # Only now: answers to prompts of ours are not compared with those to the clients'.
    trial.begin()
    verdict = trial.watch()
    groups.say(f"{verdict.outcome}: {verdict.because}")
    return trial, verdict
