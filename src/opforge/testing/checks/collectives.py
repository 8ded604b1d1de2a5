"""Collectives of one host, against sums in float64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from opforge.ops.shm.group import Group
from opforge.testing.tensors import difference

from .form import Check, draw

RANKS, TIMEOUT = 2, 20.0
"""TIMEOUT in seconds, of each call."""


class ShareMemCommCheck(Check):
    """Two ranks in threads of one process: each has its own handle, and they meet in shared memory as processes do."""

    def test_all_ranks_get_the_sums_and_what_the_others_have(self) -> None:
        distributed: Any = torch.distributed
        store = distributed.HashStore()
        with ThreadPoolExecutor(RANKS) as threads:
            for dtype in (torch.float32, torch.bfloat16):
                for elements in (1, 1025, 1 << 18):
                    tensors = [draw(elements, dtype=dtype, seed=rank) for rank in range(RANKS)]
                    own = distributed.PrefixStore(f"{dtype} {elements}", store)
                    ranks = [threads.submit(self._collect, own, rank, tensors[rank]) for rank in range(RANKS)]
                    results = [rank.result() for rank in ranks]
                    exact = torch.stack(tensors).double().sum(0)
                    tolerance = 2 * torch.finfo(dtype).eps
                    for rank, (total, gathered) in enumerate(results):
                        problem = difference(total, exact, tolerance, tolerance)
                        assert not problem, f"all_reduce of {elements} {dtype} on rank {rank}: {problem}"
                        assert torch.equal(total, results[0][0]), f"rank {rank} has other bits than rank 0"
                        assert torch.equal(gathered, torch.cat(tensors)), f"all_gather of {elements} {dtype}"

    def _collect(self, store: Any, rank: int, tensor: Tensor) -> tuple[Tensor, Tensor]:
        """Returns a rank's sum of all tensors, and the tensors of all."""
        group = Group(store, rank, RANKS, TIMEOUT, op=self.loaded)
        try:
            gathered, total = tensor.new_empty(RANKS * tensor.numel()), tensor.clone()
            group.all_gather(gathered, tensor)
            group.all_reduce(total)
            group.barrier()
        finally:
            group.close()
        return total, gathered
