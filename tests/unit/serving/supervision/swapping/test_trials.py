"""A drafter on trial stays only if requests show it, whoever dies meanwhile."""

import os
import re
import signal
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slipstream.serving.plugin_settings import leave_trial, with_drafter
from slipstream.serving.run import Run
from slipstream.serving.swaps import ServedDrafter, SwapOrder, SwapTrial
from tests.unit.serving.supervision.fake_engine import Stage
from tests.unit.serving.supervision.swapping.test_swapping import Theatre, log_requests
from tests.unit.vllm_plugin.gate.test_swaps import Client

USUAL, WORSE, BETTER = [25, 9, 2], [3, 0, 0], [29, 20, 12]
Then = Callable[[Theatre, Stage], Awaitable[None]]


async def order(theatre: Theatre, seconds: float) -> None:
    made = SwapOrder(id="trial-1", name="new", folder=theatre.new, trial_seconds=seconds)
    await theatre.stage.say(made)


def find_trial(run: Run) -> SwapTrial:
    assert run.trial is not None
    return run.trial


def try_drafter(theatre: Theatre, then: Then, *, seconds: float = 60, before: int = 150) -> Run:
    """Put the new drafter on trial after some requests, and return the run as it ended."""

    async def act(stage: Stage) -> None:
        log_requests(stage, before, USUAL, after=theatre.run.began_at.timestamp())
        await theatre.until(lambda: time.time() > theatre.run.began_at.timestamp() + 1)
        await order(theatre, seconds)
        await theatre.until(lambda: theatre.run.last_swap is not None)
        await then(theatre, stage)

    theatre.serve(act)
    return theatre.run


async def end_trial(theatre: Theatre, state: str) -> None:
    await theatre.until(lambda: find_trial(theatre.run).state == state)


@pytest.mark.parametrize(
    ("accepted", "seconds", "state"),
    [(BETTER, 60, "passed"), (WORSE, 60, "rolled back"), ([], 1, "rolled back")],
)
def test_requests_decide_and_without_a_decision_in_time_it_is_rolled_back(
    theatre: Theatre, accepted: list[int], seconds: float, state: str
) -> None:

    async def then(theatre: Theatre, stage: Stage) -> None:
        log_requests(stage, 150 if accepted else 0, accepted, after=time.time())
        await end_trial(theatre, state)

    run = try_drafter(theatre, then, seconds=seconds)
    kept = theatre.new if state == "passed" else theatre.old
    assert run.plan.drafter == str(kept)
    assert run.drafters[-1].folder == kept
    trial = find_trial(run)
    assert (trial.order, trial.before.folder) == ("trial-1", theatre.old)
    assert bool(re.search(r"[0-9]+ requests", trial.message)) == bool(accepted)
    assert theatre.stage.folder.read().trial == trial


def test_it_is_written_down_before_the_drafter_is_loaded(theatre: Theatre) -> None:
    seen: list[tuple[str, str | None]] = []

    class Noting(Client):
        async def update_weights(self, request: Any) -> None:
            saved = theatre.stage.folder.read()
            seen.append((find_trial(saved).state, saved.plan.drafter))
            await super().update_weights(request)

    theatre.client = Noting()

    async def then(theatre: Theatre, stage: Stage) -> None:
        await theatre.until(lambda: bool(seen))

    try_drafter(theatre, then)
    assert seen[0] == ("running", str(theatre.old))


def test_an_engine_that_dies_takes_the_drafter_on_trial_along(theatre: Theatre) -> None:

    async def then(theatre: Theatre, stage: Stage) -> None:
        assert find_trial(theatre.run).state == "running"
        os.kill(stage.pid(), signal.SIGKILL)
        await stage.reach("ready", times=2)
        assert theatre.run.plan.drafter == str(theatre.old)

    run = try_drafter(theatre, then)
    assert find_trial(run).state == "rolled back"
    assert run.last_swap is not None
    # So that nobody who has the drafter before back gets the one that was on trial.
    assert (run.last_swap.outcome, run.last_swap.order) == ("swapped-back", "trial-1")
    assert str(theatre.new) not in " ".join(theatre.stage.starts()[1])


def test_only_the_drafter_before_can_be_ordered_during_a_trial_and_ends_it(
    theatre: Theatre, tmp_path: Path
) -> None:
    third = theatre.make(tmp_path / "third")

    async def then(theatre: Theatre, stage: Stage) -> None:
        assert (await theatre.swap(third)).message.startswith("swap-trial: ")
        # What was refused has not ended the watch.
        assert find_trial(theatre.run).state == "running"
        assert (await theatre.swap(theatre.old)).outcome == "swapped"
        assert find_trial(theatre.run).state == "rolled back"
        # Nor is the one who ordered it overruled.
        log_requests(stage, 150, WORSE, after=time.time())
        await theatre.until(lambda: theatre.run.state == "ready")

    run = try_drafter(theatre, then)
    assert run.plan.drafter == str(theatre.old)
    assert [one.folder.name for one in run.drafters] == ["old", "new", "old"]


def test_a_trial_that_goes_on_after_a_refused_order_still_decides(
    theatre: Theatre, tmp_path: Path
) -> None:

    async def then(theatre: Theatre, stage: Stage) -> None:
        await theatre.swap(theatre.make(tmp_path / "third"))
        log_requests(stage, 150, WORSE, after=time.time())
        await end_trial(theatre, "rolled back")

    assert try_drafter(theatre, then).plan.drafter == str(theatre.old)


def test_without_requests_to_compare_with_no_trial_begins(theatre: Theatre) -> None:

    async def then(theatre: Theatre, stage: Stage) -> None:
        pass

    run = try_drafter(theatre, then, before=5)
    assert run.trial is None
    assert run.last_swap is not None
    assert run.last_swap.outcome == "refused"
    assert run.last_swap.message.startswith("swap-trial: ")
    assert theatre.client.loaded == []


def test_the_successor_of_a_killed_supervisor_serves_the_drafter_before(theatre: Theatre) -> None:
    now = datetime.now(UTC)
    run, before = theatre.run, ServedDrafter(name="old", folder=theatre.old, since=now)
    trial = SwapTrial(
        order="1",
        drafter="new",
        folder=theatre.new,
        before=before,
        began_at=now,
        until=now + timedelta(hours=1),
    )
    assert leave_trial(run) == (run.plan, None)
    # It was killed before the drafter was loaded, or after.
    for folder in (theatre.old, theatre.new):
        killed = run.model_copy(update={"trial": trial, "plan": with_drafter(run.plan, folder, "")})
        plan, left = leave_trial(killed)
        assert plan.drafter == str(theatre.old)
        assert left is not None
        assert left.state == "rolled back"
    over = run.model_copy(update={"trial": trial.model_copy(update={"state": "passed"})})
    assert leave_trial(over) == (over.plan, over.trial)
