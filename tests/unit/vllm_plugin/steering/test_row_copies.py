"""Rows of a batch copy what one request by itself would, without a look at what tensors hold."""

import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slipstream.vllm_plugin.steering import row_copies
from slipstream.vllm_plugin.steering.copying import (
    MOST_COMPARED,
    MOST_MATCHED,
    PRIOR_TOKENS,
    CopyIndex,
    CopyRates,
)
from slipstream.vllm_plugin.steering.row_copies import (
    Copies,
    RowRates,
    align_ends,
    choose_window,
    find_copies,
    lay_over,
    mark_point_masses,
)

WIDTH = 7
Rows = Sequence[Sequence[int]]


def search(tokens: Sequence[int], width: int, window: int) -> tuple[int, list[int]]:
    """Compare every end with the last tokens, one by one."""
    last, best, best_end = len(tokens) - 1, 0, -1
    for end in range(max(0, len(tokens) - window), last):
        matched = 0
        while (
            matched < min(MOST_MATCHED, end + 1) and tokens[end - matched] == tokens[last - matched]
        ):
            matched += 1
        if matched >= max(best, row_copies.LEAST_AGREEING):
            best, best_end = matched, end
    onward = list(tokens[best_end + 1 :])
    while len(onward) < width:
        onward += onward
    return best, onward[:width]


def find(rows: Rows, width: int = WIDTH, window: int | None = None) -> Copies:
    """Find copies as the runner does, in slots that are not in order."""
    longest = max(map(len, rows))
    tokens = torch.full((2 * len(rows), longest + 9), 12345, dtype=torch.int32)
    slots = torch.randperm(2 * len(rows))[: len(rows)]
    for slot, row in zip(slots.tolist(), rows, strict=True):
        tokens[slot, : len(row)] = torch.tensor(row, dtype=torch.int32)
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    return find_copies(align_ends(tokens, slots, lengths, window or max(2, longest)), width)


def compare(rows: Rows, width: int = WIDTH, window: int | None = None) -> bool:
    """Return whether every row has the match and the copy that a search one by one finds."""
    copies = find(rows, width, window)
    found = zip(copies.matched.tolist(), copies.tokens.tolist(), strict=True)
    searched = [search(row, width, window or max(map(len, rows))) for row in rows]
    return [(matched, matched and onward) for matched, onward in found] == [
        (matched, matched and onward) for matched, onward in searched
    ]


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=60), min_size=1, max_size=5))
def test_the_latest_of_the_longest_matches_is_found_for_each_row(rows: Rows) -> None:
    assert compare(rows)


@given(
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=40), min_size=1, max_size=3),
    st.integers(1, 31),
    st.integers(2, 40),
)
def test_any_width_and_window(rows: Rows, width: int, window: int) -> None:
    assert compare(rows, width, window)


@pytest.mark.parametrize("seed", range(8))
def test_long_texts_with_copied_parts(seed: int) -> None:
    draw = random.Random(seed)
    rows = []
    for _ in range(6):
        row = [draw.randrange(50000) for _ in range(draw.randrange(200, 1500))]
        for _ in range(6):
            begin = draw.randrange(len(row))
            row += row[begin : begin + draw.randrange(2, 80)]
        rows.append(row)
    assert compare(rows)


@pytest.mark.parametrize("vocabulary", [2, 10, 1000])
def test_a_row_copies_what_the_index_of_one_request_does(vocabulary: int) -> None:
    draw = random.Random(vocabulary)
    for _ in range(30):
        row = [draw.randrange(vocabulary) for _ in range(draw.randrange(3, 300))]
        begin = draw.randrange(len(row))
        row += row[begin : begin + draw.randrange(2, 60)]
        copies, copy = find([row]), CopyIndex(row).propose(WIDTH)
        assert copies.matched[0] == (copy.matched if copy else 0)
        assert copy is None or copies.tokens[0].tolist() == copy.tokens


def test_a_match_longer_than_is_ranked_wins_over_sixty_later_ones() -> None:
    end = list(range(100, 100 + row_copies.RANKED))
    row = [7, 8, *end, 500]
    for at in range(MOST_COMPARED - 1):
        row += [1000 + at, *end, 501]
    row += [7, 8, *end]
    assert find([row]).tokens[0, 0] == 500


def test_a_request_with_one_token_has_no_match() -> None:
    assert find([[5], [5, 5], [5, 5, 5]]).matched.tolist() == [0, 0, 2]


def test_no_more_positions_are_searched_than_are_bounded() -> None:
    assert choose_window(1, 262_144) == 262_144
    assert choose_window(4, 262_144) == 262_144
    assert choose_window(256, 262_144) == 4096
    assert choose_window(256, 100) == 100


def lay(matched: int, *, agrees: bool, certain: bool = True, enabled: bool = True) -> bool:
    drafts = torch.tensor([[1, 2, 3]])
    copies = Copies(torch.tensor([[1 if agrees else 9, 8, 7]]), torch.tensor([matched]))
    rows, copied = lay_over(drafts, copies, torch.tensor([enabled]), torch.tensor([certain]))
    assert rows.tolist() == (copies.tokens if copied[0] else drafts).tolist()
    return bool(copied[0])


def test_a_long_match_copies_and_a_short_one_where_the_drafter_agrees() -> None:
    assert [lay(matched, agrees=False) for matched in (0, 2, 3, 4, 32)] == [False] * 3 + [True] * 2
    assert [lay(matched, agrees=True) for matched in (0, 1, 2, 3, 4)] == [False] * 2 + [True] * 3
    assert not lay(32, agrees=True, enabled=False)


def test_a_drawn_first_token_decides_nothing() -> None:
    assert not lay(3, agrees=True, certain=False)
    assert lay(4, agrees=False, certain=False)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_copied_token_is_a_point_mass_and_other_rows_keep_their_logits(
    dtype: torch.dtype,
) -> None:
    logits = torch.randn(4, 3, 50).to(dtype)
    before = logits.clone()
    slots, rows = torch.tensor([2, 0]), torch.tensor([[4, 9, 4], [1, 2, 3]])
    mark_point_masses(logits, slots, rows, torch.tensor([True, False]))
    assert torch.equal(logits[[0, 1, 3]], before[[0, 1, 3]])
    for temperature in (0.01, 1.0, 2.0):
        shares = (logits[2].float() / temperature).softmax(-1)
        assert torch.equal(shares, torch.nn.functional.one_hot(rows[0], 50).float())


def test_rates_follow_what_was_accepted() -> None:
    rates = RowRates(torch.device("cpu"))
    before = rates.predict(torch.tensor([4]), 3)[0]
    first, second, third = (CopyRates().rate(place, agrees=None) for place in (4, 5, 6))
    assert before.tolist() == pytest.approx([first, second, third])
    matched, copied = torch.tensor([4, 4]), torch.tensor([True, False])
    for _ in range(100):  # Of three copied tokens the first is right; the other row is no copy.
        rates.learn(matched, copied, torch.tensor([1, 0]), torch.tensor([2, 3]), 3)
    after = rates.predict(torch.tensor([4]), 3)[0].tolist()
    count = PRIOR_TOKENS + 100
    right, wrong = (first * PRIOR_TOKENS + 100) / count, second * PRIOR_TOKENS / count
    assert after == pytest.approx([right, wrong, third])


def test_a_copy_that_ended_or_was_cut_teaches_nothing_of_what_was_not_verified() -> None:
    rates = RowRates(torch.device("cpu"))
    rates.learn(torch.tensor([30]), torch.tensor([True]), torch.tensor([2]), torch.tensor([0]), 7)
    before = CopyRates().rate(30, agrees=None)
    learnt = (before * PRIOR_TOKENS + 1) / (PRIOR_TOKENS + 1)
    after = rates.predict(torch.tensor([30]), 4)[0].tolist()
    assert after == pytest.approx([learnt, learnt, before, before])


def test_nothing_reads_a_tensor_on_the_host_or_has_a_shape_that_depends_on_one() -> None:
    with torch.device("meta"):
        tokens = torch.zeros(8, 4096, dtype=torch.int32)
        slots, lengths = torch.zeros(5, dtype=torch.int64), torch.zeros(5, dtype=torch.int32)
        copies = find_copies(align_ends(tokens, slots, lengths, 1000), WIDTH)
        drafts, some = torch.zeros(5, WIDTH, dtype=torch.int64), torch.zeros(5, dtype=torch.bool)
        rows, copied = lay_over(drafts, copies, some, some)
        mark_point_masses(torch.zeros(8, WIDTH, 100), slots, rows, copied)
        rates = RowRates(torch.device("meta"))
        rates.learn(copies.matched, copied, lengths, lengths, WIDTH)
        assert rates.predict(copies.matched, WIDTH).shape == rows.shape == (5, WIDTH)


def test_old_counts_fade() -> None:
    rates = RowRates(torch.device("cpu"))
    row, yes = torch.tensor([4]), torch.tensor([True])
    for accepted in (0, 1):
        for _ in range(2000):
            rates.learn(row, yes, torch.tensor([accepted]), torch.tensor([1 - accepted]), 1)
    assert rates.predict(row, 1).item() > 0.99
