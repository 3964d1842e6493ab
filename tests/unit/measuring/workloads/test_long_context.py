"""Long documents are varied, sensible, of their size, and the same for the same id."""

import re

import pytest

from slipstream.measuring.workloads.long_context import SIZES, make_long_prompt
from slipstream.measuring.workloads.shipped import make_prompts
from slipstream.measuring.workloads.workload import Prompt, count_prompt_tokens, estimate_tokens

PLANTED = (
    "switched payments to the reserve processor by hand",
    "given up the house by the canal",
    "Two of the four hanger rods are broken through",
    "The bank has ended the loan",
    "I saw the entries of another company",
    "At 03:10 a distress call",
    "the old one collapsed under the mayor",
    "kept six minutes fast on purpose",
    "nothing was written for 11 hours",
    "goes under the hammer on the 30th",
    "the span is 9.6 m and not 6.9 m",
    "The well in the inner yard is contaminated",
    "I'm 84 and my late husband",
    "a piece of worked wood",
    "price typed wrongly",
    "If the siren sounds three times",
    "item 4471 corrected",
    "your grandfather's notebook",
    "A colony of bats hibernates",
    "the name is 'Bella'",
    "the clock of my phone to 29 February",
    "in charge of the laboratory after",
    "a live pigeon",
    "The cat Minerva is staff",
)


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


def test_the_same_id_gives_the_same_document() -> None:
    first, again, other = (
        make_long_prompt("long-4k", name, 1, estimate_tokens) for name in ("a", "a", "b")
    )
    assert first == again
    assert text_of(first) != text_of(other)


def test_every_document_holds_what_it_is_asked_about(
    prompts: dict[str, tuple[Prompt, ...]],
) -> None:
    for made in prompts.values():
        for prompt, planted in zip(made, PLANTED, strict=True):
            document, _, question = text_of(prompt).rpartition("\n\n")
            place = document.find(planted) / len(document)
            assert 0.05 < place < 0.98, prompt.id
            assert planted not in question
            assert question.count(".") + question.count("?") >= 2


def test_every_slot_is_filled(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    texts = [text_of(prompt) for made in prompts.values() for prompt in made]
    assert [text[:80] for text in texts if re.search(r"[{}]| $|\b(\w+ \w+) \1\b", text)] == []


def test_no_two_documents_begin_alike(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    warm_up = make_prompts("long-4k", estimate_tokens, warm_up=True)
    texts = [text_of(one) for made in (*prompts.values(), warm_up) for one in made]
    assert len({text[:150] for text in texts}) == len(texts) == 4 * 24 + 4


def test_a_document_seldom_repeats_itself(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    for prompt in prompts["long-32k"]:
        told = [line for line in text_of(prompt).splitlines() if line[:1] not in "<>#"]
        lines = [line for line in told if len(line) > 60]
        assert len(set(lines)) > 0.85 * len(lines), prompt.id


def test_people_do_not_write_to_themselves(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    titles = [text_of(made[1]).splitlines()[0] for made in prompts.values()]
    for title in titles:
        told = re.fullmatch(r"Letters between (\w+) in (\w+) and (\w+) in (\w+)", title)
        assert told is not None
        assert len(set(told.groups())) == 4


def test_the_clock_only_moves_on(prompts: dict[str, tuple[Prompt, ...]]) -> None:
    times = re.findall(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) ", text_of(prompts["long-8k"][0]), re.M)
    assert len(times) > 50
    assert times == sorted(times)
