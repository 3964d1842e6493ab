"""Swaps of a served drafter: ordered by the user, loaded by the gate, tested here.

A drafter of which nothing is accepted, or less than of the one before, is swapped back. The plan of
the run changes with the drafter, so a restart keeps it. A drafter on trial must be shown to be as
good: it is swapped back if that is not known in time, and an engine that ends takes it along.
"""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from slipstream.atomic_files import write_even_if_full
from slipstream.checkpoints.pairing import Fault
from slipstream.errors import EngineError, InvalidInputError, SlipstreamError
from slipstream.records import read_record
from slipstream.serving.supervision.chronicle import Chronicle
from slipstream.serving.supervision.death import Death
from slipstream.serving.supervision.engine_life import EngineLife
from slipstream.serving.supervision.generation import PROOFS, STORY, Proof, prove
from slipstream.serving.supervision.swap_watch import WATCH_SECONDS, SwapWatch
from slipstream.serving.swap_faults import find_current, find_faults
from slipstream.serving.swap_offer import takes_swaps, with_drafter
from slipstream.serving.swaps import GateOrder, GateResult, ServedDrafter, Swap, SwapOrder, Trial

LOOK_EVERY_SECONDS = 0.25
# A gate that says nothing for so long serves a drafter that nobody knows.
GATE_WITHIN_SECONDS = 600.0
KEPT_DRAFTERS = 100
PROOF_TOKENS = 32


class Swapping:
    """Carries out the swap orders of a run one by one, and watches the last one."""

    def __init__(self, chronicle: Chronicle) -> None:
        self._chronicle = chronicle
        self._watch: SwapWatch | None = None
        self._return_reason: str | None = None
        self._under_way: SwapOrder | None = None

    def swap_back(self, reason: str) -> bool:
        """Load the previous drafter again, and return whether there is one.

        One that was swapped back to stays: the drafter before it is the worse one.
        """
        run = self._chronicle.run
        last = run.last_swap
        can_return = last is not None and last.outcome == "swapped" and takes_swaps(run.plan)
        if can_return:
            self._return_reason = reason
        return can_return

    async def follow(self, life: EngineLife) -> None:
        """Look for orders as long as the engine lives; end it if no drafter in it is complete."""
        self._return_reason = None
        if (order := self._under_way) is not None:
            self._under_way = None
            message = f"the engine ended during the swap; {self._current.name} is in use"
            self._tell(order, "failed", message, hint=f"slipstream doctor {self._chronicle.run.id}")
        try:
            while True:
                await asyncio.sleep(LOOK_EVERY_SECONDS)
                try:
                    await self._look(life)
                except (SlipstreamError, OSError) as fault:
                    self._chronicle.note(f"the drafter was not swapped: {fault}")
        finally:
            self._end_watch()
            self._abandon_trial()

    async def _look(self, life: EngineLife) -> None:
        if (order := self._take_order()) is not None:
            self._end_watch()
            self._under_way = order
            await self._obey(order, life)
            self._under_way = None
        elif self._chronicle.run.state != "ready":
            return
        elif self._return_reason is not None:
            reason, self._return_reason = self._return_reason, None
            await self._return(life, reason)
        elif self._watch is not None:
            await self._look_at_requests(self._watch, life)
        elif (trial := self._running_trial) is not None:
            # An order came between that was refused, or the drafter was never loaded.
            if self._current.folder == trial.folder:
                await self._begin_watch(life)
            else:
                self._end_trial("rolled back", f"{trial.drafter} was not loaded")

    def _take_order(self) -> SwapOrder | None:
        """Return an order that is new, once."""
        file = self._chronicle.folder.swap_order
        if not file.is_file():
            return None
        try:
            return read_record(file, SwapOrder, hint="slipstream swap RUN DRAFTER")
        except InvalidInputError as fault:
            self._chronicle.note(f"an order to swap the drafter was ignored: {fault.message}")
            return None
        finally:
            file.unlink(missing_ok=True)

    async def _obey(self, order: SwapOrder, life: EngineLife) -> None:
        try:
            faults = await asyncio.to_thread(self._find_faults, order)
        except (SlipstreamError, OSError) as fault:
            self._tell(order, "refused", str(fault), hint=getattr(fault, "hint", None))
            return
        if faults:
            self._tell(order, "refused", f"{faults[0].code}: {faults[0].message}", faults[0].hint)
            return
        if order.trial_seconds is not None:
            self._begin_trial(order, order.trial_seconds)
        self._chronicle.note(f"swapping to {order.name}, with a test request before and after")
        try:
            await self._exchange(order, life)
        except (EngineError, OSError) as fault:
            self._tell(order, "failed", f"the drafter was kept: {fault}", hint="slipstream logs")

    async def _exchange(self, order: SwapOrder, life: EngineLife) -> None:
        """Load the ordered drafter, and keep it if some of its drafts are accepted in the proof."""
        before = await _prove_again(life)
        result = await self._load(order.folder, life, is_return=False)
        if result.outcome != "swapped":
            outcome = "refused" if result.outcome == "refused" else "failed"
            message = f"the engine refused {order.name}: {result.error}"
            self._tell(order, outcome, message, hint=f"slipstream models {order.folder}")
            return
        self._change_drafter(order.name, order.folder)
        try:
            # By the time of another token, all drafts of the old drafter are verified.
            await life.asker.generate(STORY, 1)
            after = await _prove_again(life)
        except EngineError as fault:
            await self._return(life, fault.message, order=order, result=result)
            return
        # Without drafts, which a controller decides by load, only the requests will tell.
        if before.accepted and after.drafts and not after.accepted:
            why = f"none of {after.drafts} drafts was accepted"
            await self._return(life, why, order=order, proofs=(before, after), result=result)
            return
        message = (
            f"{order.name} drafts: {_show(after)} tokens per step, {_show(before)} before; it was "
            f"loaded within {1000 * (result.seconds or 0):.0f} ms"
        )
        self._tell(order, "swapped", message, proofs=(before, after), result=result)
        # Whoever orders the drafter before is not to be overruled by its requests.
        if order.folder not in [one.folder for one in self._chronicle.run.drafters[-3:-2]]:
            await self._begin_watch(life)

    async def _begin_watch(self, life: EngineLife) -> None:
        """Compare requests from now on; a trial for which that cannot be done has failed."""
        run, trial = self._chronicle.run, self._running_trial
        left = (trial.until - datetime.now(UTC)).total_seconds() if trial else WATCH_SECONDS
        watch = SwapWatch(self._chronicle.engine_folder, run.drafters, left)
        self._watch = watch
        try:
            await asyncio.to_thread(watch.begin)
        except OSError as fault:
            self._end_watch()
            message = f"the new drafter cannot be compared with the previous one: {fault}"
            self._chronicle.note(message)
            if trial is not None:
                await self._return(life, message)

    async def _return(
        self,
        life: EngineLife,
        reason: str,
        *,
        order: SwapOrder | None = None,
        proofs: tuple[Proof | None, Proof | None] = (None, None),
        result: GateResult | None = None,
    ) -> None:
        """Load the previous drafter again, and report why."""
        self._end_watch()
        previous, left = self._chronicle.run.drafters[-2:]
        order = order or SwapOrder(name=left.name, folder=left.folder)
        back = await self._load(previous.folder, life, is_return=True)
        if back.outcome != "swapped":
            message = f"{left.name} stays in use, although {reason}: {back.error}"
            self._tell(order, "failed", message, hint=f"slipstream models {previous.folder}")
            return
        self._change_drafter(previous.name, previous.folder)
        message = f"swapped back to {previous.name}: {reason}"
        hint = f"slipstream bench {self._chronicle.run.id}"
        self._tell(order, "swapped-back", message, hint, proofs=proofs, result=result or back)

    async def _look_at_requests(self, watch: SwapWatch, life: EngineLife) -> None:
        verdict = await asyncio.to_thread(watch.look)
        if verdict is None:
            return
        self._end_watch()
        test = watch.test
        shown = "no request could be compared"
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
            self._chronicle.note(f"the new drafter is {judged}: {shown}", figures=figures)

    async def _load(self, folder: Path, life: EngineLife, *, is_return: bool) -> GateResult:
        """Have the gate load a drafter and wait for its result; end the engine without one."""
        place = self._chronicle.engine_folder
        order = GateOrder(folder=folder, previous=self._current.folder, is_return=is_return)
        write_even_if_full(place.swap, order.to_json().encode())
        deadline = time.monotonic() + GATE_WITHIN_SECONDS
        while (result := _read_result(place.swapped, order)) is None:
            if time.monotonic() > deadline:
                message = (
                    f"the gate did not report within {GATE_WITHIN_SECONDS:g} s which drafter serves"
                )
                raise Death(None, message, life.process.poll())
            await asyncio.sleep(LOOK_EVERY_SECONDS)
        if result.outcome == "broken":
            raise Death(None, f"no drafter is complete: {result.error}", life.process.poll())
        return result

    def _change_drafter(self, name: str, folder: Path) -> None:
        """Save in the run which drafter serves from now on."""
        run, current = self._chronicle.run, self._current
        known = run.drafters or (current,)
        added = ServedDrafter(name=name, folder=folder, since=datetime.now(UTC))
        self._chronicle.update(
            plan=with_drafter(run.plan, folder, f"swapped in for {current.name}"),
            drafters=(*known, added)[-KEPT_DRAFTERS:],
        )

    def _tell(
        self,
        order: SwapOrder,
        outcome: str,
        message: str,
        hint: str | None = None,
        *,
        proofs: tuple[Proof | None, Proof | None] = (None, None),
        result: GateResult | None = None,
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
            measured = {**self._chronicle.run.measurements, "tokens_per_step": after}
            self._chronicle.update(measurements=measured)
        self._chronicle.update(last_swap=swap)
        self._follow_trial(order, outcome, message)
        self._chronicle.note(f"swap: {message}", figures=figures)

    def _find_faults(self, order: SwapOrder) -> list[Fault]:
        faults = list(find_faults(self._chronicle.run, order))
        if not faults and order.trial_seconds is not None:
            added = ServedDrafter(name=order.name, folder=order.folder, since=datetime.now(UTC))
            known = self._chronicle.run.drafters or (self._current,)
            watch = SwapWatch(self._chronicle.engine_folder, (*known, added))
            watch.begin()
            watch.close()
            if not watch.test.can_decide:
                what = f"{self._current.name} has served too few requests to compare a trial with"
                hint = "wait for more requests, or leave --trial out"
                faults = [Fault(code="swap-trial", verdict="refuse", message=what, hint=hint)]
        return faults

    @property
    def _running_trial(self) -> Trial | None:
        trial = self._chronicle.run.trial
        return trial if trial is not None and trial.state == "running" else None

    def _begin_trial(self, order: SwapOrder, seconds: float) -> None:
        """Write the trial down before anything is changed."""
        now = datetime.now(UTC)
        trial = Trial(
            order=order.id,
            drafter=order.name,
            folder=order.folder,
            before=self._current,
            began_at=now,
            until=now + timedelta(seconds=seconds),
        )
        self._chronicle.update(trial=trial)

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
            self._chronicle.update(trial=ended)

    def _abandon_trial(self) -> None:
        """Have the next engine start with the drafter before: this one ended during the trial."""
        trial, message = self._running_trial, "the engine ended during the trial"
        if trial is not None and self._current.folder == trial.folder:
            self._change_drafter(trial.before.name, trial.before.folder)
            order = SwapOrder(id=trial.order, name=trial.drafter, folder=trial.folder)
            self._tell(order, "swapped-back", f"back to {trial.before.name}: {message}")
        self._end_trial("rolled back", message)

    def _end_watch(self) -> None:
        """Close the ledger."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    @property
    def _current(self) -> ServedDrafter:
        return find_current(self._chronicle.run)


FIGURES = {"load_seconds", "tokens_per_step_before", "tokens_per_step_after"}


async def _prove_again(life: EngineLife) -> Proof:
    """Repeat the test request on one prompt, briefly, since other requests are open."""
    return await prove(life.asker, drafts=True, prompts=PROOFS[:1], tokens=PROOF_TOKENS)


def _read_result(path: Path, order: GateOrder) -> GateResult | None:
    try:
        result = read_record(path, GateResult, hint="slipstream logs")
    except InvalidInputError:
        return None
    return result if result.order == order.order else None


def _show(proof: Proof) -> str:
    return "no" if proof.tokens_per_step is None else f"{proof.tokens_per_step:.2f}"
