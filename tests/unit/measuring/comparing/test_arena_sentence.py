"""An arena's sentence names the fastest arm of each kind and load, or who may be."""

import pytest

from slipstream.measuring.comparing.arena_sentence import conclude_arena
from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.verdict import Place, SpeedRatio


def place(kind: str | None, load: int, *contenders: str, ratio: float = 2.0) -> Place:
    """Make a place; a last contender `=` says that the others are even."""
    names = tuple(name for name in contenders if name != "=")
    speed_up = SpeedRatio(ratio=ratio, low=ratio * 0.9, high=ratio * 1.1)
    return Place(
        kind=kind,
        concurrency=load,
        contenders=names,
        even="=" in contenders,
        speed_up=None if names[0] == "plain" else speed_up,
    )


CASES = [
    pytest.param(
        [
            place("code", 1, "ngram"),
            place("prose", 1, "dflash", ratio=1.5),
            place(None, 1, "dflash"),
        ],
        "it depends",
        "At concurrency 1 ngram is fastest for code (2.00 times as fast as plain) and dflash for "
        "prose (1.50 times as fast).",
        id="a winner for each kind",
    ),
    pytest.param(
        [place("code", 1, "ngram"), place("code", 8, "dflash", "plain")],
        "it depends",
        "At concurrency 1 ngram is fastest (2.00 times as fast as plain); at concurrency 8 none "
        "was shown to be faster than plain; for the rest measure more, about 12 blocks.",
        id="one kind, open at a load",
    ),
    pytest.param(
        [
            place("code", 1, "dflash"),
            place("prose", 1, "dflash", ratio=1.5),
            place("code", 4, "dflash", ratio=1.2),
            place("prose", 4, "dflash", ratio=1.3),
            place(None, 1, "dflash"),
            place(None, 4, "dflash"),
        ],
        "one winner",
        "At concurrency 1 and 4 dflash is fastest for every kind (1.20 to 2.00 times as fast as "
        "plain).",
        id="one winner",
    ),
    pytest.param(
        [place("code", 1, "plain"), place("prose", 1, "plain"), place(None, 1, "plain")],
        "one winner",
        "At concurrency 1 plain is fastest for every kind.",
        id="plain wins",
    ),
    pytest.param(
        [place("code", 1, "ngram", "dflash"), place("prose", 1, "plain"), place(None, 1, "ngram")],
        "it depends",
        "At concurrency 1 plain is fastest for prose, dflash and ngram cannot be distinguished for "
        "code and over all kinds ngram is fastest (2.00 times as fast as plain); for the rest "
        "measure more, about 12 blocks.",
        id="open for a kind, a winner over all",
    ),
    pytest.param(
        [place("code", 1, "ngram", "dflash", "="), place("prose", 1, "plain", "dflash", "=")],
        "cannot tell",
        "At concurrency 1 dflash and ngram are within 5 % of each other for code and none is more "
        "than 5 % faster than plain for prose.",
        id="even",
    ),
    pytest.param(
        [place("code", 1, "dflash", "plain", "ngram"), place("prose", 1, "plain", "dflash")],
        "cannot tell",
        "At concurrency 1 none was shown to be faster than plain for any kind; measure more, about "
        "12 blocks.",
        id="all open",
    ),
]


@pytest.mark.parametrize(("places", "answer", "sentence"), CASES)
def test_the_sentence_names_the_fastest_or_who_may_be(
    places: list[Place], answer: str, sentence: str
) -> None:
    assert conclude_arena(places, [], "plain", 12, "time per token") == (answer, sentence)


def test_a_grave_caution_and_a_busy_machine_take_the_answer_away() -> None:
    places = [place("code", 1, "dflash")]
    failed = Caution(code="failed-requests", message="9 of 10 requests failed", grave=True)
    busy = Caution(code="busy-machine", message="the machine was busy", grave=True)
    assert conclude_arena(places, [failed], "plain", None, "time per token") == (
        "cannot tell",
        "Cannot tell, because 9 of 10 requests failed; by the times alone: at concurrency 1 dflash "
        "is fastest (2.00 times as fast as plain).",
    )
    assert conclude_arena(places, [failed, busy], "plain", None, "time per token") == (
        "cannot tell",
        "Cannot tell: the machine was busy. Measure again when the machine is quiet.",
    )


def test_tasks_are_named_as_what_was_timed() -> None:
    places = [place("agent-2k", 1, "dflash")]
    _, sentence = conclude_arena(places, [], "plain", None, "wall time per task")
    assert sentence.startswith("By wall time per task: at concurrency 1 dflash is fastest")
