"""Takes of a model whose tokens are letters, and a demo of them."""

from collections.abc import Sequence

from slipstream.demo.performance import Demo, Part
from slipstream.demo.recording import Chunk, Take, mark_tokens
from slipstream.measuring.workloads import Prompt
from tests.unit.reporting.records import make_conditions, make_plans

TEXT = "To be, or not to be, that is the question"
STEP_SECONDS = 0.1


def decode(token_ids: Sequence[int]) -> str:
    return "".join(map(chr, token_ids))


def make_take(text: str = TEXT, *, drafts: int = 0, kind: str = "prose", step: float = 1.0) -> Take:
    """Stream a text, so many letters a step more than one, after a prompt of half a second."""
    size = drafts + 1
    parts = [text[0], *(text[at : at + size] for at in range(1, len(text), size))]
    chunks = [
        Chunk(0.5 + step * STEP_SECONDS * number, tuple(map(ord, part)))
        for number, part in enumerate(parts)
    ]
    return Take(
        prompt=Prompt(
            id=kind,
            kind=kind,
            messages=({"role": "user", "content": f"Some {kind}, please."},),
            max_tokens=80,
            origin="slipstream",
        ),
        tokens=mark_tokens(chunks, decode, drafted=drafts > 0),
        drafts=len(parts) - 1 if drafts else 0,
        accepted=sum(len(part) - 1 for part in parts),
    )


def make_demo(*others: str, step: float = 1.0) -> Demo:
    """Take two prompts with one and three drafted letters a step; `others` are drafted texts."""
    texts = [*others, TEXT, TEXT][:2]
    return Demo(
        conditions=make_conditions(plan=make_plans()[1]),
        plain_plan=make_plans()[0],
        plain=(make_take(kind="code"), make_take(kind="prose")),
        drafted=(
            make_take(texts[0], kind="code", drafts=1, step=step),
            make_take(texts[1], kind="prose", drafts=3, step=step),
        ),
        parts=(Part(name="plan", seconds=0.4), Part(name="replay", seconds=9.1)),
    )
