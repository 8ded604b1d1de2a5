"""Group quantization of bfloat16 to 8 and 4 bits and back, for groups of several lengths.

Bytes: values, their codes, and a float32 scale for each group, in each direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from opforge.builders.cuda.quantizer import QuantizerBuilder
from opforge.ops.cases.traffic import quantized

from .contenders import Call, run_task
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

GROUPS = (128, 2048, 16_384, 131_072)
"""Elements of a group."""


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of all groups and both widths, in both directions."""
    gpu.check_time()
    op = QuantizerBuilder(target=gpu.target).load()
    size = gpu.elements_that_fit(1 << 30, 8)
    values = torch.randn(size, device=gpu.device, dtype=torch.bfloat16)
    for group in GROUPS:
        for bits in (8, 4):
            name = f"{bits} bits, groups of {group}"
            yield from run_task(gpu, f"CUDA {name}", partial(_both_directions, gpu, name, op, values, group, bits))


def _both_directions(gpu: Gpu, name: str, op: Any, values: torch.Tensor, group: int, bits: int) -> list[Figure]:
    size = values.numel()
    groups = size // group
    codes = torch.empty(size * bits // 8, dtype=torch.int8, device=gpu.device)
    params, out = torch.empty(groups, device=gpu.device), torch.empty_like(values)
    quantize: dict[str, Call] = {
        OURS: lambda: op.quantize_(codes, params, values, groups, bits, True),
        f"{OURS}, stochastic": lambda: op.quantize_(codes, params, values, groups, bits, True, stochastic=True),
    }
    dequantize: dict[str, Call] = {OURS: lambda: op.dequantize_(out, codes, params, groups, bits, True)}
    figures = []
    for way, calls in (("quantize", quantize), ("dequantize", dequantize)):
        bytes_moved = dict.fromkeys(calls, quantized(size, values.itemsize, bits, group))
        figures += judged(gpu.compare_with_copy(f"CUDA {way} {name}", calls, bytes_moved), SHARES[way, "forward"])
    return figures
