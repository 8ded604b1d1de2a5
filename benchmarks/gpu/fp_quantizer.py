"""Quantization of bfloat16 to floating-point codes and back: each format, and groups of several lengths.

Bytes: values, their codes, and a float32 scale for each group, in each direction.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from opforge.builders.cuda.fp_quantizer import FPQuantizerBuilder
from opforge.ops.cases.fp_quantizer import BLOCKS, EVERY, FORMATS
from opforge.ops.cases.traffic import quantized

from .contenders import Call, run_task
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

GROUPS = (128, 512, 16_384)
"""Elements of a group."""


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of all formats and groups, in both directions, and of a share of the blocks."""
    gpu.check_time()
    op = FPQuantizerBuilder(target=gpu.target).load()
    size = gpu.elements_that_fit(1 << 30, 8)
    values = torch.randn(size, device=gpu.device, dtype=torch.bfloat16)
    for group in GROUPS:
        for form, (bits, mantissa) in FORMATS.items():
            name = f"{form}, groups of {group}"
            yield from run_task(gpu, f"FP {name}", partial(_all_ways, gpu, name, op, values, (group, bits, mantissa)))


def _all_ways(gpu: Gpu, name: str, op: Any, values: torch.Tensor, form: tuple[int, int, int]) -> list[Figure]:
    group, bits, _ = form
    rows = torch.empty(values.numel() // group, group * bits // 8 + 4, dtype=torch.uint8, device=gpu.device)
    out = torch.empty_like(values)
    indexes = torch.arange(0, BLOCKS, EVERY, dtype=torch.int32, device=gpu.device)
    part = out[: values.numel() // EVERY]
    ways: dict[str, dict[str, Call]] = {
        "quantize": {
            OURS: lambda: op.fp_quantize_(rows, values, *form),
            f"{OURS}, stochastic": lambda: op.fp_quantize_(rows, values, *form, True),
        },
        "dequantize": {OURS: lambda: op.fp_dequantize_(out, rows, *form)},
        f"dequantize 1 of {EVERY} blocks": {OURS: lambda: op.fp_selective_dequantize_(part, rows, indexes, *form)},
    }
    figures = []
    for way, calls in ways.items():
        elements = (part if "blocks" in way else values).numel()
        moved = quantized(elements, values.itemsize, bits, group)
        task = gpu.compare_with_copy(f"FP {way} {name}", calls, dict.fromkeys(calls, moved))
        figures += judged(task, SHARES[way.split()[0], "forward"])
    return figures
