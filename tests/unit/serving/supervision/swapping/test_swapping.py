"""A run gets another drafter while it serves, and keeps it only if it drafts as well."""

import asyncio
import os
import signal
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.hardware import Host
from slipstream.planning.settings import Choice
from slipstream.serving.access.gate_file import GateSettings
from slipstream.serving.plugin_settings import BACKEND, TRANSFER
from slipstream.serving.run import Run, Terms
from slipstream.serving.supervision import supervisor
from slipstream.serving.supervision.swapping import swapping
from slipstream.serving.supervision.swapping.swap_checks import find_faults
from slipstream.serving.swaps import Swap, SwapOrder
from slipstream.steering.ledger import SUPERVISOR_KEY
from slipstream.steering.state import SteeringOrder
from slipstream.vllm_plugin.gate.run_link import RunLink
from tests.unit.checkpoints.folders import (
    LLAMA,
    LLAMA_TENSORS,
    TOKENIZER,
    Table,
    drafter_tensors,
    write_checkpoint,
)
from tests.unit.checkpoints.pairs import NATIVE
from tests.unit.serving.supervision.fake_engine import Peer, Stage, until
from tests.unit.steering.lines import write as write_line
from tests.unit.vllm_plugin.gate.test_swaps import Client

WORDS = (TRANSFER, f'{{"backend": "{BACKEND}"}}')
Act = Callable[[Stage], Coroutine[None, None, Any]]


class Theatre:
    """A stage whose engine has a target, an old and a new drafter on disk, and a gate."""

    def __init__(self, folder: Path, host: Host, terms: Terms | None = None) -> None:
        self.stage = Stage(folder, host, words=WORDS, terms=terms)
        target = write_checkpoint(
            folder / "target", LLAMA, tensors=LLAMA_TENSORS, tokenizer=TOKENIZER
        )
        self.old, self.new = self.make(folder / "old"), self.make(folder / "new")
        plan = self.stage.run.plan
        assert plan.speculation is not None
        drafter = {"drafter": Choice(str(self.old), "user", "requested")}
        plan = plan.change(
            model=Choice(str(target), "user", "requested"),
            speculation=plan.speculation.model_copy(update=drafter),
            context=Choice(1024, "user", "requested"),
        )
        self.stage.event_log.update(plan=plan)
        self.client = Client()

    def make(self, folder: Path, config: Table = NATIVE) -> Path:
        return write_checkpoint(folder, config, tensors=drafter_tensors(NATIVE))

    @property
    def run(self) -> Run:
        return self.stage.run

    async def order(self, folder: Path) -> Peer:
        return await self.stage.say(SwapOrder(name=folder.name, folder=folder))

    async def swap(self, folder: Path) -> Swap:
        """Order a drafter as the command does, and return what became of it."""
        swap = await (await self.order(folder)).hear(Swap)
        assert isinstance(swap, Swap)
        assert swap == self.run.last_swap
        return swap

    async def until(self, condition: Callable[[], bool]) -> None:
        await until(condition, self.stage.messages)

    def serve(self, act: Act) -> Any:
        """Serve with a gate that follows the orders of each engine, and return what `act` does."""

        async def play(stage: Stage) -> Any:
            await stage.reach("ready")
            gate = RunLink(GateSettings(socket=stage.folder.socket))
            gate.start({"app": SimpleNamespace(state=SimpleNamespace(engine_client=self.client))})
            await self.until(lambda: gate.readiness.state == "ready")
            try:
                return await act(stage)
            finally:
                gate.close()

        return self.stage.serve(play)

    def serve_and_swap(self) -> Swap:
        swap: Swap = self.serve(lambda _: self.swap(self.new))
        return swap


class Noisy(Client):
    """An engine's client; of the new drafter's drafts nothing is accepted."""

    def __init__(
        self, theatre: Theatre, fault: Callable[[dict[str, Any]], bool] = lambda _: False
    ) -> None:
        super().__init__(fault)
        self.noise, self.noisy = theatre.stage.fake / "noise", str(theatre.new)

    async def update_weights(self, request: Any) -> None:
        await super().update_weights(request)
        self.noise.unlink(missing_ok=True)
        if self.loaded[-1:] == [self.noisy]:
            self.noise.touch()


def test_a_new_drafter_is_loaded_proven_and_kept_in_the_plan(theatre: Theatre) -> None:
    swap = theatre.serve_and_swap()
    assert (swap.outcome, swap.tokens_per_step_before, swap.tokens_per_step_after) == (
        *("swapped", 2.0, 2.0),
    )
    assert swap.load_seconds is not None
    assert theatre.client.loaded == [str(theatre.new)]
    run = theatre.run
    assert run.plan.drafter == str(theatre.new)
    assert [one.folder for one in run.drafters] == [theatre.old, theatre.new]
    assert run.drafters[0].since < run.drafters[1].since
    assert theatre.stage.folder.read() == run
    (event,) = [event for event in theatre.stage.events if "swap: " in event.message]
    assert event.figures["tokens_per_step_after"] == 2.0
    assert "is in use: 2.00 tokens per step, 2.00 before" in event.message


def test_a_restart_keeps_the_new_drafter_and_repeats_no_order(theatre: Theatre) -> None:

    async def act(stage: Stage) -> None:
        await theatre.swap(theatre.new)
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.reach("ready", times=2)

    theatre.serve(act)
    first, second = (" ".join(start) for start in theatre.stage.starts())
    assert str(theatre.old) in first
    assert str(theatre.new) in second
    assert str(theatre.old) not in second


def test_a_drafter_of_which_nothing_is_accepted_is_swapped_back(theatre: Theatre) -> None:
    theatre.client = Noisy(theatre)
    swap = theatre.serve_and_swap()
    assert swap.outcome == "swapped-back"
    assert "none of 1 drafts was accepted" in swap.message
    assert (swap.tokens_per_step_before, swap.tokens_per_step_after) == (2.0, 1.0)
    assert theatre.client.loaded == [str(theatre.new), str(theatre.old)]
    assert theatre.run.plan.drafter == str(theatre.old)
    assert [one.folder.name for one in theatre.run.drafters] == ["old", "new", "old"]
    assert theatre.run.measurements["tokens_per_step"] == 2.0


def test_accepted_copies_of_others_are_none_of_the_new_drafters(theatre: Theatre) -> None:

    async def act(stage: Stage) -> Swap:
        own = {"key": SUPERVISOR_KEY, "tokens": swapping.PROOF_TOKENS, "cached_tokens": 0}

        async def write_lines() -> None:
            while True:
                accepted = [0, 0, 0] if theatre.client.loaded else [20, 9, 0]
                with stage.folder.ledger.open("ab") as ledger:
                    ledger.write(write_line(accepted=accepted, **own))
                await asyncio.sleep(0.02)

        writing = asyncio.create_task(write_lines())
        try:
            return await theatre.swap(theatre.new)
        finally:
            writing.cancel()

    swap = theatre.serve(act)
    assert swap.outcome == "swapped-back"
    assert "none of 29 drafts was accepted" in swap.message
    assert (swap.tokens_per_step_before, swap.tokens_per_step_after) == (2.0, 1.0)


def test_a_drafter_before_that_is_gone_cannot_come_back(theatre: Theatre) -> None:
    theatre.client = Noisy(theatre, lambda info: info["folder"].endswith("old"))
    swap = theatre.serve_and_swap()
    assert (swap.outcome, swap.serves) == ("failed", "new")
    assert "new stays in use, although none of 1 drafts was accepted" in swap.message


def test_a_drafter_that_the_engine_refuses_changes_nothing(theatre: Theatre) -> None:
    theatre.client = Client(lambda info: info["folder"].endswith("new"))
    assert theatre.serve_and_swap().outcome == "refused"
    assert theatre.run.plan.drafter == str(theatre.old)
    assert theatre.run.drafters == ()


def test_a_drafter_that_could_not_be_loaded_leaves_the_one_before(theatre: Theatre) -> None:
    theatre.client = Client(lambda info: info["folder"].endswith("new") and not info["check_only"])
    assert theatre.serve_and_swap().outcome == "failed"
    assert theatre.client.loaded == [str(theatre.old)]
    assert theatre.run.plan.drafter == str(theatre.old)


def test_an_engine_with_half_a_drafter_is_replaced(theatre: Theatre) -> None:
    theatre.client = Client(lambda info: not info["check_only"])

    async def act(stage: Stage) -> None:
        await theatre.order(theatre.new)
        await stage.reach("ready", times=2)

    theatre.serve(act)
    assert "no drafter is fully loaded" in theatre.stage.messages()
    assert theatre.run.last_swap is not None
    assert theatre.run.last_swap.outcome == "failed"
    assert "the engine ended during the swap" in theatre.run.last_swap.message
    assert theatre.run.restarts == 1
    assert theatre.run.plan.drafter == str(theatre.old)


def log_requests(
    stage: Stage, count: int, accepted: list[int], *, after: float, key: str | None = None
) -> None:
    """Have the engine's core write requests that began and ended after a time."""
    with stage.folder.ledger.open("ab") as ledger:
        for number in range(count):
            at = after + 0.5 + number / 1000
            times = {"at": at, "seconds": 0.1}
            ledger.write(write_line(**times, accepted=accepted, cached_tokens=0, key=key))


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [([3, 0, 0], "swapped back to"), ([29, 20, 12], "the new drafter is as good")],
)
def test_the_requests_after_a_swap_decide_whether_it_stays(
    theatre: Theatre, accepted: list[int], expected: str
) -> None:

    async def act(stage: Stage) -> None:
        log_requests(stage, 150, [25, 9, 2], after=theatre.run.began_at.timestamp())
        await theatre.swap(theatre.new)
        log_requests(stage, 150, accepted, after=time.time())
        await theatre.until(lambda: expected in stage.messages())

    theatre.serve(act)
    back = expected == "swapped back to"
    assert theatre.run.plan.drafter == str(theatre.old if back else theatre.new)
    assert theatre.run.last_swap is not None
    assert theatre.run.last_swap.outcome == ("swapped-back" if back else "swapped")
    if back:
        assert "0.10 accepted tokens per step, 1.20 before" in theatre.run.last_swap.message


def test_a_drafter_that_returned_is_known_by_all_that_it_served(
    theatre: Theatre, tmp_path: Path
) -> None:
    theatre.client = Noisy(theatre)
    third = theatre.make(tmp_path / "third")

    async def act(stage: Stage) -> None:
        log_requests(stage, 150, [25, 9, 2], after=theatre.run.began_at.timestamp())
        assert (await theatre.swap(theatre.new)).outcome == "swapped-back"
        await theatre.swap(third)
        log_requests(stage, 150, [3, 0, 0], after=time.time())
        await theatre.until(lambda: "accepted tokens per step" in stage.messages())

    theatre.serve(act)
    assert [one.folder.name for one in theatre.run.drafters] == [
        "old",
        "new",
        "old",
        "third",
        "old",
    ]


def test_other_bounds_of_the_draft_length_end_the_comparison(theatre: Theatre) -> None:

    async def act(stage: Stage) -> None:
        log_requests(stage, 150, [25, 9, 2], after=theatre.run.began_at.timestamp())
        await theatre.swap(theatre.new)
        await stage.say(SteeringOrder(most=1))
        await theatre.until(lambda: "kept, undecided" in stage.messages())

    theatre.serve(act)
    assert theatre.run.plan.drafter == str(theatre.new)


def test_without_requests_of_others_before_it_a_drafter_is_kept(theatre: Theatre) -> None:

    async def act(stage: Stage) -> None:
        began = theatre.run.began_at.timestamp()
        log_requests(stage, 150, [25, 9, 2], after=began, key="supervisor")
        await theatre.swap(theatre.new)
        await theatre.until(lambda: "kept, undecided" in stage.messages())

    theatre.serve(act)
    assert theatre.run.plan.drafter == str(theatre.new)


def test_another_part_of_the_supervisor_can_have_the_drafter_before_back(
    theatre: Theatre, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[swapping.Swapping] = []

    class Kept(swapping.Swapping):
        def __init__(self, *how: Any) -> None:
            super().__init__(*how)
            made.append(self)

    monkeypatch.setattr(supervisor, "Swapping", Kept)

    async def act(stage: Stage) -> None:
        assert not made[0].swap_back("nothing served before")
        await theatre.swap(theatre.new)
        assert made[0].swap_back("acceptance fell")
        await theatre.until(lambda: "acceptance fell" in stage.messages())
        assert not made[0].swap_back("the worse one served before")

    theatre.serve(act)
    assert theatre.run.plan.drafter == str(theatre.old)


def test_a_second_order_waits_a_third_is_refused_and_one_that_was_given_up_is_none(
    theatre: Theatre, tmp_path: Path
) -> None:
    going = asyncio.Event()
    third = theatre.make(tmp_path / "third")

    async def wait(_: Any) -> None:
        await going.wait()

    async def act(stage: Stage) -> None:
        theatre.client.before_load = wait
        first = await theatre.order(theatre.new)
        await theatre.until(lambda: "check" in theatre.client.calls)
        second = await theatre.order(third)
        await asyncio.sleep(0.1)
        refused = await (await theatre.order(third)).hear(Swap)
        assert isinstance(refused, Swap)
        assert refused.outcome == "refused"
        second.writer.close()
        await asyncio.sleep(0.1)
        going.set()
        done = await first.hear(Swap)
        assert isinstance(done, Swap)
        assert done.outcome == "swapped"
        await asyncio.sleep(0.1)

    theatre.serve(act)
    assert theatre.client.loaded == [str(theatre.new)]


@pytest.mark.parametrize(
    ("where", "outcome"),
    [("find_faults", "refused"), ("_prove_again", "failed"), ("SwapWatch", "swapped")],
)
def test_no_fault_of_a_swap_ends_an_engine_that_serves(
    theatre: Theatre,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    outcome: str,
) -> None:
    found = list[Swap]()

    def fail(*_: Any) -> None:
        raise RecursionError("of a header of deep brackets")

    async def act(stage: Stage) -> None:
        monkeypatch.setattr(swapping, where, fail)
        found.append(await theatre.swap(theatre.new))
        monkeypatch.undo()
        monkeypatch.setattr(swapping, "LOOK_EVERY_SECONDS", 0.01)
        found.append(await theatre.swap(theatre.make(tmp_path / "another")))

    theatre.serve(act)
    assert [swap.outcome for swap in found] == [outcome, "swapped"]
    assert "RecursionError" in theatre.stage.messages()
    assert theatre.run.restarts == 0
    assert theatre.stage.count_starts() == 1


def test_what_does_not_fit_is_refused_with_its_code(theatre: Theatre, tmp_path: Path) -> None:
    run = theatre.run.model_copy(update={"state": "ready"})

    def find(folder: Path, changed: Run = run) -> list[str]:
        return [fault.code for fault in find_faults(changed, SwapOrder(name="n", folder=folder))]

    assert find(theatre.new) == []
    other = theatre.make(tmp_path / "other", NATIVE | {"block_size": 16})
    assert find(other) == ["swap-settings"]
    assert "vocabulary-size" in find(theatre.make(tmp_path / "wide", NATIVE | {"vocab_size": 7}))
    assert find(theatre.old) == ["swap-same"]
    assert find(theatre.new, run.model_copy(update={"state": "warming"})) == ["swap-unavailable"]
    plain = run.plan.change(rest={})
    assert find(theatre.new, run.model_copy(update={"plan": plain})) == ["swap-unavailable"]
    open_run = run.model_copy(update={"terms": Terms(gated=False)})
    assert find(theatre.new, open_run) == ["swap-unavailable"]
