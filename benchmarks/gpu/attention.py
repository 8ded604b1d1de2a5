"""Attention over all keys, forward: beside torch's flash attention, and with Evoformer's biases beside masked SDPA."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from opforge.ops import attention as core
from opforge.ops import evoformer_attention

from .contenders import Call, prepared, run_task, usable
from .targets import OURS, against
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
DENSE = ((4, 2048, 16, 64), (2, 4096, 16, 128))
"""Sequences, tokens, heads and their size."""
EVOFORMER = ((128, 256, 4, 32), (128, 384, 8, 64))
"""Rows of an alignment, tokens, heads and their size."""
FLASH, MASKED = "torch's flash attention", "SDPA with the biases"


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of all shapes of the parts dense and evoformer, or of `only` one part."""
    for part, shapes, measure in (("dense", DENSE, _dense), ("evoformer", EVOFORMER, _evoformer)):
        for shape in shapes if only in ("", part) else ():
            gpu.check_time()
            task = f"{part} attention, {' x '.join(map(str, shape))}"
            yield from run_task(gpu, task, partial(measure, gpu, task, *shape))


def _dense(gpu: Gpu, task: str, batch: int, length: int, heads: int, size: int) -> list[Figure]:
    q, k, v = (torch.randn(batch, 1, length, heads, size, device=gpu.device, dtype=DTYPE) for _ in range(3))

    def flash() -> torch.Tensor:
        rows = [tensor[:, 0].transpose(1, 2) for tensor in (q, k, v)]
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return scaled_dot_product_attention(rows[0], rows[1], rows[2]).transpose(1, 2)

    calls: dict[str, Call] = {OURS: lambda: core.attention(q, k, v)[0][:, 0], FLASH: flash}
    return _measured(gpu, task, calls, FLASH, "dense")


def _evoformer(gpu: Gpu, task: str, rows: int, length: int, heads: int, size: int) -> list[Figure]:
    q, k, v = (torch.randn(1, rows, length, heads, size, device=gpu.device, dtype=DTYPE) for _ in range(3))
    keys = torch.zeros(1, rows, 1, 1, length, device=gpu.device, dtype=DTYPE)
    pairs = torch.randn(1, 1, heads, length, length, device=gpu.device, dtype=DTYPE)

    def masked() -> torch.Tensor:
        rows, mask = [tensor[0].transpose(1, 2) for tensor in (q, k, v)], (keys + pairs)[0]
        return scaled_dot_product_attention(rows[0], rows[1], rows[2], attn_mask=mask).transpose(1, 2)[None]

    calls: dict[str, Call] = {OURS: lambda: evoformer_attention(q, k, v, [keys, pairs]), MASKED: masked}
    return _measured(gpu, task, calls, MASKED, "evoformer")


def _measured(gpu: Gpu, task: str, calls: dict[str, Call], rival: str, goal: str) -> list[Figure]:
    present = usable(gpu, task, {name: prepared(call) for name, call in calls.items()})
    return against(gpu.compare(task, present), rival, goal)
