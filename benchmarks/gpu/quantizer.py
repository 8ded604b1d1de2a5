"""Group quantization of bfloat16 to 8 and 4 bits and back, by rows of several lengths.

Bytes an element: 3 for 8 bits, 2.5 for 4, each way; the params are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from opforge.builders.cuda.quantizer import QuantizerBuilder

from .timing import Figure, Gpu

ROWS = (128, 2048, 16_384, 131_072)


def run(gpu: Gpu) -> Iterator[Figure]:
    """All rows, both widths, there and back."""
    op = QuantizerBuilder(target=gpu.target).load()
    size = gpu.fitting(1 << 30, 8)
    values = torch.randn(size, device=gpu.device, dtype=torch.bfloat16)
    for row in ROWS:
        for bits in (8, 4):
            yield from _there_and_back(gpu, op, values, row, bits)


def _there_and_back(gpu: Gpu, op: Any, values: torch.Tensor, row: int, bits: int) -> list[Figure]:
    size = values.numel()
    groups = size // row
    codes = torch.empty(size * bits // 8, dtype=torch.int8, device=gpu.device)
    params, out = torch.empty(groups, device=gpu.device), torch.empty_like(values)
    contenders: dict[str, Callable[[], object]] = {
        "quantize": lambda: op.quantize_(codes, params, values, groups, bits, True),
        "quantize, stochastic": lambda: op.quantize_(codes, params, values, groups, bits, True, stochastic=True),
        "dequantize": lambda: op.dequantize_(out, codes, params, groups, bits, True),
    }
    moved = dict.fromkeys(contenders, size * (16 + bits) // 8)
    return gpu.beside_copy(f"int{bits} and bf16, groups of {row}", contenders, moved)
