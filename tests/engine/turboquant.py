"""What vLLM's TurboQuant does to keys and values, in PyTorch.

Written from the description of the format, and held against vLLM's kernels by `test_turboquant.py`.
A key of fewer than 8 bits is a norm and a direction, rotated by a Hadamard matrix so that its
coordinates are nearly normal, each then the nearest of a few levels. A value is cut into even
steps between its least and its largest element.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from slipstream.planning.memory.cache import TURBOQUANT_BITS

LARGEST_FP8 = 448.0
SMALLEST_STEP = 1e-8
INTERVALS, ROUNDS = 200, 200


class Codes(NamedTuple):
    """Quantized keys and values; `norms` is None for keys in fp8."""

    keys: Any
    norms: Any
    values: Any
    steps: Any
    least: Any


@dataclass(frozen=True, slots=True, eq=False)
class TurboQuant:
    """One format for one head size."""

    key_bits: int
    value_bits: int
    rotation: Any
    levels: Any

    @classmethod
    def make(cls, kv_dtype: str, head_size: int) -> "TurboQuant":
        key_bits, value_bits = TURBOQUANT_BITS[kv_dtype]
        levels = find_levels(key_bits, head_size) if key_bits < 8 else None
        return cls(key_bits, value_bits, make_hadamard(head_size), levels)

    def quantize(self, keys: Any, values: Any) -> Codes:
        """Quantize float32 tensors of any shape whose last dimension is the head's."""
        least, largest = values.aminmax(dim=-1, keepdim=True)
        most = 2**self.value_bits - 1
        steps = ((largest - least) / most).clamp(min=SMALLEST_STEP)
        rounded = ((values - least) / steps + 0.5).to(torch.int32).clamp(0, most)
        own = (rounded, steps.half(), least.half())
        if self.levels is None:
            fp8 = keys.clamp(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn)
            return Codes(fp8, None, *own)
        norms = keys.norm(dim=-1, keepdim=True)
        rotated = (keys / (norms + 1e-8)) @ self.rotation
        between = (self.levels[1:] + self.levels[:-1]) / 2
        return Codes(torch.bucketize(rotated, between, right=True), norms.half(), *own)

    def restore(self, codes: Codes) -> tuple[Any, Any]:
        """Return what attention reads, in float32."""
        values = codes.values.float() * codes.steps.float() + codes.least.float()
        if self.levels is None:
            return codes.keys.float(), values
        directions = self.levels[codes.keys]
        directions = directions / (directions.square().sum(-1, keepdim=True) + 1e-16).sqrt()
        return codes.norms.float() * directions @ self.rotation, values

    def pack(self, codes: Codes) -> Any:
        """Return the bytes of a slot without its padding: key, norm, value, step, least element."""
        tail = [one.view(torch.uint8) for one in (codes.steps, codes.least)]
        parts = [_pack_bits(codes.values, self.value_bits), *tail]
        if self.levels is None:
            parts.insert(0, codes.keys.view(torch.uint8))
        else:
            parts[:0] = [_pack_bits(codes.keys, self.key_bits), codes.norms.view(torch.uint8)]
        return torch.cat(parts, dim=-1)


def make_hadamard(size: int) -> Any:
    """Return the orthonormal Hadamard matrix: the sign is the parity of the bits in common."""
    numbers = torch.arange(size)
    common = numbers[:, None] & numbers
    parity = sum((common >> bit) & 1 for bit in range(size.bit_length())) % 2
    return (1 - 2 * parity).float() / math.sqrt(size)


def find_levels(bits: int, head_size: int) -> Any:
    """Return the levels of least square error for a normal variable of variance 1 / head size.

    Lloyd's fixed point: borders halfway, levels at the mean between them. The means are sums over
    200 intervals as in vLLM, whose outermost levels are a little off the exact ones for it.
    """
    count, end = 2**bits, 3.5
    levels = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 * end - end
    far = torch.tensor([3 * end], dtype=torch.float64)
    weights = torch.ones(INTERVALS + 1, dtype=torch.float64)
    weights[[0, -1]] = 0.5
    for _ in range(ROUNDS):
        borders = torch.cat([-far, (levels[1:] + levels[:-1]) / 2, far])
        places = torch.linspace(0, 1, INTERVALS + 1, dtype=torch.float64)
        points = borders[:-1, None] + (borders[1:] - borders[:-1])[:, None] * places
        density = weights * torch.exp(-points.square() / 2)
        levels = (points * density).sum(1) / density.sum(1)
    return (levels / math.sqrt(head_size)).float()


def attend(queries: Any, keys: Any, values: Any) -> Any:
    """Let queries [heads, size] attend to keys and values [tokens, heads, size]."""
    shared = queries.shape[0] // keys.shape[1]
    keys, values = (one.repeat_interleave(shared, 1) for one in (keys, values))
    scores = torch.einsum("hd,thd->ht", queries, keys) / math.sqrt(queries.shape[-1])
    return torch.einsum("ht,thd->hd", scores.softmax(-1), values)


def _pack_bits(codes: Any, width: int) -> Any:
    """Put codes of some bits one after the other, the least significant bit first."""
    bits = (codes[..., None] >> torch.arange(width)) & 1
    octets = bits.flatten(-2).unflatten(-1, (-1, 8))
    return (octets << torch.arange(8)).sum(-1).to(torch.uint8)
