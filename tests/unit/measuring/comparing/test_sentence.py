"""A verdict's sentence says what was shown, where, and no more than that; of two arms or more."""

import pytest

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.sentence import conclude, list_unclear
from slipstream.measuring.comparing.verdict import (
    Answer,
    Measure,
    Outcome,
    PairFindings,
    Place,
    SpeedFinding,
    SpeedRatio,
)

ARMS = ("plain", "dflash")
GRAVE = Caution(code="failed-requests", message="9 of 10 requests failed", grave=True)
OUTCOMES: dict[str, Outcome] = {"+": "faster", "-": "slower", "=": "even", "?": "unclear"}


def find(kind: str | None, *told: str) -> list[SpeedFinding]:
    """Make findings at concurrency 1, 4, 16, ... of words like `1.5+` or `0.98?`."""
    return [
        SpeedFinding(
            kind=kind,
            concurrency=4**place,
            prompts=20,
            speed_up=(speed := estimate(float(word[:-1]))),
            throughput=speed,
            noise=1.02,
            outcome=OUTCOMES[word[-1]],
        )
        for place, word in enumerate(told)
    ]


def estimate(ratio: float) -> SpeedRatio:
    return SpeedRatio(ratio=ratio, low=ratio * 0.9, high=ratio * 1.1)


def advise(
    findings: list[SpeedFinding], *cautions: Caution, more: int | None = None
) -> tuple[Answer, str]:
    pair = PairFindings(arms=ARMS, findings=tuple(findings))
    return conclude([pair], [], cautions, more, "time per token")


CODE, CHAT = find("code", "2.0+", "1.6+"), find("chat", "1.4+", "1.2+")

CASES: dict[str, tuple[list[SpeedFinding], Answer, str]] = {
    "one cell": (
        find("chat", "1.5+"),
        "use",
        "Use dflash: it is 1.50 times [1.35 to 1.65] as fast as plain.",
    ),
    "all kinds": (
        [*CODE, *CHAT, *find(None, "1.7+", "1.4+")],
        "use",
        "Use dflash: it is 1.40 to 1.70 times [1.26 to 1.87] as fast as plain over all kinds.",
    ),
    "up to a concurrency": (
        find("chat", "1.5+", "1.2+", "1.0?"),
        "use for some",
        "Use dflash up to concurrency 4: it is 1.20 to 1.50 times [1.08 to 1.65] as fast as plain.",
    ),
    "a doubt between two that are faster": (
        find("chat", "1.5+", "1.1?", "1.2+"),
        "use",
        "Use dflash: it is 1.10 to 1.50 times [0.99 to 1.65] as fast as plain.",
    ),
    "not from the smallest on": (
        find("chat", "0.9?", "1.1?", "1.2+"),
        "use for some",
        "Use dflash at concurrency 16: it is 1.20 times [1.08 to 1.32] as fast as plain.",
    ),
    "mixed kinds": (
        [*CODE, *find("prose", "0.8-", "0.7-"), *find(None, "1.3+", "1.1?")],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast), "
        "but not for prose (0.70 to 0.80 times [0.63 to 0.88] as fast).",
    ),
    "each kind its own": (
        [
            *CODE,
            *find("chat", "1.4+", "0.9-"),
            *find("prose", "1.0=", "1.0="),
            *find(None, "1+", "1?"),
        ],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast) and for "
        "chat at concurrency 1 (1.40 times [1.26 to 1.54] as fast), "
        "but not for prose (1.00 times [0.90 to 1.10] as fast).",
    ),
    "a kind in doubt within a clear whole": (
        [*CODE, *find("chat", "1.2?", "1.1?"), *find(None, "1.5+", "1.3+")],
        "use",
        "Use dflash: it is 1.30 to 1.50 times [1.17 to 1.65] as fast as plain over all kinds; "
        "unclear for chat alone: measure more, about 8 starts.",
    ),
    "a clear kind within a whole in doubt": (
        [*CODE, *find("chat", "1.0?", "0.9?"), *find(None, "1.2?", "1.2?")],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast); "
        "unclear for chat alone: measure more, about 8 starts.",
    ),
    "slower": (
        find("chat", "0.8-", "0.9?"),
        "do not use",
        "Do not use dflash: it is 0.80 times [0.72 to 0.88] as fast as plain.",
    ),
    "even": (
        find("chat", "1.0=", "1.01="),
        "do not use",
        "Do not use dflash for speed: it is as fast as plain, to within 5 %.",
    ),
    "slower and in doubt": (
        [*find("chat", "0.8-"), *find("code", "1.1?"), *find(None, "0.95?")],
        "cannot tell",
        "Do not use dflash instead of plain for chat (0.80 times [0.72 to 0.88] as fast); "
        "unclear for code alone: measure more, about 8 starts.",
    ),
    "even and in doubt": (
        [*find("chat", "1.1?"), *find("code", "1.0="), *find(None, "1.05?")],
        "cannot tell",
        "Do not use dflash instead of plain for code (1.00 times [0.90 to 1.10] as fast); "
        "unclear for chat alone: measure more, about 8 starts.",
    ),
    "all in doubt": (
        [*find("chat", "1.1?", "1?"), *find("code", "1.1?", "1?"), *find(None, "1.1?", "1.0?")],
        "cannot tell",
        "Cannot tell whether dflash is faster than plain: it may be 0.90 to 1.21 times as fast; "
        "measure more, about 8 starts.",
    ),
}


@pytest.mark.parametrize(("findings", "answer", "sentence"), CASES.values(), ids=CASES)
def test_the_sentence_says_what_was_shown(
    findings: list[SpeedFinding], answer: str, sentence: str
) -> None:
    assert advise(findings, more=8) == (answer, sentence)


def test_where_more_blocks_would_not_do_it_asks_for_prompts() -> None:
    _, sentence = advise(find("chat", "1.05?"))
    assert sentence.endswith("; more starts alone are not enough, use more prompts.")


@pytest.mark.parametrize(
    ("overall", "rows"),
    [
        (("1.1?", "1.0="), [(None, 1)]),
        (("1.1+", "1.1+"), [("chat", 1), ("code", 1), ("code", 4)]),
    ],
)
def test_blocks_are_counted_for_what_the_sentence_leaves_open(
    overall: tuple[str, ...], rows: list[tuple[str | None, int]]
) -> None:
    doubt = [*find("chat", "1.1?", "1.0="), *find("code", "1.1?", "1.1?"), *find(None, *overall)]
    pair = PairFindings(arms=ARMS, findings=tuple(doubt))
    assert list(list_unclear([pair], [])) == [(0, row) for row in rows]


def test_a_caution_is_told_and_a_grave_one_takes_the_answer_away() -> None:
    light = Caution(code="few-prompts", message="only 3 prompts")
    fast = find("chat", "1.5+")
    plain = "se dflash: it is 1.50 times [1.35 to 1.65] as fast as plain."
    assert advise(fast, light) == ("use", f"U{plain} Caution: only 3 prompts.")
    assert advise(fast, light, GRAVE) == (
        "cannot tell",
        f"Cannot tell, because 9 of 10 requests failed; from the times alone: u{plain} "
        "Caution: only 3 prompts.",
    )


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


PLACES: dict[str, tuple[list[Place], Answer, str]] = {
    "a winner for each kind": (
        [
            place("code", 1, "ngram"),
            place("prose", 1, "dflash", ratio=1.5),
            place(None, 1, "dflash"),
        ],
        "it depends",
        "At concurrency 1 ngram is fastest for code (2.00 times as fast as plain) and dflash for "
        "prose (1.50 times as fast).",
    ),
    "one kind, open at a load": (
        [place("code", 1, "ngram"), place("code", 8, "dflash", "plain")],
        "it depends",
        "At concurrency 1 ngram is fastest (2.00 times as fast as plain); at concurrency 8 none "
        "was shown to be faster than plain; for the rest measure more, about 12 starts.",
    ),
    "one winner": (
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
    ),
    "plain wins": (
        [place("code", 1, "plain"), place("prose", 1, "plain"), place(None, 1, "plain")],
        "one winner",
        "At concurrency 1 plain is fastest for every kind.",
    ),
    "open for a kind, a winner over all": (
        [place("code", 1, "ngram", "dflash"), place("prose", 1, "plain"), place(None, 1, "ngram")],
        "it depends",
        "At concurrency 1 plain is fastest for prose, dflash and ngram cannot be distinguished for "
        "code and over all kinds ngram is fastest (2.00 times as fast as plain); for the rest "
        "measure more, about 12 starts.",
    ),
    "even": (
        [place("code", 1, "ngram", "dflash", "="), place("prose", 1, "plain", "dflash", "=")],
        "cannot tell",
        "At concurrency 1 dflash and ngram are within 5 % of each other for code and none is more "
        "than 5 % faster than plain for prose.",
    ),
    "all open": (
        [place("code", 1, "dflash", "plain", "ngram"), place("prose", 1, "plain", "dflash")],
        "cannot tell",
        "At concurrency 1 none was shown to be faster than plain for any kind; measure more, about "
        "12 starts.",
    ),
}


def name_fastest(
    places: list[Place],
    *cautions: Caution,
    more: int | None = None,
    measure: Measure = "time per token",
) -> tuple[Answer, str]:
    pairs = [PairFindings(arms=("plain", name), findings=()) for name in ("dflash", "ngram")]
    return conclude(pairs, places, cautions, more, measure)


@pytest.mark.parametrize(("places", "answer", "sentence"), PLACES.values(), ids=PLACES)
def test_the_sentence_names_the_fastest_or_who_may_be(
    places: list[Place], answer: str, sentence: str
) -> None:
    assert name_fastest(places, more=12) == (answer, sentence)


def test_a_grave_caution_and_a_busy_machine_take_the_winner_away() -> None:
    places = [place("code", 1, "dflash")]
    busy = Caution(code="busy-machine", message="the machine was busy", grave=True)
    assert name_fastest(places, GRAVE) == (
        "cannot tell",
        "Cannot tell, because 9 of 10 requests failed; from the times alone: at concurrency 1 "
        "dflash is fastest (2.00 times as fast as plain).",
    )
    assert name_fastest(places, GRAVE, busy) == (
        "cannot tell",
        "Cannot tell: the machine was busy. Measure again when the machine is quiet.",
    )


def test_tasks_are_named_as_what_was_timed() -> None:
    _, sentence = name_fastest([place("agent-2k", 1, "dflash")], measure="wall time per task")
    assert sentence.startswith("By wall time per task: at concurrency 1 dflash is fastest")
