"""Both arms are asked the same calls; ties, the engine's own faults and changes are told apart."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from slipstream.errors import EngineError
from slipstream.measuring.verifying.conformance import asking
from slipstream.measuring.verifying.conformance.answers import CallCheck
from slipstream.measuring.verifying.conformance.asking import NO_REASONING, ask_plain, ask_requests
from slipstream.measuring.verifying.conformance.cases import CASES, REPORTS, Case
from slipstream.measuring.verifying.conformance.judging import CallComparison
from tests.unit.measuring.verifying.conformance.toy_calls import ToyAnswer, find_forced
from tests.unit.measuring.verifying.toy_engine import Call, ToyEngine, lose_arguments, run_toy

STREAMS = ("chat/completions", "responses", "messages")


FEW = [
    case
    for case in CASES
    if case.name in ("named", "required", "parallel", "auto", "schema after reasoning")
]


def nothing(done: int, of: int) -> None:
    """Ignore progress."""


def answer_soundly(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
    """Return the sound answer."""
    return answer


def check(
    *,
    plain: Call = answer_soundly,
    drafted: Call = answer_soundly,
    gap: float = 0.25,
    takes_tools: bool = True,
    cases: Sequence[Case] = FEW,
) -> CallCheck:
    arms = [ToyEngine(call=call, takes_tools=takes_tools) for call in (plain, drafted)]
    with run_toy(arms[0]) as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "CASES", cases)
        calls = ask_plain(url, nothing, reasoning=True)
    with run_toy(arms[1]) as url:
        given = ask_requests(url, calls.requests)
        return CallComparison(url, calls, given, gap).check()


def change_text(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
    """Say something else before the call that nobody forced."""
    return replace(answer, text="I look it OP. ") if answer.text and answer.calls else answer


def only(api: str, call: Call) -> Call:
    """Have a fault over one API only."""
    return lambda path, body, answer: call(path, body, answer) if api in path else answer


def test_the_same_calls_are_counted_over_all_apis() -> None:
    found = check(cases=CASES)
    assert found.requests == found.same == sum(len(case.ways) for case in CASES)
    assert found.differences == ()
    assert (found.plain_invalid, found.drafted_invalid, found.skipped) == ({}, {}, {})
    assert found.plain_calls == found.drafted_calls > 30


def test_the_suite_is_small_and_covers_every_known_fault() -> None:
    asked = [case for case in CASES if not case.reasons]
    assert sum(len(case.ways) for case in asked) == 30
    assert {report for case in CASES for report in case.reports} == set(REPORTS)
    ways = {way for case in asked for way in case.ways}
    assert len(ways) == 6
    for case in CASES:
        assert any(way.api == "chat" and way.streamed for way in case.ways), case.name


def test_arguments_that_drafts_lose_are_a_change_with_both_sides() -> None:
    found = check(drafted=lose_arguments)
    changed = {one.request: one for one in found.changed}
    assert set(changed) == {one.request for one in found.differences}
    one = changed["auto, /v1/responses, streamed"]
    assert one.because == "arguments.city is missing"
    assert (one.plain.calls[0].arguments, one.drafted.calls[0].arguments) == (
        '{"city": "Lisbon"}',
        "{}",
    )
    assert "vllm#56077" in one.reports
    assert found.plain_invalid == {}
    assert found.drafted_invalid[one.request] == one.because
    assert not any("streamed" not in name for name in changed)


@pytest.mark.parametrize(
    ("call", "invalid"), [(lose_arguments, 10), (lambda *_: "500 no", None)], ids=["lost", "broken"]
)
def test_what_fails_without_drafts_too_is_the_engines_fault(
    call: Call, invalid: int | None
) -> None:
    found = check(plain=call, drafted=call)
    assert found.differences == ()
    assert found.plain_invalid.keys() == found.drafted_invalid.keys()
    assert len(found.plain_invalid) == (invalid or found.requests)


def test_other_tokens_at_a_tie_are_the_targets_own_choice_over_every_api() -> None:
    found = check(drafted=change_text, gap=100.0)
    assert {one.verdict for one in found.differences} == {"tie"}
    assert {one.request.split(", ")[1] for one in found.differences} == {
        f"/v1/{name}" for name in STREAMS
    }
    assert "tied at token 10" in found.differences[0].because
    assert found.changed == ()


def test_other_tokens_without_a_tie_are_a_change() -> None:
    found = check(drafted=change_text, gap=0.0001)
    assert len(found.changed) == len(found.differences) == 4
    whys = [one.because for one in found.changed]
    assert "other tokens, where the target sees no tie" in whys
    assert "when repeated, it still differed" in whys


def test_no_tie_explains_what_the_grammar_forbids() -> None:
    def double_brace(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
        return answer if answer.calls else replace(answer, text="{" + answer.text)

    found = check(drafted=double_brace, gap=100.0)
    assert {one.verdict for one in found.differences} == {"changed"}
    assert any("vllm#48228" in one.reports for one in found.changed)
    assert all("the text is not JSON: '{{" in one.because for one in found.changed)


def test_a_change_over_one_api_that_does_not_come_again_is_called_that() -> None:
    seen: list[str] = []

    def change_once(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
        if path not in seen and answer.text and answer.calls:
            seen.append(path)
            return change_text(path, body, answer)
        return answer

    (one,) = check(drafted=only("messages", change_once)).differences
    assert (one.request, one.verdict) == ("auto, /v1/messages, streamed", "not repeated")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        ("500 no", "answered 500: 500 no"),
        ("data: {}\n\n", "the stream ended without"),
        ('event: error\ndata: {"error": {"message": "died"}}\n\n', "an error within the stream"),
        ('event: response.output_item.done\ndata: {"type": "response.output_item.done"}\n\n', ""),
    ],
)
def test_a_stream_that_only_drafts_break_is_a_change(broken: str, why: str) -> None:
    def break_off(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer | str:
        return broken if body["stream"] and len(answer.calls) > 1 else answer

    found = check(drafted=only("responses", break_off))
    first = found.changed[0]
    assert first.request == "parallel, /v1/responses, streamed"
    assert "vllm#55284" in first.reports
    assert why in first.because
    assert first.drafted.failure


def test_what_is_invalid_without_drafts_is_no_change_if_drafts_differ() -> None:
    found = check(plain=lose_arguments)
    assert {one.verdict for one in found.differences} == {"engine"}
    assert found.differences[0].because == "wrong without drafts: arguments.city is missing"
    assert found.drafted_invalid == {}


def test_a_failed_request_is_a_change_even_where_the_engine_is_wrong() -> None:
    def fail(path: str, body: dict[str, Any], answer: ToyAnswer) -> str:
        return "500 no"

    found = check(plain=lose_arguments, drafted=only("messages", fail))
    by_path = {(one.request.split(", ")[1], one.verdict) for one in found.differences}
    assert by_path == {
        ("/v1/messages", "changed"),
        ("/v1/chat/completions", "engine"),
        ("/v1/responses", "engine"),
    }


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda name, text: (name, text[:-1]), "are not JSON"),
        (lambda name, text: (name + name, text), "which was not requested"),
        (lambda name, text: (name, text.replace('"Lisbon"', '"city=Lisbon"')), "none of the"),
    ],
)
def test_an_invalid_call_is_named(spoil: Callable[[str, str], tuple[str, str]], why: str) -> None:
    def spoil_forced(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
        if find_forced({"tool_choice": None, **body}) != "get_weather" or "responses" not in path:
            return answer
        return replace(answer, calls=[spoil(*call) for call in answer.calls])

    found = check(drafted=spoil_forced)
    assert set(found.drafted_invalid) == {
        "named, /v1/responses",
        "named, /v1/responses, streamed",
    }
    assert all(why in what for what in found.drafted_invalid.values())
    assert len(found.changed) == 2


def test_a_call_too_many_and_one_too_few_are_invalid() -> None:
    def change(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
        single = body.get("parallel_tool_calls") is False
        return replace(answer, calls=[*answer.calls, *answer.calls] if single else ())

    invalid = check(drafted=change).drafted_invalid
    assert "2 calls" in invalid["required, /v1/responses"]
    assert "no call" in invalid["parallel, /v1/messages, streamed"]
    assert "auto, /v1/messages, streamed" not in invalid


def test_an_answer_that_is_cut_off_may_be_in_pieces() -> None:
    def cut_off(path: str, body: dict[str, Any], answer: ToyAnswer) -> ToyAnswer:
        if path == "/v1/messages" and not body["stream"]:
            return replace(answer, cut_off=True)
        calls = [(name, text[:9]) for name, text in answer.calls]
        return replace(answer, calls=calls, text=answer.text[:9], cut_off=True)

    found = check(plain=cut_off, drafted=cut_off)
    assert found.cut_off == found.same == found.requests
    assert (found.plain_invalid, found.drafted_invalid) == ({}, {})


def test_an_engine_without_a_parser_is_asked_for_structured_output_only() -> None:
    found = check(takes_tools=False, cases=CASES)
    assert {name.split(", ")[0] for name in found.skipped} == {
        case.name for case in CASES if case.tools
    }
    assert set(found.skipped.values()) == {"answered 400: requires --tool-call-parser"}
    assert found.requests == found.same == 7
    assert found.drafted_calls == 0


def test_reasoning_is_skipped_where_nothing_parses_it() -> None:
    engine = ToyEngine()
    with run_toy(engine) as url:
        calls = ask_plain(url, nothing, reasoning=False)
    assert set(calls.skipped.values()) == {NO_REASONING}
    assert len(calls.requests) == 30
    thinking = {body["chat_template_kwargs"]["enable_thinking"] for body in engine.bodies}
    assert thinking == {False}
    assert len({body["cache_salt"] for body in engine.bodies}) == 31


def test_a_dead_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asking = "slipstream.measuring.verifying.conformance.asking.is_healthy"
    monkeypatch.setattr(asking, lambda url: False)
    with pytest.raises(EngineError, match="stopped answering after 'named, /v1/chat"):
        check(plain=lambda *_: "500 dead")
