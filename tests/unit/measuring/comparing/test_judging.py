"""Blocks of two arms or more become a verdict: ratios, break-even, winners, what weakens it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from slipstream.errors import InvalidInputError
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.blocks import Block
from slipstream.measuring.comparing.design import list_rounds
from slipstream.measuring.comparing.judging import judge
from slipstream.measuring.comparing.verdict import BreakEven, SpeedFinding, Verdict
from slipstream.measuring.machine_watch import MachineLoad
from tests.unit.measuring.comparing.simulated_server import Server, measure

QUIET = Server(
    kinds=("chat", "code"),
    concurrencies=(1, 8),
    request_noise=0.002,
    prompt_spread=0.002,
    start_noise=0.002,
    drift=0.001,
    stall_chance=0,
)
TWICE = replace(QUIET, speed_up=lambda kind, concurrency: 2.0)


def score_all(blocks: list[Block], draws: int = 300) -> Verdict:
    return judge(blocks, arms=("plain", "dflash"), draws=draws)


def findings(verdict: Verdict) -> tuple[SpeedFinding, ...]:
    return verdict.pairs[0].findings


def pick(verdict: Verdict, kind: str | None, concurrency: int) -> SpeedFinding:
    return next(
        found
        for found in findings(verdict)
        if (found.kind, found.concurrency) == (kind, concurrency)
    )


def change(blocks: list[Block], mend: Callable[[Block, Sample], Sample]) -> list[Block]:
    return [
        block.model_copy(update={"samples": tuple(mend(block, one) for one in block.samples)})
        for block in blocks
    ]


def fail(sample: Sample) -> Sample:
    kept = sample.model_dump(include={"prompt_id", "kind", "concurrency", "began_at"})
    return Sample(**kept, seconds=1, error="reset")


def codes(verdict: Verdict) -> list[tuple[str, bool]]:
    return [(caution.code, caution.grave) for caution in verdict.cautions]


def test_a_doubled_speed_is_found_in_every_row_and_in_the_throughput() -> None:
    verdict = score_all(measure(TWICE, 1, "ABBA"))
    assert len(findings(verdict)) == 6
    for found in findings(verdict):
        assert found.outcome == "faster"
        assert found.speed_up.low < 2 < found.speed_up.high
        assert found.speed_up.ratio == pytest.approx(2, rel=0.01)
        assert 1.5 < found.throughput.low < found.throughput.ratio < found.throughput.high < 2.1
        assert 1 < found.noise < 1.02
    assert pick(verdict, None, 8).prompts == 2 * pick(verdict, "code", 8).prompts == 20
    assert (verdict.answer, verdict.more_blocks, verdict.cautions) == ("use", None, ())


def test_the_same_blocks_and_seed_give_the_same_record_and_it_loads_back() -> None:
    blocks = measure(TWICE, 1, "ABBA")
    verdict = score_all(blocks)
    assert score_all(blocks) == verdict
    assert Verdict.model_validate_json(verdict.to_json()) == verdict
    assert judge(blocks, arms=("plain", "dflash"), draws=300, seed=1) != verdict


def test_arms_that_change_places_turn_every_ratio_over() -> None:
    blocks = measure(TWICE, 2, "ABBA")
    turned = [
        block.model_copy(update={"arm": "A" if block.arm == "B" else "B"}) for block in blocks
    ]
    there, back = score_all(blocks), score_all(turned)
    for one, other in zip(findings(there), findings(back), strict=True):
        assert one.speed_up.ratio == pytest.approx(1 / other.speed_up.ratio)
        assert one.speed_up.low == pytest.approx(1 / other.speed_up.high, rel=0.005)
    assert (there.answer, back.answer) == ("use", "do not use")


def test_a_machine_that_is_slower_throughout_gives_the_same_verdict() -> None:
    blocks = measure(TWICE, 3, "ABBA")
    slower = change(
        blocks,
        lambda _, one: one.model_copy(
            update={
                "began_at": one.began_at * 3,
                "seconds": one.seconds * 3,
                "first_token_seconds": (one.first_token_seconds or 0) * 3,
            }
        ),
    )
    assert score_all(slower).sentence == score_all(blocks).sentence


def test_a_difference_below_what_a_restart_does_is_none() -> None:
    """Eight rounds make the interval narrower than the step from start to start."""
    server = replace(
        QUIET,
        kinds=("chat",),
        concurrencies=(1,),
        start_noise=0.02,
        drift=0,
        speed_up=lambda kind, concurrency: 1.022,
    )
    found = findings(score_all(measure(server, 17, *["ABBA"] * 8)))[0]
    assert found.speed_up.low > 1
    assert found.speed_up.ratio < found.noise
    assert found.outcome == "even"


def test_the_break_even_is_found_between_the_concurrencies_around_it() -> None:
    server = replace(
        QUIET,
        concurrencies=(1, 4, 16, 64),
        speed_up=lambda kind, concurrency: {"chat": 1.5, "code": 3.0}[kind] * concurrency**-0.25,
    )
    verdict = score_all(measure(server, 6, "ABBA", "ABBA"))
    chat, code, both = verdict.pairs[0].break_evens
    assert chat.concurrency == pytest.approx(1.5**4, rel=0.1)
    assert chat.low is not None
    assert chat.high is not None
    assert 1 < chat.low < 1.5**4 < chat.high < 8
    assert code == BreakEven(kind="code", concurrency=None, low=None, high=None, largest=64)
    assert both.kind is None
    assert both.concurrency == pytest.approx(4.5**2, rel=0.1)
    assert verdict.sentence.startswith("Use dflash instead of plain for chat up to concurrency 4 (")
    assert "and for code (1.0" in verdict.sentence


def test_an_arm_that_is_slower_from_the_start_has_its_break_even_below_all() -> None:
    verdict = score_all(measure(replace(QUIET, speed_up=lambda kind, level: 0.5), 7, "ABBA"))
    assert {(one.concurrency, one.low, one.high) for one in verdict.pairs[0].break_evens} == {
        (0, 0, 0)
    }
    one = score_all(measure(replace(QUIET, concurrencies=(4,)), 7, "ABBA"))
    assert one.pairs[0].break_evens == ()


def test_the_blocks_it_asks_for_are_mostly_enough() -> None:
    server = Server(kinds=("chat",), concurrencies=(1,), speed_up=lambda kind, level: 1.12)
    asked = settled = 0
    for seed in range(70):
        verdict = score_all(measure(server, seed, "ABBA"), draws=200)
        if verdict.more_blocks in (4, 8):
            assert f"measure more, about {verdict.more_blocks} starts" in verdict.sentence
            rounds = ["ABBA"] * (1 + verdict.more_blocks // 4)
            asked += 1
            settled += score_all(measure(server, seed, *rounds), draws=200).answer == "use"
    assert asked >= 10
    assert settled >= 0.6 * asked


def stretch(by: float, share: int) -> Callable[[Block, Sample], Sample]:
    """Have the second arm answer a share of the prompts at greater length."""

    def mend(block: Block, one: Sample) -> Sample:
        longer = block.arm == "B" and int(one.prompt_id[-1]) < share
        tokens = round(one.output_tokens * by) if longer else one.output_tokens
        first = one.first_token_seconds or 0
        seconds = first + (one.seconds_per_token or 0) * (tokens - 1)
        return one.model_copy(update={"output_tokens": tokens, "seconds": seconds})

    return mend


def lose(arms: str, *prompts: str, at: tuple[int, ...] = (1, 8)) -> Callable[..., Sample]:
    """Have requests for these prompts fail."""
    return lambda block, one: (
        fail(one)
        if block.arm in arms and one.prompt_id in prompts and one.concurrency in at
        else one
    )


def wait_long(sample: Sample) -> Sample:
    """Have a request wait a minute for its first token."""
    first = (sample.first_token_seconds or 0) + 60
    return sample.model_copy(update={"first_token_seconds": first, "seconds": sample.seconds + 60})


LEFT_OUT = ("left-out", False)


@pytest.mark.parametrize(
    ("mend", "expected", "answer"),
    [
        (lose("B", "chat-1", at=(8,)), [("failed-requests", False), LEFT_OUT], "use"),
        (lose("A", "chat-1"), [("failed-requests", False), LEFT_OUT], "use"),
        (lose("A", "chat-1", "chat-2"), [("failed-requests", True), LEFT_OUT], "cannot tell"),
        (stretch(1.05, 10), [], "use"),
        (stretch(1.3, 1), [], "use"),
        (stretch(1.3, 4), [("lengths", False)], "use"),
        (stretch(1.3, 10), [("lengths", True)], "cannot tell"),
        (
            lambda block, one: wait_long(one) if block.arm == "B" else one,
            [("throughput", True)],
            "cannot tell",
        ),
    ],
)
def test_what_weakens_a_verdict_is_a_caution_and_grave_ones_leave_no_answer(
    mend: Callable[[Block, Sample], Sample], expected: list[tuple[str, bool]], answer: str
) -> None:
    verdict = score_all(change(measure(TWICE, 8, "ABBA"), mend))
    assert codes(verdict) == expected
    assert verdict.answer == answer
    assert pick(verdict, None, 1).speed_up.ratio == pytest.approx(2, rel=0.02)
    lost = expected and expected[0][0] == "failed-requests"
    assert pick(verdict, "chat", 8).prompts == (10 if not lost else 8 if expected[0][1] else 9)


def test_a_block_that_answered_nothing_is_left_out() -> None:
    blocks = measure(TWICE, 9, "ABBA", "ABBA")
    dead = change(blocks, lambda block, one: fail(one) if block is blocks[5] else one)
    verdict = score_all(dead)
    assert verdict.blocks == 7
    assert ("silent-block", True) in codes(verdict)
    assert pick(verdict, None, 1).speed_up.ratio == pytest.approx(2, rel=0.02)


def test_too_few_prompts_are_told_and_a_cell_that_is_lost_too() -> None:
    blocks = measure(replace(TWICE, prompts=5), 11, "ABBA")
    assert codes(score_all(blocks)) == [("few-prompts", False)]
    names = [f"code-{number}" for number in range(5)]
    verdict = score_all(change(blocks, lose("A", *names, at=(8,))))
    assert "there are no figures for code at concurrency 8" in verdict.sentence
    assert pick(verdict, None, 8).prompts == 5


def test_starts_that_differ_much_are_a_caution() -> None:
    verdict = score_all(measure(replace(TWICE, start_noise=0.3), 13, "ABBA"))
    assert codes(verdict) == [("noisy-starts", False)]


ARMS = ("plain", "dflash", "ngram", "eagle3")
MIXED = replace(
    QUIET,
    speed_up=lambda kind, concurrency: 1.5,
    others={
        "C": lambda kind, concurrency: 2.4 if kind == "code" else 0.8,
        "D": lambda kind, concurrency: 1.3,
    },
)


def rank_all(blocks: list[Block]) -> Verdict:
    return judge(blocks, arms=ARMS, draws=300)


def contenders(verdict: Verdict, kind: str | None, concurrency: int) -> tuple[str, ...]:
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
    assert [bool(pair.break_evens) for pair in verdict.pairs] == [True] * 3 + [False] * 3


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
            > findings(two)[0].speed_up.high / findings(two)[0].speed_up.ratio
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
        if (verdict := judge(measure(close, seed, "ABCCBA"), arms=ARMS[:3], draws=200)).more_blocks
    ]
    assert asked
    assert all(blocks is not None and blocks % 6 == 0 for blocks in asked)


def test_a_busy_machine_leaves_every_place_open() -> None:
    blocks = measure(MIXED, 1, *list_rounds(4, 1))
    busy = MachineLoad(cores=2, seconds=5, other_cpu_share=0.45, steal_share=0, slowdown=1)
    verdict = judge(blocks, arms=ARMS, draws=300, machines=[busy, *[None] * 7])
    assert {len(place.contenders) for place in verdict.places} == {4}
    assert (verdict.answer, verdict.more_blocks) == ("cannot tell", None)
    assert verdict.sentence.startswith("Cannot tell: the machine was busy during 1 of 8 starts")


def test_an_arm_without_any_answer_is_refused() -> None:
    blocks = measure(MIXED, 4, *list_rounds(4, 1))
    gone = change(blocks, lambda block, one: fail(one) if block.arm == "C" else one)
    with pytest.raises(InvalidInputError, match="too few starts") as refused:
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
