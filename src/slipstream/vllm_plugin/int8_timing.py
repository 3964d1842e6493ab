"""Times a product in 8 bits against one in float32, with the kernels of vLLM's CPU build.

Run as a module in the engine's environment, it prints the one as a share of the other.
"""

import sys
import time
from collections.abc import Callable

import torch
from vllm import _custom_ops as engine

# Rows of a verification step with a usual draft, and the largest product of SmolLM2-135M.
ROWS, INPUTS, OUTPUTS = 6, 576, 1536
PRODUCTS = 300
TRIES = 3
MOST_ERROR = 0.1


def _time(product: Callable[[], object]) -> float:
    """Return the seconds of a product, in the fastest of the tries."""
    tries = []
    for _ in range(TRIES):
        began = time.perf_counter()
        for _ in range(PRODUCTS):
            product()
        tries.append((time.perf_counter() - began) / PRODUCTS)
    return min(tries)


def main() -> None:
    rows, weight = torch.randn(ROWS, INPUTS), torch.randn(OUTPUTS, INPUTS)
    wide = engine.create_onednn_mm(weight.t(), 32)
    scale = weight.abs().amax(1, keepdim=True) / 127
    narrow = engine.create_onednn_scaled_mm(
        (weight / scale).round().to(torch.int8).t(), scale, torch.float32, True, False, 32
    )
    result = torch.empty(ROWS, OUTPUTS)

    def multiply_bytes() -> None:
        quantized, scales, _ = engine.onednn_scaled_int8_quant(rows)
        engine.onednn_scaled_mm(narrow, quantized, result, scales, None, None, None)

    seconds = [_time(one) for one in (multiply_bytes, lambda: engine.onednn_mm(wide, rows, None))]
    multiply_bytes()
    expected = rows @ weight.t()
    if (result - expected).abs().max() > MOST_ERROR * expected.abs().max():
        sys.exit("the products in 8 bits are wrong")
    sys.stdout.write(f"{seconds[0] / seconds[1]:.3f}\n")


if __name__ == "__main__":
    main()
