"""A canary's record in words and as a page: the decision first, and no stranger's text as it is."""

from datetime import timedelta
from typing import Any

import pytest

from slipstream.fleet.canary.canary_test import ERRORS
from slipstream.fleet.canary.record import (
    Canary,
    CanaryVerdict,
    Evidence,
    KindEvidence,
    Ratio,
    RegretEvidence,
    Snapshot,
)
from slipstream.reporting.pages.canary import render_canary_html, render_canary_markdown
from slipstream.reporting.text.canary import render_canary_text
from tests.unit.reporting.page_reading import Reader, find_drawings
from tests.unit.serving.kept_runs import AT

SPEED = Ratio(estimate=1.31, low=1.04, high=1.66)
EARLY = Ratio(estimate=1.2, low=None, high=None)
KIND = KindEvidence(
    kind="code", requests=40, canary=0.7, others=0.6, change=0.09, low=0.01, high=0.17
)
REGRET = RegretEvidence(
    answers=24,
    tokens=1152,
    canary_faults=0,
    other_faults=1,
    canary_worst=0.12,
    other_worst=0.3,
    gap=0.251,
    is_worse=False,
)


def make(outcome: Any = "promote", **evidence: Any) -> Canary:
    known: dict[str, Any] = {
        "requests_before": 2000,
        "requests": {"b": 120, "a": 130},
        "mean_batch": {"b": 3.5, "a": 3.4},
        "speed": SPEED,
        "expected_speed": SPEED,
        "step_seconds": EARLY,
        "kinds": (KIND,),
        "regret": REGRET,
        "path": (Snapshot(requests=2, ratio=EARLY), Snapshot(requests=118, ratio=SPEED)),
    }
    return Canary(
        fleet="lab",
        subject="drafter",
        name="mine",
        before="z-lab/old",
        groups=("b",),
        others=("a",),
        began_at=AT,
        decided_at=AT + timedelta(minutes=12),
        threshold=1.0,
        most_requests=1000,
        errors=ERRORS,
        evidence=Evidence.model_validate({**known, **evidence}),
        verdict=CanaryVerdict(
            outcome=outcome,
            cause="speed",
            because="it is faster: 1.31 (1.04 to 1.66) times the speed",
            requests=120,
            compared=118,
            fleet_requests=250,
        ),
        done=("b: mine drafts",),
    )


@pytest.mark.parametrize(
    ("outcome", "word", "end"),
    [
        ("promote", "PROMOTED", "The drafter was promoted to all groups"),
        ("go-back", "WENT BACK", "The drafter was taken back"),
        ("undecided", "CANNOT TELL", "Nothing was decided, and the drafter was taken back"),
    ],
)
def test_the_decision_comes_first_with_its_requests(outcome: str, word: str, end: str) -> None:
    first = render_canary_text(make(outcome)).splitlines()[0]
    after = "after 120 requests of the canary, 250 of all: it is faster: 1.31 (1.04 to 1.66)"
    assert first == f"{word}: {end}, {after} times the speed."


def test_error_rates_and_regret_are_stated() -> None:
    text = " ".join(render_canary_text(make()).split())
    assert "at most 5.0% if nothing changed: by speed 2.5%, by acceptance 1.0%" in text
    assert "24 answers of each arm, 1,152 tokens: at fault 0 and 1" in text
    assert "code 40 70.0% 60.0% +9.0 +1.0 to +17.0" in text


def test_what_is_not_known_is_said_so() -> None:
    unknown = {"speed": None, "expected_speed": None, "step_seconds": None, "path": ()}
    canary = make("undecided", **unknown, kinds=(), regret=None)
    text = " ".join(render_canary_text(canary).split())
    assert "regret not asked for" in text
    assert "tokens per second of step time unknown unknown" in text
    assert "acceptance by kind" not in render_canary_html(canary)


def test_the_page_has_the_path_and_the_kinds() -> None:
    page = render_canary_html(make())
    assert len(find_drawings(page)) == 2
    assert Reader(page).dangers == []
    assert "1.31 times the speed after 118 requests" in page
    assert "+9.0 points" in page
    assert render_canary_markdown(make()).startswith("# mine on b of lab")


def test_a_strangers_name_is_shown_as_text() -> None:
    hostile = KIND.model_copy(update={"kind": "<script>\x1b[2J"})
    page, text = (
        render_canary_html(make(kinds=(hostile,))),
        render_canary_text(make(kinds=(hostile,))),
    )
    assert "<script" not in page
    assert "\x1b" not in page + text
