"""A verdict's sentence says what was shown, where, and no more than that."""

import pytest

from slipstream.measuring.comparing.cautions import Caution
from slipstream.measuring.comparing.sentence import conclude, list_unclear
from slipstream.measuring.comparing.verdict import Outcome, SpeedFinding, SpeedRatio

ARMS = ("plain", "dflash")
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


CODE, CHAT = find("code", "2.0+", "1.6+"), find("chat", "1.4+", "1.2+")

CASES = [
    pytest.param(
        find("chat", "1.5+"),
        "use",
        "Use dflash: it is 1.50 times [1.35 to 1.65] as fast as plain.",
        id="one cell",
    ),
    pytest.param(
        [*CODE, *CHAT, *find(None, "1.7+", "1.4+")],
        "use",
        "Use dflash: it is 1.40 to 1.70 times [1.26 to 1.87] as fast as plain over all kinds.",
        id="all kinds",
    ),
    pytest.param(
        find("chat", "1.5+", "1.2+", "1.0?"),
        "use for some",
        "Use dflash up to concurrency 4: it is 1.20 to 1.50 times [1.08 to 1.65] as fast as plain.",
        id="up to a concurrency",
    ),
    pytest.param(
        find("chat", "1.5+", "1.1?", "1.2+"),
        "use",
        "Use dflash: it is 1.10 to 1.50 times [0.99 to 1.65] as fast as plain.",
        id="a doubt between two that are faster",
    ),
    pytest.param(
        find("chat", "0.9?", "1.1?", "1.2+"),
        "use for some",
        "Use dflash at concurrency 16: it is 1.20 times [1.08 to 1.32] as fast as plain.",
        id="not from the smallest on",
    ),
    pytest.param(
        [*CODE, *find("prose", "0.8-", "0.7-"), *find(None, "1.3+", "1.1?")],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast), "
        "but not for prose (0.70 to 0.80 times [0.63 to 0.88] as fast).",
        id="mixed kinds",
    ),
    pytest.param(
        [
            *CODE,
            *find("chat", "1.4+", "0.9-"),
            *find("prose", "1.0=", "1.0="),
            *find(None, "1+", "1?"),
        ],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast) and for "
        "chat up to concurrency 1 (1.40 times [1.26 to 1.54] as fast), "
        "but not for prose (1.00 times [0.90 to 1.10] as fast).",
        id="each kind its own",
    ),
    pytest.param(
        [*CODE, *find("chat", "1.2?", "1.1?"), *find(None, "1.5+", "1.3+")],
        "use",
        "Use dflash: it is 1.30 to 1.50 times [1.17 to 1.65] as fast as plain over all kinds; "
        "unclear for chat alone: measure more, about 8 blocks.",
        id="a kind in doubt within a clear whole",
    ),
    pytest.param(
        [*CODE, *find("chat", "1.0?", "0.9?"), *find(None, "1.2?", "1.2?")],
        "use for some",
        "Use dflash instead of plain for code (1.60 to 2.00 times [1.44 to 2.20] as fast); "
        "unclear for chat alone: measure more, about 8 blocks.",
        id="a clear kind within a whole in doubt",
    ),
    pytest.param(
        find("chat", "0.8-", "0.9?"),
        "do not use",
        "Do not use dflash: it is 0.80 times [0.72 to 0.88] as fast as plain.",
        id="slower",
    ),
    pytest.param(
        find("chat", "1.0=", "1.01="),
        "do not use",
        "Do not use dflash for speed: it is as fast as plain, to within 5 %.",
        id="even",
    ),
    pytest.param(
        [*find("chat", "0.8-"), *find("code", "1.1?"), *find(None, "0.95?")],
        "cannot tell",
        "Do not use dflash instead of plain for chat (0.80 times [0.72 to 0.88] as fast); "
        "unclear for code alone: measure more, about 8 blocks.",
        id="slower and in doubt",
    ),
    pytest.param(
        [*find("chat", "1.1?"), *find("code", "1.0="), *find(None, "1.05?")],
        "cannot tell",
        "Do not use dflash instead of plain for code (1.00 times [0.90 to 1.10] as fast); "
        "unclear for chat alone: measure more, about 8 blocks.",
        id="even and in doubt",
    ),
    pytest.param(
        [*find("chat", "1.1?", "1?"), *find("code", "1.1?", "1?"), *find(None, "1.1?", "1.0?")],
        "cannot tell",
        "Cannot tell whether dflash is faster than plain: it may be 0.90 to 1.21 times as fast; "
        "measure more, about 8 blocks.",
        id="all in doubt",
    ),
]


@pytest.mark.parametrize(("findings", "answer", "sentence"), CASES)
def test_the_sentence_says_what_was_shown(
    findings: list[SpeedFinding], answer: str, sentence: str
) -> None:
    assert conclude(findings, [], ARMS, 8) == (answer, sentence)


def test_where_more_blocks_would_not_do_it_asks_for_prompts() -> None:
    _, sentence = conclude(find("chat", "1.05?"), [], ARMS, None)
    assert sentence.endswith("; more blocks alone will not do, use more prompts.")


def test_blocks_are_counted_for_what_the_sentence_leaves_open() -> None:
    doubt = [*find("chat", "1.1?", "1.0="), *find("code", "1.1?", "1.1?")]
    assert list_unclear([*doubt, *find(None, "1.1?", "1.0=")]) == [(None, 1)]
    assert list_unclear([*doubt, *find(None, "1.1+", "1.1+")]) == [
        ("chat", 1),
        ("code", 1),
        ("code", 4),
    ]
    assert list_unclear([*CODE, *CHAT]) == []


def test_a_caution_is_told_and_a_grave_one_takes_the_answer_away() -> None:
    light = Caution(code="few-prompts", message="only 3 prompts")
    grave = Caution(code="failed-requests", message="9 of 10 requests failed", grave=True)
    fast = find("chat", "1.5+")
    plain = "se dflash: it is 1.50 times [1.35 to 1.65] as fast as plain."
    assert conclude(fast, [light], ARMS, None) == ("use", f"U{plain} Caution: only 3 prompts.")
    assert conclude(fast, [light, grave], ARMS, None) == (
        "cannot tell",
        f"Cannot tell, because 9 of 10 requests failed; by the times alone: u{plain} "
        "Caution: only 3 prompts.",
    )
