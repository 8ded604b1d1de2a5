"""Decoding over pages of a cache, and gathers of tokens, against the copy: what they must do is read memory once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from opforge.builders.triton.transformer import RandomLTDBuilder
from opforge.ops.cases.traffic import TRAFFIC, decoding
from opforge.ops.triton import paged_attention

from .contenders import run_task
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
SEQUENCES, PAGE = (256, 2048), 64
"""Sequences and their tokens; tokens of a page."""
HEADS, GROUP, SIZE = 8, 4, 128
TOKENS, RETAINED, CHANNELS = 4096, 1024, 4096


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of the parts decode and gather, or of `only` one part."""
    for part, measure in (("decode", _decode), ("gather", _gather)):
        if only in ("", part):
            gpu.check_time()
            yield from run_task(gpu, part, partial(measure, gpu))


def _decode(gpu: Gpu) -> list[Figure]:
    count, length = SEQUENCES
    each = length // PAGE
    cache = torch.randn(count * each, PAGE, 2, HEADS, SIZE, device=gpu.device, dtype=DTYPE)
    pages = torch.randperm(count * each).to(torch.int32).view(count, each).to(gpu.device)
    q = torch.randn(count, HEADS * GROUP * SIZE, device=gpu.device, dtype=DTYPE)
    addresses = torch.tensor([pages[i].data_ptr() for i in range(count)]).view(torch.int32).view(count, 2)
    rows = [[*addresses[i].tolist(), i, 1, each, length, length - 1, 0] for i in range(count)]
    atoms, out = torch.tensor(rows, dtype=torch.int32, device=gpu.device), torch.empty_like(q)
    keys, values = cache[:, :, 0], cache[:, :, 1]

    def decode() -> torch.Tensor:
        paged_attention.flash_attn_by_atoms(out, q, keys, values, atoms, SIZE**-0.5, True)
        return out

    decode()
    task = f"decode, {count} sequences of {length} tokens"
    moved = decoding(count * length, HEADS, SIZE, cache.itemsize) + 2 * q.nbytes  # and queries, and their results
    return judged(gpu.compare_with_copy(task, {OURS: decode}, {OURS: moved}), SHARES["decode", "forward"])


def _gather(gpu: Gpu) -> list[Figure]:
    op = RandomLTDBuilder(target=gpu.target).load()
    whole = torch.randn(8, TOKENS, CHANNELS, device=gpu.device, dtype=DTYPE)
    numbers = torch.stack([torch.randperm(TOKENS)[:RETAINED].sort().values for _ in range(8)])
    numbers = numbers.to(torch.int32).to(gpu.device)
    part = op.token_gather(whole, numbers, True)
    calls = {OURS: lambda: op.token_gather(whole, numbers, True)}
    moved = TRAFFIC["token_gather"].amount(part.numel(), part.itemsize)
    figures = judged(gpu.compare_with_copy("gather of tokens", calls, {OURS: moved}), SHARES["gather", "forward"])
    back = {OURS: lambda: op.token_scatter_(whole, part, numbers, True)}
    return figures + judged(
        gpu.compare_with_copy("scatter of tokens", back, {OURS: moved}), SHARES["gather", "forward"]
    )
