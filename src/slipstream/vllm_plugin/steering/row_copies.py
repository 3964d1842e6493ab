"""Drafts that copy, as functions on a batch of rows: for runner V2, whose tokens are on the GPU.

What `copying.py` does for one request in Python is done here for all requests of a step by a fixed
number of tensor operations. None waits for the device, and no shape depends on what the tensors
hold, so it can run beside CUDA graphs.

A step looks at no more than `MOST_POSITIONS` tokens of all its requests together: contexts of up to
262,144 tokens are searched whole for 4 requests, the last 4,096 tokens of each for 256. That bounds
a step at 75 operations, half of them on all positions, and 22 MiB of memory, which is freed after
it. Without the bound, 256 such contexts would take 1.4 GiB and 64 times the work.
"""

from typing import NamedTuple

import torch

from slipstream.vllm_plugin.steering.copying import (
    BUCKETS,
    MOST_COMPARED,
    MOST_COUNTED,
    MOST_MATCHED,
    PRIOR_TOKENS,
    PRIORS,
)

# A match this long replaces the drafter's row; a shorter one only if the drafter's first token is
# the copy's.
LEAST_MATCHED = 4
LEAST_AGREEING = 2
# Matches are ranked by their last tokens, so many; `MOST_COMPARED` of them are compared further.
RANKED = 8
MOST_POSITIONS = 1 << 20
# Of a request without a token there, and of the last tokens of one that is shorter than that.
_NOTHING, _NEVER = -1, -2


class Copies(NamedTuple):
    """Tokens that may come [requests, width], and the length of the match before them."""

    tokens: torch.Tensor
    matched: torch.Tensor


def choose_window(requests: int, longest: int) -> int:
    """Return how many of each request's last tokens are searched; all figures are the host's."""
    return max(2, min(longest, MOST_POSITIONS // requests))


def align_ends(
    tokens: torch.Tensor, slots: torch.Tensor, lengths: torch.Tensor, window: int
) -> torch.Tensor:
    """Return the last tokens of the requests in these slots, which all end in the last column.

    Before a window are `MOST_MATCHED` columns more, so that a match may begin before it.
    """
    back = torch.arange(window + MOST_MATCHED, 0, -1, device=tokens.device)
    places = lengths[:, None] - back
    taken = tokens[slots[:, None], places.clamp(0, tokens.shape[1] - 1)]
    return taken.masked_fill_(places < 0, _NOTHING)


def find_copies(aligned: torch.Tensor, width: int) -> Copies:
    """Return what follows the longest earlier match of each request, of equals the latest.

    A match counts up to `MOST_MATCHED` tokens, the match of a request without one counts 0. A copy
    that reaches the last token goes on with its own beginning.
    """
    last = aligned.shape[1] - 1
    suffix = aligned[:, -MOST_MATCHED:].flip(1)
    suffix = suffix.masked_fill(suffix == _NOTHING, _NEVER)
    ends, ranks = _rank_ends(aligned, suffix)
    back = torch.arange(MOST_MATCHED, device=aligned.device)
    compared = (ends[:, :, None] - back).flatten(1)
    same = aligned.gather(1, compared).view(*ends.shape, MOST_MATCHED) == suffix[:, None]
    matched = same.to(torch.int32).cumprod(2, dtype=torch.int32).sum(2, dtype=torch.int32)
    matched = matched * (ranks >= 0)
    best = (matched.to(torch.int64) * (last + 1) + ends).max(1).values
    matched, end = best // (last + 1), best % (last + 1)
    onward = torch.arange(width, device=aligned.device) % (last - end)[:, None]
    return Copies(aligned.gather(1, end[:, None] + 1 + onward), matched)


def _rank_ends(aligned: torch.Tensor, suffix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the columns where the best matches end, by `RANKED` tokens, and their ranks or -1."""
    first, last = MOST_MATCHED, aligned.shape[1] - 1
    same = aligned[:, first:last] == suffix[:, :1]
    matched = same.to(torch.int32)
    for back in range(1, RANKED):
        same &= aligned[:, first - back : last - back] == suffix[:, back : back + 1]
        matched += same
    columns = torch.arange(first, last, device=aligned.device, dtype=torch.int32)
    ranks = matched.mul_(last).add_(columns)
    ranks.masked_fill_(ranks < LEAST_AGREEING * last, -1)
    ranks = ranks.topk(min(MOST_COMPARED, last - first), 1).values
    return (ranks % last).clamp(first).to(torch.int64), ranks


def lay_over(
    drafts: torch.Tensor, copies: Copies, enabled: torch.Tensor, certain: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows with copies in the place of drafts, and which of them are copies.

    `certain` are the requests whose drafts are no draws. Only their first token may decide: a copy
    that is kept where a drawn token agrees is neither a point mass nor the drafter's distribution,
    and what is verified against either comes out with another distribution than the target's.
    """
    agrees = (drafts[:, 0] == copies.tokens[:, 0]) & certain
    least = LEAST_MATCHED - agrees.to(torch.int32) * (LEAST_MATCHED - LEAST_AGREEING)
    copied = enabled & (copies.matched >= least)
    return torch.where(copied[:, None], copies.tokens.to(drafts.dtype), drafts), copied


def mark_point_masses(
    draft_logits: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor, copied: torch.Tensor
) -> None:
    """Make the kept logits of copied tokens so large that softmax gives 1 to them and 0 to others.

    The drafter writes all logits of a row anew in each step, so nothing has to be undone.
    """
    steps = torch.arange(rows.shape[1], device=rows.device)
    place = (slots[:, None], steps, rows)
    certain = min(1e30, torch.finfo(draft_logits.dtype).max)
    draft_logits[place] = draft_logits[place].masked_fill(copied[:, None], certain)


class RowRates:
    """How often copied tokens were right, by the length of the match before them.

    It holds two tensors and reads none on the host. What it learnt from depends on nothing but
    tokens that were given out, as does a match, so verification may be cut by it without a bias.
    """

    def __init__(self, device: torch.device) -> None:
        priors = torch.zeros(MOST_MATCHED + 1)
        for least, (alone, agreeing, _) in zip(BUCKETS, PRIORS, strict=True):
            priors[least:] = agreeing if least < LEAST_MATCHED else alone
        self._right = (priors * PRIOR_TOKENS).to(device)
        self._seen = torch.full_like(self._right, PRIOR_TOKENS)

    def predict(self, matched: torch.Tensor, width: int) -> torch.Tensor:
        """Return the chance of each copied token if all before it are right [requests, width]."""
        return (self._right / self._seen)[_list_matches(matched, width)]

    def learn(
        self,
        matched: torch.Tensor,
        copied: torch.Tensor,
        accepted: torch.Tensor,
        rejected: torch.Tensor,
        width: int,
    ) -> None:
        """Count the accepted tokens of every copy, and the one that was rejected, if any."""
        steps = torch.arange(width, device=matched.device)
        right = copied[:, None] & (steps < accepted[:, None])
        seen = right | (copied & (rejected > 0))[:, None] & (steps == accepted[:, None])
        places = _list_matches(matched, width).flatten()
        self._right.index_add_(0, places, right.flatten().to(self._right.dtype))
        self._seen.index_add_(0, places, seen.flatten().to(self._seen.dtype))
        fades = 1 + (self._seen > MOST_COUNTED).to(self._seen.dtype)
        self._right /= fades
        self._seen /= fades


def _list_matches(matched: torch.Tensor, width: int) -> torch.Tensor:
    """Return the length of the match before each copied token: it grows by one per token."""
    steps = torch.arange(width, device=matched.device)
    return (matched[:, None] + steps).clamp(max=MOST_MATCHED)
