"""Blocks are lined up by cell and prompt; what not every block can time drops out."""

from math import exp, log

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Arm, Block, read_blocks


def answer(prompt: str, each: float = 0.02, **changes: object) -> Sample:
    """Make a sample of 101 tokens that begin after 1 s."""
    sample = Sample(
        prompt_id=prompt,
        kind="chat",
        concurrency=1,
        began_at=0,
        seconds=1 + 100 * each,
        first_token_seconds=1,
        output_tokens=101,
    )
    return sample.model_copy(update=changes)


def block(arm: Arm, *samples: Sample, number: int = 0) -> Block:
    return Block(arm=arm, round=number, samples=samples)


def make_round(*samples: Sample) -> list[Block]:
    return [block("A", *samples), block("B", *samples), block("B", *samples), block("A", *samples)]


PAIR = answer("p"), answer("q")
FAILED = answer("p", error="reset", first_token_seconds=None, output_tokens=0)


def test_speeds_are_of_decoding_and_a_prompt_asked_twice_is_averaged() -> None:
    readings = read_blocks(make_round(answer("p", 0.01), answer("p", 0.04), answer("q", 0.03)))
    assert readings.speeds["chat", 1]["p"] == pytest.approx([log(1 / 0.02)] * 4)
    assert readings.speeds["chat", 1]["q"] == pytest.approx([log(1 / 0.03)] * 4)


def test_throughput_is_of_busy_places_with_what_failed_in_it() -> None:
    failed = FAILED.model_copy(update={"seconds": 8})
    load = [one.model_copy(update={"concurrency": 2}) for one in (*PAIR, failed)]
    readings = read_blocks(make_round(*load))
    expected = 2 * 202 / (3 + 3 + 8)
    assert [exp(value) for value in readings.throughputs["chat", 2]] == pytest.approx(
        [expected] * 4
    )


def turn(task: str, number: int, seconds: float, **changes: object) -> Sample:
    """Make a turn that begins when the one before it has ended."""
    began = {"began_at": seconds * (number - 1), "seconds": seconds}
    named = {"prompt_id": f"{task}/{number}", "task": task, "turn": number}
    return answer(task).model_copy(update={**began, **named, **changes})


def test_tasks_are_read_by_their_wall_time_and_throughput_has_what_failed_in_it() -> None:
    done = [turn(task, number, 2.0) for task in "pq" for number in (1, 2, 3)]
    lost = [turn("r", 1, 2.0), turn("r", 2, 2.0, error="reset")]
    readings = read_blocks(make_round(*done, *lost))
    assert set(readings.speeds["chat", 1]) == {"p", "q"}
    assert readings.speeds["chat", 1]["p"] == pytest.approx([log(1 / 6)] * 4)
    assert readings.throughputs["chat", 1] == pytest.approx([log(2 / (6 + 6 + 4))] * 4)


@pytest.mark.parametrize(
    "bad",
    [
        FAILED,
        answer("p", output_tokens=1),
        answer("p", first_token_seconds=None),
        answer("p", seconds=1.0),
        answer("r"),
    ],
    ids=["failed", "one token", "no first token", "all at once", "not asked"],
)
def test_a_prompt_that_one_block_cannot_time_drops_out(bad: Sample) -> None:
    blocks = make_round(*PAIR, answer("o"))
    blocks[2] = block("B", bad, answer("q"), answer("o"))
    assert list(read_blocks(blocks).speeds["chat", 1]) == ["o", "q"]


def test_a_cell_that_one_block_does_not_have_drops_out() -> None:
    other = [answer(name, kind="code") for name in "pq"]
    blocks = make_round(*PAIR, *other)
    blocks[0] = block("A", *PAIR)
    assert list(read_blocks(blocks).speeds) == [("chat", 1)]


@pytest.mark.parametrize("arms", ["", "A", "AB", "AAAA", "BB"])
def test_too_few_blocks_are_refused(arms: str) -> None:
    blocks = [block("A" if arm == "A" else "B", *PAIR) for arm in arms]
    with pytest.raises(InvalidInputError, match="too few starts") as refused:
        read_blocks(blocks)
    assert "A B B A" in refused.value.hint


def test_one_prompt_is_not_enough() -> None:
    with pytest.raises(InvalidInputError, match="no two prompts"):
        read_blocks(make_round(answer("p"), answer("q", kind="code")))
