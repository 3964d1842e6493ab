"""Both arms are asked the same in turn; ties are told from faults, and faults are made small."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from slipstream.errors import EngineError, InvalidInputError
from slipstream.measuring.verifying import sampling_check
from slipstream.measuring.verifying.certificate import AnswerCheck, ArmName, Findings, conclude
from slipstream.measuring.verifying.conformance import asking
from slipstream.measuring.verifying.conformance.cases import CASES
from slipstream.measuring.verifying.verification import (
    Running,
    SequenceLimits,
    Verification,
    make_length_requests,
    make_long_requests,
    split_requests,
)
from slipstream.measuring.workloads import Prompt, Workload
from tests.unit.measuring.verifying.toy_engine import (
    BLOCK,
    CONTEXT,
    SPOILED_ABOVE,
    VOCABULARY,
    Text,
    ToyEngine,
    find_gap,
    lose_arguments,
    run_toy,
    spoil,
)

ANSWER = 16
SCHEMA = {"response_format": {"type": "json_schema"}}


def ask(number: int, **extra: Any) -> Prompt:
    text = f"{number} " + "the quick brown fox jumps over the lazy dog"[number % 9 :]
    return Prompt(
        id=f"prompt-{number}",
        kind="prose",
        messages=({"role": "user", "content": text},),
        max_tokens=ANSWER,
        extra=extra,
        origin="test",
    )


WORKLOAD = Workload(
    name="toy", prompts=(*map(ask, range(12)), ask(20, **SCHEMA), ask(21, **SCHEMA))
)


@dataclass
class Arms:
    """Two toy engines, of which one runs at a time."""

    plain: ToyEngine = field(default_factory=ToyEngine)
    drafted: ToyEngine = field(default_factory=ToyEngine)
    dtype: str = "bfloat16"
    running: int = 0
    said: list[str] = field(default_factory=list)

    @contextmanager
    def open(self, name: ArmName) -> Iterator[Running]:
        assert self.running == 0
        self.running += 1
        with run_toy(getattr(self, name)) as url:
            yield Running(url, self.dtype)
        self.running -= 1

    def verify(self, workload: Workload = WORKLOAD, **changes: Any) -> Findings:
        exam = Verification(
            workload=workload,
            concurrency=4,
            thinking=None,
            seed=1,
            samples=60,
            progress=self.said.append,
        )
        return replace(exam, **changes).run(self.open)


@pytest.fixture(autouse=True, scope="module")
def ask_for_fewer_calls() -> Iterator[None]:
    """Ask one case over six ways; conformance/test_suite.py asks them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asking, "CASES", CASES[:1])
        yield


@pytest.fixture(autouse=True)
def count_fewer_chances(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_check, "PERMUTATIONS", 1100)
    monkeypatch.setattr(sampling_check, "TRIALS", 20)


@pytest.fixture(scope="module")
def sound() -> tuple[Arms, Findings]:
    """Return arms that agree, and what was found about them."""
    arms = Arms()
    return arms, arms.verify()


def find(findings: Findings, name: str) -> AnswerCheck:
    return next(check for check in findings.checks if check.name == name)


def choose_second_of_a_tie(prompt: Text, answer: Text, ranked: Text) -> int:
    tied = find_gap([*prompt, *answer], ranked) <= 0.25
    return ranked[1] if tied and len(answer) % 2 else ranked[0]


def test_an_engine_whose_drafts_change_nothing_passes(sound: tuple[Arms, Findings]) -> None:
    arms, findings = sound
    conditions = ("alone", "long", "cached", "batched", "constrained", "lengths")
    assert [check.name for check in findings.checks] == [
        *(f"drafted {name} against plain {name}" for name in conditions),
        "drafted cached against drafted alone",
        "drafted batched against drafted alone",
        "plain cached against plain alone",
        "plain batched against plain alone",
    ]
    assert [check.prompts for check in findings.checks] == [8, 2, 10, 12, 2, BLOCK, 10, 8, 10, 8]
    assert all(check.equal == check.prompts for check in findings.checks)
    assert all(
        (check.ties, check.faults, check.earliest) == (0, 0, None) for check in findings.checks
    )
    plain, drafted = findings.regrets
    assert (drafted.answers, drafted.ties, drafted.faults, drafted.worst) == (44, 0, 0, 0)
    assert drafted.best == drafted.tokens == plain.tokens
    assert findings.failure is None
    assert (findings.calls.requests, findings.calls.same, findings.calls.drafted_calls) == (6, 6, 6)
    passed, sentence = conclude(findings)
    assert passed
    assert f"of {drafted.tokens:,} tokens with drafts each is" in sentence
    seeds = [
        {body["seed"] for body in engine.bodies if body["temperature"]}
        for engine in (arms.plain, arms.drafted)
    ]
    assert [len(own) for own in seeds] == [60, 60]
    assert seeds[0].isdisjoint(seeds[1])
    assert {"plain, alone: 8 of 8", "drafted, sampled: 48 of 60"} < set(arms.said)
    assert len(arms.said) < 80


def test_other_tokens_within_the_tolerance_are_ties() -> None:
    findings = Arms(drafted=ToyEngine(choose=choose_second_of_a_tie)).verify()
    batched = find(findings, "drafted batched against plain batched")
    assert batched.ties > 0
    assert batched.faults == 0
    assert 0 < (batched.worst_gap or 0) <= 0.25
    assert batched.earliest is not None
    assert batched.earliest % 2 == 1
    assert findings.regrets[1].ties > 0
    assert findings.regrets[0].ties == 0
    assert conclude(findings)[0]


def test_a_wrong_token_is_found_and_its_prompt_made_small() -> None:
    findings = Arms(drafted=ToyEngine(choose=spoil)).verify()
    passed, sentence = conclude(findings)
    assert not passed
    assert sentence.startswith("Speculation changes the text: ")
    assert f"{findings.regrets[1].faults} of {findings.regrets[1].tokens} tokens" in sentence
    assert "drafted batched against plain batched" in sentence
    assert findings.regrets[0].faults == 0
    failure = findings.failure
    assert failure is not None
    assert failure.reproduced
    assert len(failure.prompt_ids) == SPOILED_ABOVE + 1
    assert (failure.gap or 0) > findings.tolerance.gap


def spoil_once() -> ToyEngine:
    seen: list[int] = []

    def choose(prompt: Text, answer: Text, ranked: Text) -> int:
        seen.append(ranked[0])
        return ranked[-2] if len(seen) == 40 else ranked[0]

    return ToyEngine(choose=choose)


def take_the_fourth_under_a_grammar(prompt: Text, answer: Text, ranked: Text) -> int:
    return ranked[3] if len(ranked) < VOCABULARY and len(answer) == 5 else ranked[0]


def stop_early(prompt: Text, answer: Text, ranked: Text) -> int:
    return -1 if len(answer) == 5 and len(prompt) > BLOCK else ranked[0]


@pytest.mark.parametrize(
    ("engine", "regrets", "condition", "check", "failure"),
    [
        # Not again: it is reported as it was.
        (spoil_once, 1, "alone", {"faults": 1}, {"condition": "alone", "reproduced": False}),
        # Under a grammar the plain arm is the judge.
        (
            lambda: ToyEngine(choose=take_the_fourth_under_a_grammar),
            0,
            "constrained",
            {"earliest": 5},
            {"condition": "constrained", "position": 5, "reproduced": None},
        ),
        # An answer that just ends.
        (
            lambda: ToyEngine(choose=stop_early),
            0,
            "alone",
            {"faults": 8, "worst_gap": None, "earliest": 5},
            {"position": 5, "gap": None},
        ),
        # A request that only the drafts fail.
        (
            lambda: ToyEngine(fails_grammars=True),
            0,
            "constrained",
            {"faults": 2, "worst_gap": None, "earliest": 0},
            {"condition": "constrained"},
        ),
    ],
    ids=["once", "grammar", "ends", "fails"],
)
def test_a_fault_is_found_in_its_condition(
    engine: Callable[[], ToyEngine],
    regrets: int,
    condition: str,
    check: dict[str, Any],
    failure: dict[str, Any],
) -> None:
    findings = Arms(drafted=engine()).verify()
    assert not conclude(findings)[0]
    assert findings.regrets[1].faults == regrets
    found = find(findings, f"drafted {condition} against plain {condition}")
    assert found.faults > 0
    assert found.model_dump(include=set(check)) == check
    assert findings.failure is not None
    assert findings.failure.model_dump(include=set(failure)) == failure
    assert len(findings.failure.prompt_ids) > BLOCK


def test_a_request_that_fails_without_drafts_ends_it() -> None:
    with pytest.raises(EngineError, match="answered 500"):
        Arms(plain=ToyEngine(fails_grammars=True)).verify()


def test_a_call_that_drafts_change_is_a_fault() -> None:
    findings = Arms(drafted=ToyEngine(call=lose_arguments)).verify()
    assert (findings.regrets[1].faults, findings.failure) == (0, None)
    assert len(findings.calls.changed) == 3
    passed, sentence = conclude(findings)
    assert not passed
    assert "3 of 6 requests with tools or a schema are answered differently (named, " in sentence


def test_an_engine_that_is_wrong_without_drafts_is_no_witness() -> None:
    findings = Arms(plain=ToyEngine(choose=spoil)).verify()
    assert findings.tolerance.gap == 1.0
    passed, sentence = conclude(findings)
    assert not passed
    assert sentence.startswith(f"Cannot tell: even without drafts, {findings.regrets[0].faults} of")


def test_text_that_is_sampled_otherwise_fails() -> None:
    findings = Arms(drafted=ToyEngine(heat=4.0)).verify(samples=200)
    assert findings.regrets[1].faults == 0
    passed, sentence = conclude(findings)
    assert not passed
    assert "sampled text has another distribution" in sentence


def test_every_prompt_is_asked_greedily_and_without_the_models_own_penalty() -> None:
    arms = Arms()
    prompts = (ask(1, temperature=0.7), ask(2, min_tokens=4), ask(3, repetition_penalty=1.2))
    findings = arms.verify(Workload(name="own", prompts=prompts), thinking=False)
    asked = [body for body in arms.plain.bodies if "cache_salt" not in body]
    chats = [body for body in asked if "messages" in body]
    assert {body["temperature"] for body in chats} == {0.0}
    assert {body["repetition_penalty"] for body in chats} == {1.0, 1.2}
    assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in chats)
    assert find(findings, "drafted constrained against plain constrained").prompts == 2
    assert find(findings, "drafted alone against plain alone").prompts == 1


def test_a_forced_tool_is_a_grammar() -> None:
    prompts = (ask(1, tool_choice="none"), ask(2, tool_choice="required"))
    free, bound = split_requests(Workload(name="own", prompts=prompts), None)
    assert [request.prompt_id for request in free] == ["prompt-1"]
    assert [request.prompt_id for request in bound] == ["prompt-2"]


def test_prompts_that_are_all_bent_are_refused_before_any_start() -> None:
    arms = Arms(running=1)
    with pytest.raises(InvalidInputError, match="all prompts have a grammar"):
        arms.verify(Workload(name="own", prompts=(ask(1, **SCHEMA),)))


def test_long_prompts_fill_the_context_and_short_ones_every_place_of_a_block(
    sound: tuple[Arms, Findings],
) -> None:
    arms, _ = sound
    long = [body for body in arms.drafted.bodies if body.get("ignore_eos")]
    assert [len(body["prompt"]) for body in long] == [CONTEXT - ANSWER - 1] * 4
    assert long[0]["prompt"] != long[1]["prompt"]
    alone = arms.plain.bodies[0]
    first = arms.plain.read_chat(alone["messages"])
    assert long[0]["prompt"][: len(first)] == first
    short = [
        len(body["prompt"])
        for body in arms.drafted.bodies
        if "prompt" in body and body["max_tokens"] == 8
    ]
    assert sorted(short) == list(range(1, BLOCK + 1))


def test_a_large_block_is_tried_near_its_end_and_a_huge_context_up_to_a_limit() -> None:
    limits = SequenceLimits(context=1 << 18, block=528)
    lengths = [len(one.prompt_ids) for one in make_length_requests([(1, 2, 3)], limits)]
    assert (lengths[0], lengths[-1], len(lengths)) == (401, 528, 128)
    (long,) = make_long_requests([(1, 2, 3)], limits, 48)
    assert len(long.prompt_ids) == 32768 - 49


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        (lambda: ToyEngine(tells_context=False), "does not report its context"),
        (lambda: ToyEngine(tells_prompts=False), "log-probabilities of a prompt"),
        (lambda: ToyEngine(greeting=2), "different tokens of the same prompt"),
    ],
)
def test_an_engine_that_cannot_be_verified_is_named(
    engine: Callable[[], ToyEngine], message: str
) -> None:
    arms = Arms(plain=engine()) if "context" in message else Arms(drafted=engine())
    with pytest.raises(EngineError, match=message):
        arms.verify()
