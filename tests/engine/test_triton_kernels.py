"""vLLM's Triton kernels without a GPU: what they compute, and that they compile for one.

Results come from Triton's interpreter. How a GPU rounds is not tested, nor what goes wrong only
where blocks run at the same time.
"""

import os
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from slipstream.engines.vllm_tables import VERSIONS
from tests.engine.arms.launch import run_engine_script
from tests.judge.compiled import Kernel, read_kernels, summarize_kernels

pytestmark = [pytest.mark.engine, pytest.mark.beside]

REPOSITORY = Path(__file__).parents[2]
WORKER = REPOSITORY / "tests" / "judge" / "compile_kernels.py"
ENGINE: Any = SimpleNamespace(**runpy.run_path(str(REPOSITORY / "scripts" / "engine")))
BLOCK, HEADS, SHARED = 16, 2, 2
# Queries of a sequence, and its keys with them: the first is drafts, the last a prompt.
LENGTHS = ((8, 40), (5, 23), (17, 17))
DECODED = ((1, 40), (1, 3), (1, 64))
Case = dict[str, Any]
Cases = dict[tuple[str, str], Case]
Found = dict[tuple[str, str], torch.Tensor]
Version = tuple[str, dict[str, str]]


def make_attention(
    size: int, *, causal: bool, window: int | None = None, decoded: bool = False
) -> Case:
    """Return sequences in shuffled blocks."""
    random = torch.Generator().manual_seed(size)
    lengths = DECODED if decoded else LENGTHS
    blocks = [-(-keys // BLOCK) for _, keys in lengths]
    order = torch.randperm(sum(blocks), generator=random).int()
    table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
    for row, count in enumerate(blocks):
        table[row, :count], order = order[:count], order[count:]
    count = sum(queries for queries, _ in lengths)
    cache = torch.randn(2, sum(blocks), BLOCK, HEADS, size, generator=random)
    return {
        "queries": torch.randn(count, HEADS * SHARED, size, generator=random),
        "keys": cache[0],
        "values": cache[1],
        "starts": torch.tensor([0, *(queries for queries, _ in lengths)]).cumsum(0).int(),
        "lengths": torch.tensor([keys for _, keys in lengths], dtype=torch.int32),
        "table": table,
        "causal": causal,
        "window": window,
        "split": decoded,
    }


ATTENTION: dict[str, Case] = {
    f"{size}, {'causal' if causal else 'not causal'}{f', window {window}' if window else ''}": (
        make_attention(size, causal=causal, window=window)
    )
    for size in (64, 128)
    for causal in (True, False)
    for window in (None, 20)
}
ATTENTION["128, decoded"] = make_attention(128, causal=True, decoded=True)
ATTENTION["128, decoded, window 20"] = make_attention(128, causal=True, window=20, decoded=True)


def attend(case: Case, *, causal: bool, window: int | None) -> torch.Tensor:
    """Return what attention is, by PyTorch."""
    found = []
    starts = case["starts"].tolist()
    for row, length in enumerate(case["lengths"].tolist()):
        queries = case["queries"][starts[row] : starts[row + 1]]
        blocks = case["table"][row, : -(-length // BLOCK)].long()
        keys, values = (
            case[name][blocks].flatten(0, 1)[:length].repeat_interleave(SHARED, 1)
            for name in ("keys", "values")
        )
        distance = torch.arange(length - len(queries), length)[:, None] - torch.arange(length)
        seen = distance >= 0 if causal else torch.ones_like(distance, dtype=torch.bool)
        if window is not None:
            seen &= distance.abs() < window
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[-1] ** 0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        found.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(found)


# Rows of drafts: the first is right, four fail from some place on, the last is two drafts short.
WIDTH, VOCABULARY = 4, 50


def make_greedy() -> Case:
    logits = torch.randn(6, WIDTH + 1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    drafts = logits[:, :-1].argmax(-1)
    for row in range(1, 5):
        drafts[row, row - 1] = (drafts[row, row - 1] + 1) % VOCABULARY
    drafts[5, 2:] = -1
    return {"drafts": drafts, "logits": logits, "draft_logits": None, "temperature": 0.0, "seed": 1}


def verify_greedily(drafts: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return the target's tokens up to the first that is not the draft, or one more."""
    best = logits.argmax(-1)
    right = (drafts == best[:, :-1]).long().cumprod(1).sum(1, keepdim=True)
    return best.masked_fill(torch.arange(WIDTH + 1) > right, -1)


TARGET = torch.tensor([0.30, 0.22, 0.16, 0.12, 0.08, 0.06, 0.04, 0.02])
DRAFT = torch.tensor([0.10, 0.30, 0.05, 0.25, 0.05, 0.10, 0.05, 0.10])
# The share of drafts that verification accepts, if it knows their distribution or takes one token.
SHARES = {
    "drawn drafts": float(torch.minimum(TARGET, DRAFT).sum()),
    "one draft": float(TARGET[0]),
}
# The target believes that drafts are drawn from its own distribution, and accepts them all.
BIASED = "drafts of another distribution"
RUNNERS = ("V1", "V2")
# The interpreter takes 23 ms for a draw on V2.
DRAWS, WEEKLY_DRAWS = 300, 4000
# Of chi-square with seven degrees of freedom: exceeded once in a million.
LIMIT = 40.5


def make_draws(name: str, count: int = DRAWS) -> Case:
    """Return requests with one draft each."""
    drafts = torch.zeros(count, 1, dtype=torch.long)
    known = None
    if name != "one draft":
        random = torch.Generator().manual_seed(2)
        drafts[:, 0] = torch.multinomial(DRAFT, count, replacement=True, generator=random)
        known = TARGET if name == BIASED else DRAFT
    return {
        "drafts": drafts,
        "logits": TARGET.log().expand(count, 2, -1).contiguous(),
        "draft_logits": None if known is None else known.log().expand(count, 1, -1).contiguous(),
        "temperature": 1.0,
        "seed": 3,
    }


def measure_bias(tokens: torch.Tensor) -> float:
    """Return chi-square of the first tokens of rows against the target's distribution."""
    expected = len(tokens) * TARGET
    counts = tokens[:, 0].bincount(minlength=len(TARGET))
    return float(((counts - expected).square() / expected).sum())


def find_biases(tokens: torch.Tensor, name: str) -> list[str]:
    """Return in what verified tokens differ from draws of the target and its rejections."""
    accepted = tokens[:, 1] >= 0
    share = SHARES[name]
    deviation = (share * (1 - share) / len(tokens)) ** 0.5
    drafts = make_draws(name, len(tokens))["drafts"]
    found = {
        "tokens": measure_bias(tokens) >= LIMIT,
        "share": abs(float(accepted.double().mean()) - share) >= 5 * deviation,
        "drafts": not torch.equal(tokens[accepted, 0], drafts[accepted, 0]),
    }
    return [name for name, differs in found.items() if differs]


@pytest.fixture(scope="module", params=VERSIONS)
def version(request: pytest.FixtureRequest) -> Version:
    """Return a version, with the environment in which it is imported."""
    given = {"VLLM_TARGET_DEVICE": "cpu"}
    if request.param != ENGINE.find_version():
        sources = str(ENGINE.fetch_sources(request.param))
        given["PYTHONPATH"] = os.pathsep.join([sources, os.environ.get("PYTHONPATH", "")])
    return request.param, given


def interpret(version: Version, cases: Cases, scratch: Path) -> Found:
    """Run kernels on all cases, in one process."""
    files = {name: str(scratch / f"{name}.pt") for name in ("cases", "results")}
    torch.save(cases, files["cases"])
    environment = {**version[1], "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    outcome = run_engine_script("interpreted_kernels.py", files, scratch, environment)
    assert outcome["version"] == version[0]
    found: Found = torch.load(files["results"])
    return found


@pytest.fixture(scope="module")
def found(version: Version, tmp_path_factory: pytest.TempPathFactory) -> Found:
    cases = {("attention", name): case for name, case in ATTENTION.items()}
    for runner in RUNNERS:
        cases[runner, "greedy"] = make_greedy()
        cases |= {(runner, name): make_draws(name) for name in (*SHARES, BIASED)}
    return interpret(version, cases, tmp_path_factory.mktemp("found"))


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_what_pytorch_computes(name: str, found: Found) -> None:
    case, got = ATTENTION[name], found["attention", name]
    causal, window = case["causal"], case["window"]
    assert (got - attend(case, causal=causal, window=window)).abs().max() < 1e-5
    assert (got - attend(case, causal=causal, window=2)).abs().max() > 0.1
    if not case["split"]:
        assert (got - attend(case, causal=not causal, window=window)).abs().max() > 0.1


@pytest.mark.parametrize("runner", RUNNERS)
def test_greedy_verification_takes_the_targets_tokens(runner: str, found: Found) -> None:
    case = make_greedy()
    expected = verify_greedily(case["drafts"], case["logits"])
    assert torch.equal(found[runner, "greedy"], expected)
    assert not torch.equal(expected, verify_greedily(case["drafts"].roll(1, 0), case["logits"]))


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("runner", RUNNERS)
def test_sampled_verification_keeps_the_targets_distribution(
    runner: str, name: str, found: Found
) -> None:
    assert find_biases(found[runner, name], name) == []


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_planted_bias_is_found(runner: str, found: Found) -> None:
    assert measure_bias(found[runner, BIASED]) > 4 * LIMIT


@pytest.mark.weekly
def test_sampled_verification_keeps_it_over_many_draws(version: Version, tmp_path: Path) -> None:
    name = "drawn drafts"
    cases = {("V2", name): make_draws(name, WEEKLY_DRAWS)}
    assert find_biases(interpret(version, cases, tmp_path)["V2", name], name) == []


# Of one architecture, with the least shared memory: the judge compiles all cases for all of them.
COMPILED = "8.6"
CASES = (
    "attention, Qwen3-8B, drafter",
    "turboquant_k8v4, Qwen3-8B",
    "rejection on V2, drawn drafts",
    "DFlash inputs on V2",
)
PLANTED = {
    "planted: a head of 1024": ("kernel_unified_attention", "165120 bytes of shared memory"),
    "planted: fp8 on any GPU": ("launch", "FP8 KV cache is not supported"),
}


@pytest.fixture(scope="module")
def compiled(version: Version, tmp_path_factory: pytest.TempPathFactory) -> list[Kernel]:
    """Compile some kernels, and the planted faults."""
    scratch = tmp_path_factory.mktemp("compiled")
    rows = scratch / "rows.jsonl"
    job = {"capability": COMPILED, "cases": [*CASES, *PLANTED], "rows": str(rows)}
    environment = {**version[1], "TRITON_CACHE_DIR": str(scratch / "cache")}
    outcome = run_engine_script(str(WORKER), job, scratch, environment)
    assert outcome["vllm"] == version[0]
    return read_kernels(rows)


def test_kernels_of_plans_compile_and_fit(compiled: list[Kernel]) -> None:
    kernels = [one for one in compiled if one.case in CASES]
    assert {one.case for one in kernels} == {*CASES}
    assert [one for one in kernels if one.fault is not None] == []
    assert all(one.registers for one in kernels)
    attention = next(one for one in kernels if one.kernel == "kernel_unified_attention")
    assert (attention.shared or 0) > 4096, "a tile of keys and one of values"


@pytest.mark.parametrize("case", PLANTED)
def test_a_planted_fault_is_reported(case: str, compiled: list[Kernel]) -> None:
    kernel, fault = PLANTED[case]
    (found,) = (one for one in compiled if one.case == case and one.fault is not None)
    assert found.kernel == kernel
    assert fault in str(found.fault)
    assert any(fault in line for line in summarize_kernels(compiled))
