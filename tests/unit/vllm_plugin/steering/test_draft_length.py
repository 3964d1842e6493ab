"""The chosen widths against every fixed one, on recorded steps and drafts of a real engine."""

from math import exp, log
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest

from slipstream.vllm_plugin.steering.draft_length import DraftLength, MeasuredStep, list_lengths
from slipstream.vllm_plugin.steering.step_costs import StepWork
from tests.unit.vllm_plugin.steering.replay import LONGEST, Replay, measure

ALL = range(LONGEST + 1)
SEEDS = (1, 2, 3)
CODE, PROSE, MIX = ("code",), ("prose",), ("code", "prose")


def rate(lengths: range | list[int], kinds: tuple[str, ...], requests: int) -> float:
    """Return the mean tokens per second of runs of a minute, counted from the first step."""
    runs = [measure(lengths, kinds, requests, seconds=60, seed=seed) for seed in SEEDS]
    return fmean(run.tokens / run.seconds for run in runs)


@pytest.mark.parametrize("kinds", [CODE, PROSE, MIX], ids="+".join)
def test_it_is_as_fast_as_plain_and_about_as_the_best_length(kinds: tuple[str, ...]) -> None:
    against_plain, against_best = [], []
    for requests in (1, 4, 16, 32):
        fixed = {length: rate([length], kinds, requests) for length in (0, 1, 3, 7)}
        chosen = rate(ALL, kinds, requests)
        against_plain.append(chosen / fixed[0])
        against_best.append(chosen / max(fixed.values()))
    assert min(against_plain) > 0.96
    assert min(against_best) > 0.92
    assert exp(fmean(map(log, against_best))) > 0.97


def test_where_drafts_pay_they_are_made_and_cut_where_they_cost() -> None:
    alone, crowd = (measure(ALL, CODE, requests, seconds=60, seed=1) for requests in (1, 8))
    whole = measure([LONGEST], CODE, 8, seconds=60, seed=1)
    assert alone.tokens > 1.6 * measure([0], CODE, 1, seconds=60, seed=1).tokens
    assert alone.control.price < crowd.control.price
    assert crowd.verified / crowd.tokens < 0.5 * whole.verified / whole.tokens


@pytest.mark.parametrize("requests", [2, 8, 32])
def test_tries_cost_less_than_a_hundredth_from_the_first_step(requests: int) -> None:
    runs = [measure(ALL, PROSE, requests, seconds=120, seed=seed) for seed in SEEDS]
    assert fmean(run.control.lost / run.control.seconds for run in runs) < 0.01


def test_a_load_that_changes_is_served_no_slower_than_plain() -> None:
    loads = [(1, CODE), (16, PROSE), (2, PROSE), (8, CODE), (4, MIX), (32, MIX)]
    found = []
    for lengths in (ALL, [0]):
        replay = Replay(DraftLength(lengths), CODE)
        for requests, kinds in loads * 2:
            replay.kinds = kinds
            replay.run(requests, 16)
        found.append(replay.tokens / replay.seconds)
    assert found[0] > found[1]


def test_a_machine_that_halves_its_speed_changes_no_choice_for_the_worse() -> None:
    replay = Replay(DraftLength(ALL), CODE)
    replay.run(2, 60)
    usual = replay.engine.time
    replay.engine.time = lambda *work, **size: 2 * usual(*work, **size)  # type: ignore[method-assign]
    before = replay.tokens
    replay.run(2, 60)
    assert replay.tokens - before > 1.4 * measure([0], CODE, 2, seconds=60, seed=1).tokens


def test_a_stall_does_not_exclude_drafts() -> None:
    replay = Replay(DraftLength(ALL), CODE)
    usual, stalls = replay.engine.time, iter([8.0] * 3)

    def stall(sequences: int, *, prompt: int = 0, verified: int = 0, width: int = 0) -> float:
        taken = usual(sequences, prompt=prompt, verified=verified, width=width)
        return next(stalls, 1.0) * taken if width else taken

    replay.engine.time = stall  # type: ignore[method-assign]
    replay.run(1, 120)
    assert replay.tokens > 1.4 * measure([0], CODE, 1, seconds=120, seed=1).tokens


def test_an_order_is_followed_at_once() -> None:
    control = DraftLength(ALL)
    control.least, control.most = 2, 3
    assert {control.choose(1) for _ in range(50)} <= {2, 3}
    control.least = control.most = 9
    assert control.choose(1) == 0


def test_it_begins_with_the_planned_length_and_else_with_none() -> None:
    assert DraftLength(ALL, [7, 5, 5, 2]).choose(2) == 5
    assert DraftLength([3, 7], [7, 7, 3]).choose(8) == 3
    assert DraftLength(ALL).choose(2) == 0


def test_steps_with_prompts_and_mixed_lengths_are_learnt_from() -> None:
    control = DraftLength(ALL)
    control.observe(
        MeasuredStep(StepWork(3, prompt=200, verified=9, width=4, rows=4), tokens=5, seconds=0.4)
    )
    assert control.costs.steps == 1
    assert control.used == {4: 1}


def test_drafts_that_are_better_than_those_before_are_soon_made_again() -> None:
    replay = Replay(DraftLength(ALL), CODE)
    usual = replay.engine.draft
    replay.engine.draft = lambda kind, width: ((0.04,) * width, 0)  # type: ignore[method-assign]
    replay.run(1, 60)
    assert replay.control.used[0] > 0.8 * replay.control.used.total()
    replay.engine.draft = usual  # type: ignore[method-assign]
    before = replay.tokens
    replay.run(1, 60)
    assert replay.tokens - before > 1.4 * measure([0], CODE, 1, seconds=60, seed=1).tokens


@pytest.mark.parametrize(
    ("schedule", "lengths"),
    [
        ([0, 15, 15, 7, 3], [3, 7, 15]),
        ([0, 15, 7, 0], [0, 7, 15]),
        ([0, 15, 15], [15]),
        (None, [15]),
    ],
)
def test_with_graphs_only_lengths_of_batches_are_chosen(
    schedule: list[int] | None, lengths: list[int]
) -> None:
    assert list_lengths(make_config(), 15, schedule, {}) == lengths


def test_the_length_is_fixed_on_request_and_where_ranks_have_to_draft_alike() -> None:
    schedule = [0, 15, 7]
    fixed = {"SLIPSTREAM_DRAFT_LENGTH": "fixed"}
    assert list_lengths(make_config(), 15, schedule, fixed) == [15]
    assert list_lengths(make_config(ranks=2), 15, schedule, {}) == [15]
    assert list_lengths(make_config(graphs=False), 3, None, {}) == [0, 1, 2, 3]


def make_config(*, ranks: int = 1, graphs: bool = True) -> Any:
    """Return what is looked at of vLLM's configuration on a GPU."""
    mode = SimpleNamespace(has_full_cudagraphs=lambda: graphs)
    return SimpleNamespace(
        parallel_config=SimpleNamespace(data_parallel_size=ranks),
        compilation_config=SimpleNamespace(cudagraph_mode=mode),
        use_v2_model_runner=True,
    )
