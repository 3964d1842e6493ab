"""A speculator's rows are copied over after it drafted, where that is sound, and else left alone.

The classes of vLLM that this is for run in scripts/judge-plans --copies.
"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.vllm_plugin.patches import dflash_v2_copy
from slipstream.vllm_plugin.patches.dflash_v2_copy import RowCopier, copy_after_drafting
from slipstream.vllm_plugin.steering.copying import BUCKETS, PRIORS

REPEATS = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4]
SHORT = [1, 2, 3, 7, 8, 9, 5, 2, 3]
OTHER = [1, 2, 3, 4, 5, 6, 7, 8, 9]
WIDTH, SLOTS, VOCABULARY = 4, 8, 50


class StagedWriteTensor:
    """Tokens of all slots, on the device if nobody says otherwise."""

    def __init__(
        self, size: Any, dtype: Any, device: Any, uva_instead_of_gpu: bool = False
    ) -> None:
        self.gpu = torch.zeros(size, dtype=dtype, device=device)
        self.on_host = uva_instead_of_gpu


class RequestState:
    """The requests of a runner that keeps their tokens on the host."""

    def __init__(self) -> None:
        self.max_num_reqs, self.max_model_len = SLOTS, 64
        self.device = torch.device("cpu")
        shape = (SLOTS, self.max_model_len)
        self.all_token_ids = StagedWriteTensor(shape, torch.int32, self.device, True)
        self.total_len = StagedWriteTensor(SLOTS, torch.int32, self.device)


class DFlashSpeculator:
    """Drafts the same row for all: a 7 first, which one text would go on with."""

    def __init__(self, logits: torch.Tensor | None = None) -> None:
        self.max_num_reqs, self.num_speculative_steps = SLOTS, WIDTH
        self.device = torch.device("cpu")
        self.draft_watermarker = self.acceptance_estimator = None
        self.draft_logits = logits
        self.draft_token_confidence_probs = torch.full((SLOTS, WIDTH), 0.5)
        self.observed: list[list[int]] = []

    def propose(
        self,
        input_batch: Any,
        num_sampled: torch.Tensor,
        temperature: torch.Tensor,
        dummy_run: bool = False,
        num_speculative_tokens: int | None = None,
    ) -> torch.Tensor:
        return torch.tensor([[7, 40, 41, 42]] * input_batch.num_reqs)

    def observe_verification(self, idx_mapping: Any, num_sampled: Any, num_rejected: Any) -> None:
        self.observed.append(num_sampled.tolist() + num_rejected.tolist())


def attach(*texts: list[int], speculator: Any = None) -> tuple[Any, dict[str, Any]]:
    """Return a speculator with copies, and the batch that it is to draft for."""
    speculator, states = speculator or DFlashSpeculator(), RequestState()
    RowCopier(speculator, states)
    slots = torch.arange(SLOTS, dtype=torch.int32).flip(0)[: len(texts)]
    for slot, text in zip(slots.tolist(), texts, strict=True):
        states.all_token_ids.gpu[slot, : len(text)] = torch.tensor(text)
        states.total_len.gpu[slot] = len(text)
    bound = torch.tensor([len(text) - 1 for text in texts])
    batch = SimpleNamespace(num_reqs=len(texts), idx_mapping=slots, seq_lens_cpu_upper_bound=bound)
    given = {"num_sampled": torch.ones(len(texts)), "temperature": torch.zeros(SLOTS)}
    return speculator, {"input_batch": batch, **given}


DRAFTED = [7, 40, 41, 42]


def test_a_long_match_is_copied_and_a_short_one_where_the_drafter_agrees() -> None:
    speculator, given = attach(REPEATS, SHORT, OTHER, [5, 2, 3, 9, 2, 3])
    rows = speculator.propose(**given).tolist()
    assert rows == [[5, 6, 1, 2], [7, 8, 9, 5], DRAFTED, DRAFTED]


@pytest.mark.parametrize("change", [{"dummy_run": True}, {"num_speculative_tokens": 0}])
def test_a_run_without_requests_or_drafts_is_left_alone(change: dict[str, Any]) -> None:
    speculator, given = attach(REPEATS)
    assert speculator.propose(**given, **change).tolist() == [DRAFTED]


def test_a_request_whose_prompt_is_being_read_is_left_alone() -> None:
    speculator, given = attach(REPEATS, REPEATS)
    given["num_sampled"][0] = 0
    assert speculator.propose(**given).tolist() == [DRAFTED, [5, 6, 1, 2]]


def test_tokens_are_kept_on_the_device() -> None:
    states = RequestState()
    assert states.all_token_ids.on_host
    RowCopier(DFlashSpeculator(), states)
    assert not states.all_token_ids.on_host


def test_of_drawn_drafts_only_long_matches_are_copied_and_become_point_masses() -> None:
    logits = torch.zeros(SLOTS, WIDTH, VOCABULARY)
    speculator, given = attach(REPEATS, SHORT, speculator=DFlashSpeculator(logits))
    given["temperature"][:] = 1.0
    assert speculator.propose(**given).tolist() == [[5, 6, 1, 2], DRAFTED]
    assert logits[SLOTS - 1].softmax(-1).argmax(-1).tolist() == [5, 6, 1, 2]
    assert logits[SLOTS - 1].softmax(-1).amax(-1).tolist() == [1.0] * WIDTH
    assert not logits[: SLOTS - 1].any()


def test_a_token_that_the_kept_logits_do_not_have_is_not_copied() -> None:
    logits = torch.zeros(SLOTS, WIDTH, VOCABULARY)
    text = [1, 2, 3, 4, 5, VOCABULARY, 1, 2, 3, 4]
    speculator, given = attach(text, speculator=DFlashSpeculator(logits))
    assert speculator.propose(**given).tolist() == [DRAFTED]
    assert not logits.any()


def test_adaptive_verification_hears_of_a_copied_row_what_is_known_of_copies() -> None:
    speculator, given = attach(REPEATS, OTHER)
    speculator.acceptance_estimator = object()
    speculator.propose(**given)
    copied, drafted = speculator.draft_token_confidence_probs[:2].tolist()
    four, six = (PRIORS[BUCKETS.index(least)][0] for least in (4, 6))
    assert copied == pytest.approx([four, four, six, six])
    assert drafted == [0.5] * WIDTH
    slots = given["input_batch"].idx_mapping
    for _ in range(50):
        speculator.observe_verification(slots, torch.tensor([5, 2]), torch.tensor([0, 3]))
    assert speculator.observed[0] == [0, 2, 0, 3]
    speculator.propose(**given)
    assert min(speculator.draft_token_confidence_probs[0].tolist()) > 0.85


class Another(DFlashSpeculator):
    """Drafts in a way of its own."""


def watermark(speculator: DFlashSpeculator) -> DFlashSpeculator:
    speculator.draft_watermarker = object()  # type: ignore[assignment]
    return speculator


@pytest.mark.parametrize(
    "speculator", [Another(), watermark(DFlashSpeculator()), DFlashSpeculator()]
)
def test_another_speculator_or_source_is_left_alone(speculator: Any) -> None:
    """Ours has the name of vLLM's, but not its source."""
    states, kept = RequestState(), dict(vars(speculator))
    module = SimpleNamespace(init_speculator=lambda *_: speculator)
    copy_after_drafting(module)
    assert module.init_speculator(None, None, states) is speculator
    assert vars(speculator) == kept
    assert states.all_token_ids.on_host


def test_the_known_source_gets_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dflash_v2_copy, "_find_obstacle", lambda *_: None)
    speculator = DFlashSpeculator()
    module = SimpleNamespace(init_speculator=lambda *_: speculator)
    copy_after_drafting(module)
    module.init_speculator(None, None, RequestState())
    assert isinstance(speculator.propose.__self__, RowCopier)  # type: ignore[attr-defined]
