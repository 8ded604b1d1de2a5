"""Block-sparse attention, forward, beside opforge's attention over all keys of the same sequences."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from opforge.ops import attention as core
from opforge.ops.sparse_attention import sparse_attention

from .contenders import Call, prepared, run_task, usable
from .targets import OURS, against
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
BLOCKS = (64, 16)
SHAPE = (2, 8, 4096, 64)
"""Sequences, heads, tokens, the size of a head."""
SHARE = 0.125
"""The blocks that are seen. Each row of blocks sees as many."""
DENSE = f"{OURS} over all keys"


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of each block."""
    for block in BLOCKS:
        gpu.check_time()
        task = f"sparse attention, {SHARE:.1%} of the blocks of {block}"
        yield from run_task(gpu, task, partial(_blocks, gpu, task, block))


def _blocks(gpu: Gpu, task: str, block: int) -> list[Figure]:
    batch, heads, length, size = SHAPE
    count = max(1, length // block)
    seen = max(1, round(SHARE * count))
    places = torch.rand(heads, count, count).argsort(-1)[..., :seen]
    layout = torch.zeros(heads, count, count, dtype=torch.int64).scatter_(2, places, 1)
    q, k, v = (torch.randn(batch, heads, length, size, device=gpu.device, dtype=DTYPE) for _ in range(3))

    def dense() -> torch.Tensor:
        rows = [tensor.transpose(1, 2)[:, None] for tensor in (q, k, v)]
        return core.attention(rows[0], rows[1], rows[2])[0]

    calls: dict[str, Call] = {OURS: lambda: sparse_attention(q, k, v, layout, block), DENSE: dense}
    present = usable(gpu, task, {name: prepared(call) for name, call in calls.items()})
    return against(gpu.compare(task, present), DENSE, "sparse", 1 / (seen / count))
