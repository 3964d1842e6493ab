"""Long documents are of their size, and the same for the same id; their hash is in test_shipped."""

import pytest

from slipstream.measuring.workloads.long_context import SIZES, make_long_prompt
from slipstream.measuring.workloads.shipped import make_prompts
from slipstream.measuring.workloads.workload import Prompt, count_prompt_tokens, estimate_tokens


def count_words(text: str) -> int:
    return len(text.split())


def text_of(prompt: Prompt) -> str:
    return str(prompt.messages[0]["content"])


@pytest.fixture(scope="module")
def prompts() -> dict[str, tuple[Prompt, ...]]:
    return {kind: make_prompts(kind, estimate_tokens) for kind in SIZES}


def test_a_document_fills_its_size_with_its_answer(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    for kind, size in SIZES.items():
        for prompt in prompts[kind]:
            tokens = count_prompt_tokens(prompt, estimate_tokens) + prompt.max_tokens
            assert 0.9 * size < tokens <= size


def test_the_targets_own_count_corrects_the_length() -> None:
    guessed = make_long_prompt("long-4k", "long-4k-03", 3, estimate_tokens)
    counted = make_long_prompt("long-4k", "long-4k-03", 3, count_words)
    words = [count_words(text_of(prompt)) for prompt in (guessed, counted)]
    assert words[0] < 3000
    assert 3600 < words[1] <= 4096 - counted.max_tokens
    assert text_of(counted)[:1000] == text_of(guessed)[:1000]


def test_no_two_documents_begin_alike(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    warm_up = make_prompts("long-4k", estimate_tokens, warm_up=True)
    texts = [text_of(one) for made in (*prompts.values(), warm_up) for one in made]
    assert len({text[:150] for text in texts}) == len(texts) == 4 * 24 + 4
