"""The reference of TurboQuant does what vLLM's kernels do, element by element.

The kernels run in Triton's interpreter, some milliseconds for each head of a token. How a GPU
rounds keys to fp8 is not tested: the interpreter (3.9) loses the carry of a mantissa of ones, so
those keys are rounded before they go in. The reference rounds to the nearest even, like the GPU.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch

from slipstream.planning.memory.cache import TURBOQUANT_BITS
from tests.engine.arms.launch import run_engine_script
from tests.engine.turboquant import TurboQuant, attend, find_levels

pytestmark = [pytest.mark.engine, pytest.mark.beside]

BLOCK, HEADS, SHARED, BLANK = 16, 2, 2, 0xA5
# The first fills many blocks and parts of the splits; the others end on either side of a border.
LENGTHS = {64: (50, 1, 16), 128: (17,), 256: (9,)}


class Case(NamedTuple):
    """Random keys and values of sequences, in shuffled blocks; the last slot is not stored."""

    kv_dtype: str
    size: int

    def make(self) -> dict[str, Any]:
        random = torch.Generator().manual_seed(self.size)
        lengths = LENGTHS[self.size]
        tokens, blocks = sum(lengths), [-(-length // BLOCK) for length in lengths]
        order = torch.randperm(sum(blocks) + 1, generator=random).int()
        table = torch.zeros(len(lengths), max(blocks), dtype=torch.int32)
        slots = []
        for row, (length, count) in enumerate(zip(lengths, blocks, strict=True)):
            table[row, :count], order = order[:count], order[count:]
            places = torch.arange(length)
            slots.append(table[row][places // BLOCK] * BLOCK + places % BLOCK)
        keys, values = torch.randn(2, tokens + 1, HEADS, self.size, generator=random)
        # A few elements of keys are far larger than the others, as in real models.
        keys = keys * torch.linspace(-1, 6, self.size).exp2()
        if TURBOQUANT_BITS[self.kv_dtype][0] == 8:
            keys = keys.to(torch.float8_e4m3fn).float()
        return {
            "kv_dtype": self.kv_dtype,
            "keys": keys,
            "values": values,
            "queries": torch.randn(len(lengths), HEADS * SHARED, self.size, generator=random) / 4,
            "slots": torch.cat([*slots, torch.tensor([-1])]).int(),
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "table": table,
            "blocks": sum(blocks) + 1,
            "block": BLOCK,
            "splits": 3,
            "blank": BLANK,
            "rotation": TurboQuant.make(self.kv_dtype, self.size).rotation,
        }


CASES = [
    *(Case(kv_dtype, 64) for kv_dtype in TURBOQUANT_BITS),
    *(Case(kv_dtype, 128) for kv_dtype in ("turboquant_k8v4", "turboquant_k3v4_nc")),
    *(Case(kv_dtype, 256) for kv_dtype in ("turboquant_4bit_nc", "turboquant_3bit_nc")),
]


class Ran(NamedTuple):
    """A case, and what vLLM's kernels made of it."""

    case: Case
    given: dict[str, Any]
    found: dict[str, Any]

    def list_differences(self, reference: TurboQuant) -> list[str]:
        """Return which results of the kernels are not those of the reference."""
        codes = reference.quantize(self.given["keys"][:-1], self.given["values"][:-1])
        keys, values = reference.restore(codes)
        attended = [
            attend(query, keys[first:end], values[first:end])
            for query, (first, end) in zip(self.given["queries"], self._spans(), strict=True)
        ]
        first = self.given["lengths"][0]
        read = self.found["keys"].float()
        read = read if reference.levels is None else read @ reference.rotation
        checks = {
            "slots": torch.equal(self._lay(reference.pack(codes)), self.found["cache"]),
            "keys": torch.allclose(read, keys[:first], rtol=0, atol=2e-3 * float(read.abs().max())),
            "values": torch.allclose(
                self.found["values"].float(), values[:first], rtol=1e-3, atol=1e-4
            ),
            "attention": torch.allclose(
                self.found["attended"], torch.stack(attended), rtol=1e-4, atol=1e-5
            ),
        }
        return [name for name, same in checks.items() if not same]

    def _spans(self) -> Iterator[tuple[int, int]]:
        end = 0
        for length in self.given["lengths"].tolist():
            yield end, end + length
            end += length

    def _lay(self, packed: Any) -> Any:
        """Put slots where the table has them; whatever no token owns stays blank."""
        blocks = torch.full_like(self.found["cache"], BLANK)
        rows = blocks.view(-1, *blocks.shape[2:])
        rows[self.given["slots"][:-1].long(), :, : packed.shape[-1]] = packed
        return blocks


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Ran]:
    """Run vLLM's kernels on all cases, in one process of their own."""
    scratch = tmp_path_factory.mktemp("kernels")
    given = {case: case.make() for case in CASES}
    files = {name: str(scratch / f"{name}.pt") for name in ("cases", "results")}
    torch.save({str(number): one for number, one in enumerate(given.values())}, files["cases"])
    run_engine_script("turboquant_kernels.py", files, scratch, {"TRITON_INTERPRET": "1"})
    found = torch.load(files["results"]).values()
    return {
        case: Ran(case, one, results)
        for (case, one), results in zip(given.items(), found, strict=True)
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kv_dtype}-{case.size}")
def test_the_reference_packs_reads_and_attends_as_vllms_kernels(
    case: Case, ran: dict[Case, Ran]
) -> None:
    assert ran[case].list_differences(TurboQuant.make(*case)) == []


@pytest.mark.parametrize("bits", [3, 4])
def test_the_levels_are_those_of_vllm(bits: int, ran: dict[Case, Ran]) -> None:
    checked = [case for case in CASES if TURBOQUANT_BITS[case.kv_dtype][0] == bits]
    assert checked
    for case in checked:
        torch.testing.assert_close(find_levels(bits, case.size), ran[case].found["levels"])


FAULTS: dict[str, tuple[Callable[[TurboQuant], TurboQuant], Callable[[Any], Any], list[str]]] = {
    "levels 1 % too wide": (
        lambda one: replace(one, levels=one.levels * 1.01),
        lambda given: given,
        ["slots", "attention"],
    ),
    "values of one bit fewer": (
        lambda one: replace(one, value_bits=one.value_bits - 1),
        lambda given: given,
        ["slots", "values", "attention"],
    ),
    "keys that are not rotated": (
        lambda one: replace(one, rotation=torch.eye(len(one.rotation))),
        lambda given: given,
        ["slots", "keys", "attention"],
    ),
    "heads swapped": (
        lambda one: one,
        lambda given: given | {"keys": given["keys"].flip(1)},
        ["slots", "keys", "attention"],
    ),
    "one token in another's slot": (
        lambda one: one,
        lambda given: given | {"slots": given["slots"].roll(1)},
        ["slots"],
    ),
    "a query scaled twice": (
        lambda one: one,
        lambda given: given | {"queries": given["queries"] / 8},
        ["attention"],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault: str, ran: dict[Case, Ran]) -> None:
    case = Case("turboquant_3bit_nc", 64)
    spoil, spoil_given, found = FAULTS[fault]
    spoiled = ran[case]._replace(given=spoil_given(ran[case].given))
    assert set(found) <= set(spoiled.list_differences(spoil(TurboQuant.make(*case))))
