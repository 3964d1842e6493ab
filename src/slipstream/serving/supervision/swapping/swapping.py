"""Swaps of a served drafter: ordered by the user, loaded by the gate, tested here.

A drafter of which nothing is accepted, or less than of the one before, is swapped back. The plan of
the run changes with the drafter, so a restart keeps it. A drafter on trial must be shown to be as
good: it is swapped back if that is not known in time, and an engine that ends takes it along.
Whatever goes wrong with a swap is told, and no reason to end an engine that serves.
"""

import asyncio
import time
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream.checkpoints.pairing import Fault, refuse
from slipstream.errors import EngineError, explain
from slipstream.serving.messages import DrafterOrder, DrafterResult
from slipstream.serving.plugin_settings import takes_swaps, with_drafter
from slipstream.serving.supervision.causes.ladder import Death
from slipstream.serving.supervision.engine_life import EngineLife
from slipstream.serving.supervision.event_log import EventLog
from slipstream.serving.supervision.generation import PROOFS, STORY, Proof, prove
from slipstream.serving.supervision.run_socket import RunSocket
from slipstream.serving.supervision.swapping.swap_checks import (
    LINES_PER_LOOK,
    WATCH_SECONDS,
    SwapWatch,
    find_current,
    find_faults,
)
from slipstream.serving.swaps import (
    ENDED_DURING_TRIAL,
    ServedDrafter,
    Swap,
    SwapOrder,
    SwapTrial,
)
from slipstream.steering.ledger import SUPERVISOR_KEY, LedgerReader

LOOK_EVERY_SECONDS = 0.25
# A gate that says nothing for so long serves a drafter that nobody knows.
GATE_WITHIN_SECONDS = 600.0
KEPT_DRAFTERS = 100
PROOF_TOKENS = 32
LINE_WITHIN_SECONDS = 2.0


class Swapping:
    """Carries out the swap orders of a run one by one, and watches the last one."""

    def __init__(self, event_log: EventLog, socket: RunSocket) -> None:
        self._event_log, self._socket = event_log, socket
        self._watch: SwapWatch | None = None
        self._return_reason: str | None = None
        self._under_way: SwapOrder | None = None

    def swap_back(self, reason: str) -> bool:
        """Load the previous drafter again, and return whether there is one.

        One that was swapped back to stays: the drafter before it is the worse one.
        """
        run = self._event_log.run
        last = run.last_swap
        can_return = last is not None and last.outcome == "swapped" and takes_swaps(run.plan)
        if can_return:
            self._return_reason = reason
        return can_return

    async def follow(self, life: EngineLife) -> None:
        """Take orders as long as the engine lives; end it if no drafter in it is complete."""
        self._return_reason = None
        try:
            name = "the drafter was not swapped"
            await self._event_log.keep_looking(name, lambda: self._look(life), 0.0)
        finally:
            self._end_watch()
            self._abandon_trial()

    async def _look(self, life: EngineLife) -> None:
        if (broken := self._under_way) is not None:
            self._under_way = None
            why = "the engine ended during the swap, or the swap was interrupted"
            message = f"{why}; {self._current.name} is in use"
            hint = f"slipstream doctor {self._event_log.run.id}"
            self._report(broken, "failed", message, hint=hint)
        order = await self._socket.take_order(LOOK_EVERY_SECONDS)
        if order is not None:
            self._end_watch()
            self._under_way = order
            await self._carry_out(order, life)
            self._under_way = None
        elif self._event_log.run.state != "ready":
            return
        elif self._return_reason is not None:
            reason, self._return_reason = self._return_reason, None
            await self._return(life, reason)
        elif self._watch is not None:
            await self._look_at_requests(self._watch, life)
        elif (trial := self._running_trial) is not None:
            # An order came between that was refused, or the drafter was never loaded.
            if self._current.folder == trial.folder:
                if trouble := await self._begin_watch():
                    await self._return(life, trouble)
            else:
                self._end_trial("rolled back", f"{trial.drafter} was not loaded")

    async def _carry_out(self, order: SwapOrder, life: EngineLife) -> None:
        try:
            faults = await asyncio.to_thread(self._find_faults, order)
        except Exception as fault:  # noqa: BLE001 the files of a drafter are a stranger's
            self._report(order, "refused", explain(fault), hint=getattr(fault, "hint", None))
            return
        if faults:
            self._report(order, "refused", f"{faults[0].code}: {faults[0].message}", faults[0].hint)
            return
        if order.trial_seconds is not None:
            self._begin_trial(order, order.trial_seconds)
        self._event_log.note(f"swapping to {order.name}, with a test request before and after")
        try:
            await self._exchange(order, life)
        except Death:
            raise
        except Exception as fault:  # noqa: BLE001
            message = f"{self._current.name} is in use: {explain(fault)}"
            self._report(order, "failed", message, hint="slipstream logs")

    async def _exchange(self, order: SwapOrder, life: EngineLife) -> None:
        """Load the ordered drafter, and keep it if some of its drafts are accepted in the proof."""
        before = await _prove_again(life, self._event_log.folder.ledger)
        result = await self._load(order.folder, life, is_return=False)
        if result.outcome != "swapped":
            outcome = "refused" if result.outcome == "refused" else "failed"
            message = f"the engine refused {order.name}: {result.error}"
            self._report(order, outcome, message, hint=f"slipstream models {order.folder}")
            return
        self._change_drafter(order.name, order.folder)
        try:
            # By the time of another token, all drafts of the old drafter are verified.
            await life.asker.generate(STORY, 1)
            after = await _prove_again(life, self._event_log.folder.ledger)
        except EngineError as fault:
            await self._return(life, fault.message, order=order, result=result)
            return
        # Without drafts, which a controller decides by load, only the requests will tell.
        if before.accepted and after.drafts and not after.accepted:
            why = f"none of {after.drafts} drafts was accepted"
            await self._return(life, why, order=order, proofs=(before, after), result=result)
            return
        message = (
            f"{order.name} is in use: {_show(after)} tokens per step, {_show(before)} before; "
            f"loaded in {1000 * (result.seconds or 0):.0f} ms"
        )
        # Whoever orders the drafter before is not to be overruled by its requests.
        is_back = order.folder in [one.folder for one in self._event_log.run.drafters[-3:-2]]
        trouble = None if is_back else await self._begin_watch()
        if trouble is not None and self._running_trial is not None:
            await self._return(life, trouble, order=order, proofs=(before, after), result=result)
            return
        self._report(order, "swapped", message, proofs=(before, after), result=result)

    async def _begin_watch(self) -> str | None:
        """Compare requests from now on, and return why that cannot be done."""
        run, trial = self._event_log.run, self._running_trial
        left = (trial.until - datetime.now(UTC)).total_seconds() if trial else WATCH_SECONDS
        try:
            self._watch = SwapWatch(self._event_log.folder, run.drafters, self._socket, left)
            await asyncio.to_thread(self._watch.begin)
        except Exception as fault:  # noqa: BLE001 it drafts, compared or not
            self._end_watch()
            message = f"the new drafter cannot be compared with the previous one: {explain(fault)}"
            self._event_log.note(message)
            return message
        return None

    async def _return(
        self,
        life: EngineLife,
        reason: str,
        *,
        order: SwapOrder | None = None,
        proofs: tuple[Proof | None, Proof | None] = (None, None),
        result: DrafterResult | None = None,
    ) -> None:
        self._end_watch()
        previous, left = self._event_log.run.drafters[-2:]
        order = order or SwapOrder(name=left.name, folder=left.folder)
        back = await self._load(previous.folder, life, is_return=True)
        if back.outcome != "swapped":
            message = f"{left.name} stays in use, although {reason}: {back.error}"
            self._report(order, "failed", message, hint=f"slipstream models {previous.folder}")
            return
        self._change_drafter(previous.name, previous.folder)
        message = f"swapped back to {previous.name}: {reason}"
        hint = f"slipstream bench {self._event_log.run.id}"
        self._report(order, "swapped-back", message, hint, proofs=proofs, result=result or back)

    async def _look_at_requests(self, watch: SwapWatch, life: EngineLife) -> None:
        verdict = await asyncio.to_thread(watch.look)
        if verdict is None:
            return
        self._end_watch()
        test = watch.test
        shown = "no requests could be compared"
        if test.means is not None:
            old, new = test.means
            shown = (
                f"{new:.2f} accepted tokens per step, {old:.2f} before, {test.requests} requests"
            )
        on_trial = self._running_trial is not None
        if verdict == "worse" or (on_trial and verdict == "undecided"):
            judged = "worse" if verdict == "worse" else "not shown to be as good"
            await self._return(life, f"it is {judged}: {shown}")
        else:
            judged = "as good as the previous one" if verdict == "as-good" else "kept, undecided"
            self._end_trial("passed", f"{judged}: {shown}")
            figures = {"requests": float(test.requests)}
            self._event_log.note(f"the new drafter is {judged}: {shown}", figures=figures)

    async def _load(self, folder: Path, life: EngineLife, *, is_return: bool) -> DrafterResult:
        """Have the gate load a drafter and wait for its result; end the engine without one."""
        order = DrafterOrder(folder=folder, previous=self._current.folder, is_return=is_return)
        try:
            loading = self._socket.load_drafter(order)
            result = await asyncio.wait_for(loading, GATE_WITHIN_SECONDS)
        except TimeoutError:
            message = (
                f"the gate did not report within {GATE_WITHIN_SECONDS:g} s which drafter serves"
            )
            raise Death(None, message, life.process.poll()) from None
        if result.outcome == "broken":
            raise Death(None, f"no drafter is fully loaded: {result.error}", life.process.poll())
        return result

    def _change_drafter(self, name: str, folder: Path) -> None:
        run, current = self._event_log.run, self._current
        known = run.drafters or (current,)
        added = ServedDrafter(name=name, folder=folder, since=datetime.now(UTC))
        self._event_log.update(
            plan=with_drafter(run.plan, folder, f"swapped in for {current.name}"),
            drafters=(*known, added)[-KEPT_DRAFTERS:],
        )
        self._socket.change_drafter()

    def _report(
        self,
        order: SwapOrder,
        outcome: str,
        message: str,
        hint: str | None = None,
        *,
        proofs: tuple[Proof | None, Proof | None] = (None, None),
        result: DrafterResult | None = None,
    ) -> None:
        """Report an outcome in the events and in the run, where the command waits for it."""
        before, after = (proof.tokens_per_step if proof else None for proof in proofs)
        swap = Swap.model_validate(
            {
                **{"order": order.id, "at": datetime.now(UTC), "outcome": outcome, "hint": hint},
                **{"message": message, "drafter": order.name, "serves": self._current.name},
                "load_seconds": result.seconds if result else None,
                "tokens_per_step_before": before,
                "tokens_per_step_after": after,
            }
        )
        figures = swap.model_dump(include=FIGURES, exclude_none=True)
        if outcome == "swapped" and after is not None:
            measured = {**self._event_log.run.measurements, "tokens_per_step": after}
            self._event_log.update(measurements=measured)
        self._event_log.update(last_swap=swap)
        self._follow_trial(order, outcome, message)
        self._event_log.note(f"swap: {message}", figures=figures)
        self._socket.answer(swap)

    def _find_faults(self, order: SwapOrder) -> list[Fault]:
        faults = list(find_faults(self._event_log.run, order))
        if not faults and order.trial_seconds is not None:
            added = ServedDrafter(name=order.name, folder=order.folder, since=datetime.now(UTC))
            known = self._event_log.run.drafters or (self._current,)
            watch = SwapWatch(self._event_log.folder, (*known, added), self._socket)
            watch.begin()
            watch.close()
            if not watch.test.can_decide:
                what = f"{self._current.name} has served too few requests to compare a trial with"
                hint = "wait for more requests, or leave --trial out"
                faults = [refuse("swap-trial", what, hint)]
        return faults

    @property
    def _running_trial(self) -> SwapTrial | None:
        trial = self._event_log.run.trial
        return trial if trial is not None and trial.state == "running" else None

    def _begin_trial(self, order: SwapOrder, seconds: float) -> None:
        """Write the trial down before anything is changed."""
        now = datetime.now(UTC)
        trial = SwapTrial(
            order=order.id,
            drafter=order.name,
            folder=order.folder,
            before=self._current,
            began_at=now,
            until=now + timedelta(seconds=seconds),
        )
        self._event_log.update(trial=trial)

    def _follow_trial(self, order: SwapOrder, outcome: str, message: str) -> None:
        """End the trial if its drafter is in use no more, or could not be taken back."""
        trial = self._running_trial
        if trial is not None and self._current.folder != trial.folder:
            self._end_trial("rolled back", message)
        elif trial is not None and outcome == "failed" and order.folder == trial.folder:
            self._end_trial("failed", message)

    def _end_trial(self, state: str, message: str) -> None:
        if (trial := self._running_trial) is not None:
            ended = trial.model_copy(update={"state": state, "message": message})
            self._event_log.update(trial=ended)

    def _abandon_trial(self) -> None:
        """Have the next engine start with the drafter before: this one ended during the trial."""
        trial, message = self._running_trial, f"the engine {ENDED_DURING_TRIAL}"
        if trial is not None and self._current.folder == trial.folder:
            self._change_drafter(trial.before.name, trial.before.folder)
            order = SwapOrder(id=trial.order, name=trial.drafter, folder=trial.folder)
            self._report(order, "swapped-back", f"back to {trial.before.name}: {message}")
        self._end_trial("rolled back", message)

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    @property
    def _current(self) -> ServedDrafter:
        return find_current(self._event_log.run)


FIGURES = {"load_seconds", "tokens_per_step_before", "tokens_per_step_after"}


async def _prove_again(life: EngineLife, ledger: Path) -> Proof:
    """Repeat the test request on one prompt, briefly, since other requests are open.

    Its drafts are those of its own line: what vLLM counts is of all, and copies are among it.
    """
    with closing(LedgerReader()) as reader:
        await asyncio.to_thread(lambda: sum(1 for _ in iter(lambda: reader.read_raw(ledger), None)))
        proof = await prove(life.asker, drafts=True, prompts=PROOFS[:1], tokens=PROOF_TOKENS)
        until = time.monotonic() + LINE_WITHIN_SECONDS
        while ledger.exists() and time.monotonic() < until:
            for line in await asyncio.to_thread(reader.read, ledger, LINES_PER_LOOK):
                if (line.key, line.tokens) == (SUPERVISOR_KEY, proof.generation.tokens):
                    return replace(proof, drafts=line.drafts, accepted=sum(line.accepted))
            await asyncio.sleep(LOOK_EVERY_SECONDS)
    return proof


def _show(proof: Proof) -> str:
    return "no" if proof.tokens_per_step is None else f"{proof.tokens_per_step:.2f}"
