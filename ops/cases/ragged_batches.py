"""Ragged batches: sequences of different lengths over a cache of pages, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.ops import reference

HEADS, GROUP, SIZE, BLOCK = 2, 2, 16, 8
"""Heads of keys, queries of each, channels of a head, tokens of a page."""
SEQUENCES = ((5, 0), (1, 20), (9, 3))
"""(tokens in the batch, tokens before it) of each sequence."""
PAGES = sum(-(-sum(sequence) // BLOCK) for sequence in SEQUENCES)


def copies_to_pages(loaded: Any, device: str) -> None:
    """Checks that keys and values go to the pages of their tokens."""
    for dtype in (torch.float32, torch.bfloat16):
        batch = _Batch(dtype, device)
        loaded.linear_kv_copy(batch.cache, batch.q, batch.keys, batch.values, *batch.described)
        assert torch.equal(batch.cache, batch.filled), f"{dtype}: the cache holds other values than were copied"


def attends_over_pages(loaded: Any, device: str) -> None:
    """Checks that attention over pages agrees with float64. GPUs have no kernels of it for float32."""
    exact_enough = (torch.float32, 1e-5) if device == "cpu" else (torch.float16, 4e-3)
    for dtype, tolerance in (exact_enough, (torch.bfloat16, 2e-2)):
        batch = _Batch(dtype, device)
        head, states, _owners, pointers = batch.described
        atoms = torch.zeros(64, 8, dtype=torch.int32, device=device)
        count = loaded.build_atoms(atoms, head, states, pointers, 128, BLOCK)
        out, scale = torch.full_like(batch.q, 7.0), SIZE**-0.5
        keys, values = batch.filled[:, :, 0], batch.filled[:, :, 1]
        loaded.flash_attn_by_atoms(out, batch.q, keys, values, atoms[:count], scale, True)
        exact = batch.attended(scale)
        far = ~torch.isclose(out.double(), exact, rtol=tolerance, atol=tolerance)
        assert not far.any(), f"{dtype}: {int(far.sum())} of {far.numel()} elements differ"


def draw(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 1) -> Tensor:
    """Returns the same random values on each machine."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class _Batch:
    """The tensors of a batch, as the op takes them."""

    def __init__(self, dtype: torch.dtype, device: str) -> None:
        tokens = sum(count for count, _seen in SEQUENCES)
        self.q = draw(tokens, HEADS * GROUP * SIZE, dtype=dtype).to(device)
        self.keys, self.values = (draw(tokens, HEADS * SIZE, dtype=dtype, seed=seed).to(device) for seed in (2, 3))
        self.cache = draw(PAGES, BLOCK, 2, HEADS, SIZE, dtype=dtype, seed=4).to(device)
        free = torch.randperm(PAGES, generator=torch.Generator().manual_seed(5)).to(torch.int32)
        counts = [-(-sum(sequence) // BLOCK) for sequence in SEQUENCES]
        self.lists = [part.clone().to(device) for part in free.split(counts)]  # type: ignore[no-untyped-call]
        """The pages of each sequence: `described` holds their addresses."""
        states, owners = torch.zeros(len(SEQUENCES), 4, dtype=torch.int32), torch.zeros(tokens, dtype=torch.int32)
        start = 0
        for number, (count, seen) in enumerate(SEQUENCES):
            states[number, :3] = torch.tensor([start, count, seen])
            owners[start : start + count] = number
            start += count
        pointers = torch.tensor([pages.data_ptr() for pages in self.lists])
        head = torch.tensor([tokens, len(SEQUENCES)], dtype=torch.int32)
        self.described = tuple(tensor.to(device) for tensor in (head, states, owners, pointers))
        self.filled = self._filled()

    def _places(self) -> Iterator[tuple[int, int, int]]:
        """Yields each token of the batch with its page and its place there."""
        token = 0
        for pages, (count, seen) in zip(self.lists, SEQUENCES, strict=True):
            for position in range(seen, seen + count):
                yield token, int(pages[position // BLOCK]), position % BLOCK
                token += 1

    def _filled(self) -> Tensor:
        """Returns the cache with the batch's keys and values."""
        filled = self.cache.clone()
        for token, page, place in self._places():
            filled[page, place] = torch.stack([self.keys[token], self.values[token]]).view(2, HEADS, SIZE)
        return filled

    def attended(self, scale: float) -> Tensor:
        """Returns causal attention over each sequence's own tokens, in float64."""
        results, start = [], 0
        for pages, (count, seen) in zip(self.lists, SEQUENCES, strict=True):
            seen_by_all = self.filled[pages.long()].flatten(0, 1)[: seen + count].double()
            keys, values = (part.repeat_interleave(GROUP, 1)[None, None] for part in seen_by_all.unbind(1))
            query = self.q[start : start + count].double().view(1, 1, count, HEADS * GROUP, SIZE)
            later = torch.ones(count, seen + count, dtype=torch.bool, device=self.q.device).triu(seen + 1)
            out, _sums = reference.attention(query, keys, values, scale=scale, hidden=later)
            results.append(out.reshape(count, -1))
            start += count
        return torch.cat(results)
