"""Group quantization of bfloat16 to 8 and 4 bits and back, by rows of several lengths.

Bytes an element: 3 for 8 bits, 2.5 for 4, each way; the params are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from opforge.builders.cuda.quantizer import QuantizerBuilder

from .contenders import Call, alone
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

ROWS = (128, 2048, 16_384, 131_072)


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """All rows, both widths, there and back."""
    gpu.check_time()
    op = QuantizerBuilder(target=gpu.target).load()
    size = gpu.fitting(1 << 30, 8)
    values = torch.randn(size, device=gpu.device, dtype=torch.bfloat16)
    for row in ROWS:
        for bits in (8, 4):
            name = f"{bits} bits, groups of {row}"
            yield from alone(gpu, f"CUDA {name}", partial(_there_and_back, gpu, name, op, values, row, bits))


def _there_and_back(gpu: Gpu, name: str, op: Any, values: torch.Tensor, row: int, bits: int) -> list[Figure]:
    size = values.numel()
    groups = size // row
    codes = torch.empty(size * bits // 8, dtype=torch.int8, device=gpu.device)
    params, out = torch.empty(groups, device=gpu.device), torch.empty_like(values)
    quantize: dict[str, Call] = {
        OURS: lambda: op.quantize_(codes, params, values, groups, bits, True),
        f"{OURS}, stochastic": lambda: op.quantize_(codes, params, values, groups, bits, True, stochastic=True),
    }
    dequantize: dict[str, Call] = {OURS: lambda: op.dequantize_(out, codes, params, groups, bits, True)}
    figures = []
    for way, calls in (("quantize", quantize), ("dequantize", dequantize)):
        found = gpu.beside_copy(f"CUDA {way} {name}", calls, dict.fromkeys(calls, size * (16 + bits) // 8))
        figures += judged(found, SHARES[way, "forward"])
    return figures
