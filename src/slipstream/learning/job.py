"""The learning job of a run: collect, decide, train, offer, keep or take back.

A process at the lowest priority that the supervisor starts and stops (`serving/supervision/
learning_job.py`). What it knows is on disk (`generation.py`), so that it may end at any moment and
go on with the next look.

    python -P -m slipstream.learning.job RUN_FOLDER FOLDER [--once] [--steps N]
"""

import argparse
import ctypes
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from slipstream.errors import SlipstreamError
from slipstream.hardware import read_host, this_machine
from slipstream.learning.candidate import (
    LEAST_GAIN,
    Round,
    RoundState,
    begin_work,
    find_objection,
    read_work,
)
from slipstream.learning.deciding import Prospect, count_tokens, find_trigger, look_ahead
from slipstream.learning.generation import (
    FIRST_WANTED_TOKENS,
    Generation,
    LearningFolder,
    Progress,
)
from slipstream.learning.kept_text import read_kept
from slipstream.serving.learning import LearningState, Stage
from slipstream.serving.messages import ask, encode, short_path
from slipstream.serving.run import Event, Run, RunFolder
from slipstream.serving.run_status import read_latest
from slipstream.serving.supervision.swapping.swap_checks import find_current
from slipstream.serving.swaps import ENDED_DURING_TRIAL, Swap, SwapOrder

LOOK_EVERY_SECONDS = 5.0
# Text is counted less often: it may be 50 MB.
COUNT_EVERY_SECONDS = 30.0
SWAP_WITHIN_SECONDS = 1800.0
TRIAL_SECONDS = 24 * 3600.0
# At most one swap within the first of these; an offer that could not be taken is repeated.
SWAP_EVERY_SECONDS, OFFER_EVERY_SECONDS = 24 * 3600.0, 600.0
PR_SET_PDEATHSIG = 1
# Refusals that pass by themselves: the engine is not ready, or has served too little to compare.
PASSING = ("swap-unavailable", "swap-trial")


class Job:
    """Looks again and again, and does the next piece."""

    def __init__(
        self,
        folder: RunFolder,
        home: LearningFolder,
        *,
        once: bool = False,
        steps: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._folder, self._home = folder, home
        self._once, self._steps, self._clock = once, steps, clock
        self._state: LearningState | None = None
        self._new_tokens, self._counted_at = 0, float("-inf")

    def look(self) -> bool:
        """Do the next piece, and return whether a round came to its end, or its trial began."""
        run, progress = read_latest(self._folder), self._home.read_progress()
        serving = self._find_serving(run)
        work = read_work(self._home.work)
        if work is not None and work.round <= progress.rounds:
            self._home.end_work()
            work = None
        if work is None and progress.offered is not None:
            return self._follow_offer(run, progress, serving.number)
        if work is not None:
            return self._work(progress, serving.number)
        return self._decide(run, progress, serving)

    def report(
        self, stage: Stage, message: str, *, generation: int | None = None, is_over: bool = False
    ) -> None:
        """Report what is done now to the supervisor, if it listens."""
        progress, before = self._home.read_progress(), self._state
        number = before.generation if generation is None and before else generation or 0
        state = LearningState(
            stage=stage,
            message=message,
            works=stage in ("probing", "training"),
            is_over=is_over,
            generation=number,
            rounds=progress.rounds,
            new_tokens=self._new_tokens,
            wanted_tokens=progress.wanted_tokens,
        )
        if state != before:
            self._state = state
            with (
                suppress(OSError),
                short_path(self._folder.socket) as short,
                socket.socket(socket.AF_UNIX) as connection,
            ):
                connection.settimeout(5)
                connection.connect(short)
                connection.sendall(encode(state))

    def finish(self) -> None:
        """Report that the one round is over, with what came of it."""
        assert self._state is not None
        self.report(self._state.stage, self._state.message, is_over=True)

    def _find_serving(self, run: Run) -> Generation:
        """Return the generation that serves; a drafter of other making becomes one as it is."""
        folder = find_current(run).folder
        if (found := self._home.find_serving(folder)) is not None:
            return found
        number = self._home.name_next()
        added = Generation(
            number=number,
            drafter=folder,
            made_at=datetime.now(UTC),
            verdict="kept" if number else "planned",
            because="loaded by the user" if number else "the drafter of the plan",
        )
        self._home.add(added)
        return added

    def _decide(self, run: Run, progress: Progress, serving: Generation) -> bool:
        due = "one round was requested" if self._once else self._find_trigger(run, progress)
        if due is None:
            self.report("collecting", progress.last or "collecting", generation=serving.number)
            return False
        swapped = progress.offered_at
        if not self._once and swapped and self._clock() - swapped < SWAP_EVERY_SECONDS:
            self.report("collecting", "at most one swap a day", generation=serving.number)
            return False
        free = read_host(this_machine(os.environ, datetime.now(UTC))).memory.available_bytes
        ledgers = self._folder.list_ledgers()
        prospect = look_ahead(run, ledgers, self._home, serving, free, self._steps)
        self._new_tokens = prospect.new_tokens
        if (against := prospect.find_objection(forced=self._once)) is not None:
            waiting = progress if self._once else progress.wait_longer()
            return self._close(waiting, against, progress.learnt_until)
        self.report("deciding", f"{due}; {prospect.worth.because}", generation=serving.number)
        self._begin(run, progress, serving, prospect)
        return False

    def _find_trigger(self, run: Run, progress: Progress) -> str | None:
        """Return why a round is due, from what is kept by now."""
        if self._clock() - self._counted_at < COUNT_EVERY_SECONDS:
            return None
        self._counted_at = self._clock()
        kept = read_kept(self._home.text)
        self._new_tokens = count_tokens(one for one in kept if one.at > progress.learnt_until)
        return find_trigger(self._new_tokens, progress.wanted_tokens, run.drifts)

    def _begin(self, run: Run, progress: Progress, serving: Generation, prospect: Prospect) -> None:
        material = prospect.material
        assert material is not None
        work = RoundState(
            round=progress.rounds + 1,
            number=self._home.name_next(),
            parent=serving.number,
            drafter=serving.drafter,
            target=Path(run.plan.settings.model.value),
            target_name=run.plan.settings.list_served_names()[0],
            dtype="float32" if run.host.processor.has_bfloat16 is False else "bfloat16",
            data_sha256=material.sha256,
            until=material.until,
            held_out=len(material.held_out),
            answers=len(material.held_out) + len(material.training),
            new_tokens=material.new_tokens,
            replayed_tokens=material.replayed_tokens,
            shares={one.kind: one.token_share for one in prospect.worth.kinds},
            schedule=prospect.schedule,
        )
        begin_work(self._home.work, work, material)

    def _work(self, progress: Progress, serving: int) -> bool:
        """Take up the round under way and bring it to its end."""
        self.report("probing", "continuing an interrupted round", generation=serving)
        under_way = Round(self._home.work, lambda message: self.report("probing", message))
        gain, work = under_way.probe(), under_way.work
        if gain is None:
            return self._close(
                progress.wait_longer(), "the kept text was not generated by this target", work.until
            )
        if gain < LEAST_GAIN:
            ceiling = (
                f"this drafter is at its ceiling for this traffic: a probe gained {gain:.1%}, less "
                f"than {LEAST_GAIN:.0%}"
            )
            return self._close(progress.wait_longer(), ceiling, work.until)
        under_way.follow(lambda message: self.report("training", message))
        under_way.train()
        work = under_way.work
        best = work.best
        against = "no training step was better" if best is None else None
        if best is not None:
            against = find_objection(work.before or {}, best.walked, work.shares)
        self._home.add(
            Generation(
                number=work.number,
                parent=work.parent,
                drafter=self._home.find_drafter(work.number),
                made_at=datetime.now(UTC),
                data_sha256=work.data_sha256,
                answers=work.answers,
                new_tokens=work.new_tokens,
                replayed_tokens=work.replayed_tokens,
                schedule=work.schedule,
                before=work.before or {},
                after=best.walked if best else {},
                shares=work.shares,
                seconds=work.seconds,
                verdict="not offered" if against else "candidate",
                because=against or "waits to be offered",
            ),
            None if against else under_way.drafter,
        )
        if against is not None:
            message = f"generation {work.number} is not offered: {against}"
            return self._close(progress.fail(message), message, work.until)
        message = f"generation {work.number} waits to be offered"
        self._close(progress.change(message, offered=work.number, order=None), message, work.until)
        return False

    def _close(self, progress: Progress, message: str, until: int) -> bool:
        """Write a round's end down, and then remove its work."""
        self._home.write_progress(progress.close_round(message, until))
        self._home.end_work()
        self.report("collecting", message)
        return True

    def _follow_offer(self, run: Run, progress: Progress, serving: int) -> bool:
        """Offer the candidate by a swap on trial, or see what became of that."""
        number, trial, last = progress.offered, run.trial, run.last_swap
        assert number is not None
        order = progress.order
        if order is not None and trial is not None and trial.order == order:
            if trial.state == "running":
                if self._home.find(number).verdict != "on trial":
                    self._home.set_verdict(number, "on trial", "")
                self.report("on trial", trial.describe(), generation=serving)
                return True
            broken_off = trial.state == "rolled back" and ENDED_DURING_TRIAL in trial.message
            if not broken_off:
                return self._end_trial(progress, number, trial.state, trial.message)
            self._home.set_verdict(number, "candidate", trial.message)
            progress = progress.change(trial.message, order=None)
            self._home.write_progress(progress)
        elif order is not None and last is not None and last.order == order:
            if not (last.outcome == "refused" and last.message.startswith(PASSING)):
                return self._end_trial(progress, number, last.outcome, last.message)
            progress = progress.change(last.message, order=None)
            self._home.write_progress(progress)
            self.report("offering", last.message, generation=serving)
            return True
        return self._offer(run, progress, number, serving)

    def _end_trial(self, progress: Progress, number: int, outcome: str, message: str) -> bool:
        stays = outcome in ("passed", "failed")
        self._home.set_verdict(number, "kept" if stays else "rolled back", message)
        shown = f"generation {number}: {outcome}; {message}"
        if outcome == "passed":
            fresh = {"failed": 0, "wanted_tokens": FIRST_WANTED_TOKENS}
            progress = progress.change(shown, offered=None, order=None, **fresh)
        else:
            progress = progress.fail(shown)
        self._home.write_progress(progress)
        self.report("collecting", shown)
        return True

    def _offer(self, run: Run, progress: Progress, number: int, serving: int) -> bool:
        now = self._clock()
        if not self._once and now - (progress.offered_at or 0.0) < OFFER_EVERY_SECONDS:
            return False
        if run.state != "ready":
            self.report("offering", f"the run is {run.state}", generation=serving)
            return False
        order = SwapOrder(
            id=secrets.token_hex(8),
            name=f"generation {number}",
            folder=self._home.find_drafter(number),
            trial_seconds=TRIAL_SECONDS,
        )
        self.report("offering", f"generation {number} is offered", generation=serving)
        offered = {"order": order.id, "offered_at": now}
        self._home.write_progress(progress.model_copy(update=offered))
        # What came of it is read from the run.
        with suppress(OSError, ValueError):
            answers = ask(self._folder.socket, order, (Swap, Event), seconds=SWAP_WITHIN_SECONDS)
            next((one for one in answers if isinstance(one, Swap)), None)
        return False


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--once", action="store_true")
    parser.add_argument("--steps", type=int)
    options = parser.parse_args(arguments)
    _give_way()
    home = LearningFolder(options.folder)
    job = Job(RunFolder(options.run), home, once=options.once, steps=options.steps)
    try:
        home.lock()
        while not (job.look() and options.once):
            time.sleep(0.2 if options.once else LOOK_EVERY_SECONDS)
    except SlipstreamError as fault:
        job.report("collecting", f"{fault.message}; {fault.hint}", is_over=options.once)
        return 0 if options.once else 1
    job.finish()
    return 0


def _give_way() -> None:
    """Be the last to get the processor, the first to be killed for memory, and end with the parent.

    What is written is readable by this user only.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.umask(0o077)
    os.nice(19)
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
