"""Blocks of several arms become a verdict: who is fastest where, and who may be."""

from dataclasses import replace

import pytest

from slipstream.errors import InvalidInputError
from slipstream.hardware.machine_watch import MachineLoad
from slipstream.measuring.comparing.blocks import Block
from slipstream.measuring.comparing.design import list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.ranking import rank
from slipstream.measuring.comparing.verdict import ArenaVerdict
from tests.unit.measuring.comparing.simulated_server import Server, measure
from tests.unit.measuring.comparing.test_judging import QUIET, change, codes, fail, wait_long

ARMS = ("plain", "dflash", "ngram", "eagle3")
MIXED = replace(
    QUIET,
    speed_up=lambda kind, concurrency: 1.5,
    others={
        "C": lambda kind, concurrency: 2.4 if kind == "code" else 0.8,
        "D": lambda kind, concurrency: 1.3,
    },
)


def rank_all(blocks: list[Block], draws: int = 300) -> ArenaVerdict:
    return rank(blocks, arms=ARMS, draws=draws)


def contenders(verdict: ArenaVerdict, kind: str | None, concurrency: int) -> tuple[str, ...]:
    return next(
        place.contenders
        for place in verdict.places
        if (place.kind, place.concurrency) == (kind, concurrency)
    )


def test_each_kind_has_its_winner_and_every_pair_its_ratio() -> None:
    verdict = rank_all(measure(MIXED, 1, *list_rounds(4, 1)))
    assert contenders(verdict, "chat", 1) == contenders(verdict, "chat", 8) == ("dflash",)
    assert contenders(verdict, "code", 1) == contenders(verdict, "code", 8) == ("ngram",)
    assert len(verdict.pairs) == 6
    true = {"plain": 1.0, "dflash": 1.5, "ngram": 2.4, "eagle3": 1.3}
    for pair in verdict.pairs:
        found = next(one for one in pair.findings if (one.kind, one.concurrency) == ("code", 8))
        expected = true[pair.arms[1]] / true[pair.arms[0]]
        assert found.speed_up.ratio == pytest.approx(expected, rel=0.02)
        assert found.speed_up.low < expected < found.speed_up.high
    assert verdict.answer == "it depends"
    assert verdict.sentence.startswith("At concurrency 1 and 8 dflash is fastest for chat (1.5")
    assert (verdict.blocks, verdict.cautions) == (8, ())


def test_the_same_blocks_and_seed_give_the_same_record_and_it_loads_back() -> None:
    blocks = measure(MIXED, 1, *list_rounds(4, 1))
    verdict = rank_all(blocks)
    assert rank_all(blocks) == verdict
    assert ArenaVerdict.model_validate_json(verdict.to_json()) == verdict
    assert rank(blocks, arms=ARMS, draws=300, seed=1) != verdict


def test_arms_that_cannot_be_told_from_the_best_are_contenders_and_no_others() -> None:
    equal = replace(MIXED, others={**MIXED.others, "D": lambda kind, concurrency: 1.5})
    verdict = rank_all(measure(equal, 2, *list_rounds(4, 1)))
    assert set(contenders(verdict, "chat", 1)) == {"dflash", "eagle3"}
    assert contenders(verdict, "code", 1) == ("ngram",)
    assert verdict.places[0].winner is None


def test_arms_known_to_be_equal_are_even_and_need_no_more_blocks() -> None:
    equal = replace(MIXED, others={arm: lambda kind, concurrency: 1.5 for arm in "CD"})
    verdict = rank_all(measure(equal, 3, *list_rounds(4, 3)))
    assert {place.even for place in verdict.places} == {True}
    assert "dflash, eagle3 and ngram are within 5 % of each other" in verdict.sentence
    assert (verdict.answer, verdict.more_blocks) == ("cannot tell", None)


def test_intervals_of_more_arms_are_wider_because_they_hold_for_more_pairs() -> None:
    server = Server(kinds=("chat",), concurrencies=(1,), speed_up=lambda kind, concurrency: 1.5)
    widths = []
    for seed in range(8):
        blocks = measure(server, seed, "ABCDDCBA", "BADCCDAB", "CDABBADC")
        two = judge([one for one in blocks if one.arm in "AB"], arms=("A", "B"), draws=300)
        four = rank_all(blocks)
        widths.append(
            four.find("dflash")[0].speed_up.high / four.find("dflash")[0].speed_up.ratio
            > two.findings[0].speed_up.high / two.findings[0].speed_up.ratio
        )
    assert sum(widths) >= 6


def test_the_blocks_that_are_asked_for_are_whole_rounds_of_all_arms() -> None:
    close = Server(
        kinds=("chat",),
        concurrencies=(1,),
        speed_up=lambda kind, concurrency: 1.5,
        others={"C": lambda kind, concurrency: 1.3},
        start_noise=0.03,
    )
    asked = [
        verdict.more_blocks
        for seed in range(12)
        if (verdict := rank(measure(close, seed, "ABCCBA"), arms=ARMS[:3], draws=200)).more_blocks
    ]
    assert asked
    assert all(blocks is not None and blocks % 6 == 0 for blocks in asked)


def test_a_busy_machine_leaves_every_place_open() -> None:
    blocks = measure(MIXED, 1, *list_rounds(4, 1))
    busy = MachineLoad(cores=2, seconds=5, other_cpu_share=0.45, steal_share=0, slowdown=1)
    verdict = rank(blocks, arms=ARMS, draws=300, machines=[busy, *[None] * 7])
    assert {len(place.contenders) for place in verdict.places} == {4}
    assert (verdict.answer, verdict.more_blocks) == ("cannot tell", None)
    assert verdict.sentence.startswith("Cannot tell: the machine was busy during 1 of 8 blocks")


def test_a_block_that_answered_nothing_is_left_out_and_an_arm_without_any_is_refused() -> None:
    blocks = measure(MIXED, 4, *list_rounds(4, 2))
    dead = change(blocks, lambda block, one: fail(one) if block is blocks[5] else one)
    verdict = rank_all(dead)
    assert verdict.blocks == 15
    assert ("silent-block", True) in codes(verdict)
    assert contenders(verdict, "code", 1) == ("ngram",)
    gone = change(blocks, lambda block, one: fail(one) if block.arm == "C" else one)
    with pytest.raises(InvalidInputError, match="too few blocks") as refused:
        rank_all(gone)
    assert "A B D C C D B A" in refused.value.hint


def test_cautions_name_the_arms_that_they_are_about() -> None:
    blocks = measure(MIXED, 5, *list_rounds(4, 1))
    late = change(blocks, lambda block, one: wait_long(one) if block.arm == "C" else one)
    verdict = rank_all(late)
    assert codes(verdict) == [("throughput", True)]
    assert "ngram against plain for code at concurrency 1" in verdict.cautions[0].message
    longer = change(
        blocks,
        lambda block, one: (
            one.model_copy(update={"output_tokens": 2 * one.output_tokens})
            if block.arm == "D"
            else one
        ),
    )
    (caution,) = rank_all(longer).cautions
    assert "those of eagle3 are 2.00 times as long as those of plain" in caution.message
