"""Takes of a model whose tokens are letters, and a demo of them."""

from collections.abc import Sequence
from random import Random

from slipstream.demo.performance import Demo, RecordedAnswer, TimedPart, mark_tokens
from slipstream.measuring.client.sample import Sample
from slipstream.measuring.comparing.comparison import ComparedArm
from slipstream.measuring.workloads import Prompt
from tests.unit.reporting.records import make_conditions, make_plans, make_start

TEXT = "To be, or not to be, that is the question"
STEP_SECONDS = 0.1


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def make_answer(
    text: str = TEXT, *, drafts: int = 0, kind: str = "prose", step: float = 1.0
) -> RecordedAnswer:
    """Stream a text, so many letters a step more than one, after a prompt of half a second."""
    size = drafts + 1
    parts = [text[0], *(text[at : at + size] for at in range(1, len(text), size))]
    chunks = [
        (0.5 + step * STEP_SECONDS * number, list(map(ord, part)))
        for number, part in enumerate(parts)
    ]
    return RecordedAnswer(
        prompt=Prompt(
            id=kind,
            kind=kind,
            messages=({"role": "user", "content": f"Some {kind}, please."},),
            max_tokens=80,
            origin="slipstream",
        ),
        tokens=mark_tokens(chunks, decode, drafted=drafts > 0),
    )


def make_sample(answer: RecordedAnswer) -> Sample:
    """Measure an answer: each of its steps after the first token was a draft, if any was."""
    accepted = sum(token.drafted for token in answer.tokens)
    steps = len({token.seconds for token in answer.tokens}) - 1
    return Sample(
        prompt_id=answer.prompt.id,
        kind=answer.prompt.kind,
        concurrency=1,
        began_at=0,
        seconds=answer.seconds,
        first_token_seconds=answer.tokens[0].seconds,
        output_tokens=len(answer.tokens),
        drafts=steps if accepted else 0,
        accepted=accepted,
        accepted_by_position=(accepted,) if accepted else (),
    )


def make_demo(*others: str, step: float = 1.0) -> Demo:
    """Record two prompts with one and three drafted letters a step; `others` are drafted texts."""
    texts = [*others, TEXT, TEXT][:2]
    plain = (make_answer(kind="code"), make_answer(kind="prose"))
    drafted = (
        make_answer(texts[0], kind="code", drafts=1, step=step),
        make_answer(texts[1], kind="prose", drafts=3, step=step),
    )
    first, second = (
        make_start(arm, 0, list(map(make_sample, answers)), Random(1))
        for arm, answers in (("A", plain), ("B", drafted))
    )
    plans = make_plans()
    return Demo(
        conditions=make_conditions(plan=plans[1]),
        arms=(ComparedArm(name="plain", plan=plans[0]), ComparedArm(name="drafted", plan=plans[1])),
        starts=(first, second),
        answers=(plain, drafted),
        parts=(TimedPart(name="plan", seconds=0.4), TimedPart(name="replay", seconds=9.1)),
    )
