"""Before anything is trained: is it due, is there text for it, and does it pay."""

import pytest

from slipstream.checkpoints.checkpoint import Checkpoint
from slipstream.learning.deciding import (
    REPLAY_SHARE,
    choose_text,
    estimate_cost,
    find_lack_of_memory,
    find_trigger,
    is_held_out,
    settle_schedule,
    weigh,
)
from slipstream.learning.kept_text import KeptAnswer
from slipstream.steering.guardian import Drift
from slipstream.steering.ledger import SUPERVISOR_KEY
from tests.unit.learning.texts import make
from tests.unit.steering.lines import make as make_line

DRIFT = Drift(
    family="acceptance", where="code", before=0.6, after=0.3, requests=90, times=1, at=1.0
)


def test_what_better_drafts_save_is_weighed_against_training_over_a_week() -> None:
    # 100 s of steps at batch 2 within 1000 s: 50 s of the engine, a tenth better 4.5 s of it.
    lines = [
        make_line(at=1000.0 + 10 * number, seconds=1.5, first_seconds=0.5, batch=2, tokens=30)
        for number in range(100)
    ]
    own = make_line(at=9e9, seconds=0.1, key=SUPERVISOR_KEY, kind="prose")
    worth = weigh([*lines, own], cost_seconds=2000)
    (code,) = worth.kinds
    assert (code.kind, code.token_share, code.tokens_per_step) == ("code", 1.0, 1.0)
    assert code.seconds_per_day == pytest.approx(50 * 86400 / 991.5, rel=0.01)
    assert worth.saved_seconds_per_day == pytest.approx(code.seconds_per_day / 11)
    assert worth.pays
    assert not weigh(lines, cost_seconds=8 * worth.saved_seconds_per_day).pays
    assert not weigh([], cost_seconds=1).pays


def test_enough_new_text_or_a_drift_of_drafts_is_a_trigger_and_no_time_is() -> None:
    assert find_trigger(19_999, 20_000, ()) is None
    assert find_trigger(20_000, 20_000, ()) is not None
    drift = find_trigger(5_000, 20_000, [DRIFT])
    assert drift is not None
    assert "drift" in drift
    assert find_trigger(4_999, 20_000, [DRIFT]) is None
    slow = DRIFT.model_copy(update={"family": "step seconds"})
    assert find_trigger(19_999, 20_000, [slow]) is None


def test_a_question_is_on_the_same_side_in_every_round() -> None:
    answers = [make(number) for number in range(200)]
    first = choose_text(answers, 0, context=512)
    second = choose_text([*answers, *(make(n, at=200) for n in range(300, 400))], 100, context=512)
    assert first is not None
    assert second is not None
    for material in (first, second):
        assert material.held_out
        assert all(map(is_held_out, material.held_out))
        assert not any(map(is_held_out, material.training))
    assert first.sha256 != second.sha256
    assert first.replayed_tokens == 0


def test_older_text_is_two_fifths_of_what_is_trained_on_and_of_every_kind() -> None:
    older = [make(n, kind="prose" if n % 2 else "code", at=50) for n in range(400)]
    newer = [make(n, at=200) for n in range(500, 600)]
    material = choose_text([*older, *newer], 100, context=512)
    assert material is not None
    share = material.replayed_tokens / (material.new_tokens + material.replayed_tokens)
    assert share == pytest.approx(REPLAY_SHARE, abs=0.02)
    again = [one for one in material.training if one.at == 50]
    prose = sum(one.kind == "prose" for one in again)
    assert abs(2 * prose - len(again)) <= 2
    assert material.until == 200


def test_a_loop_of_one_question_counts_twice_at_most() -> None:
    loop = [make(1, at=n, tokens=10 + n) for n in range(100)]
    assert choose_text(loop, 0, context=512) is None
    material = choose_text([*loop, *(make(n) for n in range(2, 60))], 0, context=512)
    assert material is not None
    both = [*material.held_out, *material.training]
    assert sum(one.prompt[2] == 1 for one in both) == 2


@pytest.mark.parametrize("answers", [[], [make(number) for number in range(8)]])
def test_too_little_text_is_none(answers: list[KeptAnswer]) -> None:
    assert choose_text(answers, 0, context=512) is None


def test_the_steps_follow_the_text_and_give_way_to_the_user(
    target: Checkpoint, drafter: Checkpoint
) -> None:
    assert settle_schedule(100, None, seed=0).steps == 50
    assert settle_schedule(64_000, None, seed=0).steps == 1000
    assert settle_schedule(10**9, None, seed=0).steps == 2000
    asked = settle_schedule(64_000, 7, seed=0)
    assert (asked.steps, asked.evaluate_every, asked.compiled) == (7, 1, False)
    assert estimate_cost(1000, asked, target, drafter, ()) > 0


def test_training_needs_memory_beside_the_engine(target: Checkpoint, drafter: Checkpoint) -> None:
    assert find_lack_of_memory(target, drafter, None) is None
    assert find_lack_of_memory(target, drafter, 1 << 45) is None
    assert "GiB are free" in (find_lack_of_memory(target, drafter, 1 << 20) or "")
