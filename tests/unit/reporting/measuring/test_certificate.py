"""A certificate on the terminal, as Markdown and as a page."""

from typing import Any

import pytest

from slipstream.measuring.client.engine_metrics import EngineCounts
from slipstream.measuring.client.sample import ToolCall
from slipstream.measuring.verifying.certificate import (
    AnswerCheck,
    Certificate,
    Failure,
    Findings,
    Regret,
    Tolerance,
)
from slipstream.measuring.verifying.conformance.answers import (
    CallCheck,
    CallDifference,
    ParsedAnswer,
)
from slipstream.measuring.verifying.sampling_check import SamplingCheck
from slipstream.reporting.measuring.certificate import (
    describe_certificate,
    render_certificate_html,
)
from slipstream.reporting.report import render_text
from tests.snapshots import read_snapshot
from tests.unit.reporting.page_reading import Reader, find_drawings, list_texts
from tests.unit.reporting.records import make_conditions, make_plans


def render_certificate_text(certificate: Certificate) -> str:
    return render_text(describe_certificate(certificate))


CHECKS = (
    AnswerCheck(
        left=("plain", "alone"),
        right=("drafted", "alone"),
        prompts=8,
        equal=7,
        ties=1,
        faults=0,
        worst_gap=0.041,
        earliest=17,
    ),
    AnswerCheck(
        left=("plain", "batched"),
        right=("drafted", "batched"),
        prompts=64,
        equal=58,
        ties=4,
        faults=2,
        worst_gap=1.25,
        earliest=3,
    ),
)

CALLS = CallCheck(
    requests=7,
    same=6,
    plain_calls=11,
    drafted_calls=10,
    cut_off=1,
    differences=(
        CallDifference(
            request="parallel, /v1/responses, streamed",
            verdict="changed",
            because="the stream ended without response.completed",
            reports=("vllm#55284",),
            plain=ParsedAnswer(
                reasoning="hm",
                text="<b>",
                calls=(ToolCall(id="a", name="mark", arguments='{"place": "東京"}'),),
                ending="completed",
            ),
            drafted=ParsedAnswer(failure="the stream ended without response.completed"),
        ),
    ),
    plain_invalid={"auto, /v1/messages": "arguments.city is missing"},
    drafted_invalid={},
    skipped={"call after reasoning": "the plan has no --reasoning-parser"},
)


def certify(*, passed: bool = False, prompt_id: str = "code-3", **findings: Any) -> Certificate:
    regret: dict[str, Any] = {"answers": 72, "tokens": 9216, "best": 9200, "ties": 14}
    regret["worst"] = 1.25
    found: dict[str, Any] = {
        "tolerance": Tolerance(gap=0.125, dtype="bfloat16", because="three roundings"),
        "checks": CHECKS,
        "regrets": (
            Regret(arm="plain", faults=0, **regret),
            Regret(arm="drafted", faults=2, **regret),
        ),
        "sampling": SamplingCheck(
            samples=400, tokens=4, cells=11, distance=0.071, p_value=0.4321, detectable=0.16
        ),
        "calls": CALLS,
        "counts": EngineCounts(drafts=3100, drafted=46500, accepted=6021),
        "failure": Failure(
            condition="batched",
            prompt_id=prompt_id,
            position=3,
            gap=1.25,
            max_tokens=4,
            reproduced=True,
            prompt_ids=(151644, 872, 198),
        ),
    }
    return Certificate(
        passed=passed,
        sentence="Speculation changes the text: 2 of 9,216 tokens.",
        findings=Findings(**{**found, **findings}),
        conditions=make_conditions(
            plan=make_plans()[1], command="slipstream verify Qwen/Qwen3-8B", workload="code"
        ),
        concurrency=8,
    )


def test_what_is_not_known_is_called_unknown() -> None:
    sampling = certify().findings.sampling.model_copy(update={"detectable": None})
    shown = render_certificate_html(certify(failure=None, counts=EngineCounts(), sampling=sampling))
    assert shown.count("unknown") >= 3
    assert "shortest prompt" not in shown
    assert "None" not in shown


def test_a_fault_is_seen_without_colour() -> None:
    (drawing,) = find_drawings(render_certificate_html(certify()))
    assert list_texts(drawing)[1::2] == [
        "7 equal, 1 tied, 0 at fault",
        "58 equal, 4 tied, 2 at fault",
    ]
    assert [rect.get("class") for rect in drawing.iter("rect")] == [
        *("equal", "tie"),
        *("equal", "tie", "fault"),
    ]
    assert len(list(drawing.iter("path"))) == 1


def test_a_page_asks_nobody_and_hostile_names_are_only_text() -> None:
    page = render_certificate_html(certify(prompt_id='"><script src=//x></script>'))
    read = Reader(page)
    assert read.dangers == []
    assert "script" not in read.tags
    assert any('"><script src=//x></script> (batched)' in text for text in read.words)


def test_without_checks_there_is_no_chart() -> None:
    assert find_drawings(render_certificate_html(certify(checks=()))) == []


def test_a_certificate_is_shown_as_reviewed() -> None:
    shown = render_certificate_text(certify()) + "\n"
    assert shown == read_snapshot("certificate.txt", shown)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"reproduced": False}, "it was not reproduced"),
        ({"reproduced": None}, "Without the plain engine it cannot be tried again"),
        ({"gap": None}, "token 3: the answer ends or fails"),
    ],
)
def test_a_failure_says_whether_it_came_again(change: dict[str, object], told: str) -> None:
    failure = certify().findings.failure
    assert failure is not None
    assert told in render_certificate_text(certify(failure=failure.model_copy(update=change)))
