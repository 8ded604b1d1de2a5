"""The optimizer's step beside torch's fused AdamW and the memory, by turns over the same tensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from opforge.ops import CPUAdam

BYTES_PER_ELEMENT = 28
"""What AdamW moves in fp32: parameter and two states read and written, the gradient read."""
OURS, FUSED, CEILING = "opforge CPUAdam", "torch AdamW(fused)", "memory ceiling"


class StepTimes(NamedTuple):
    """Seconds of a step, the median and the best of each contender."""

    title: str
    elements: int
    median: dict[str, float]
    best: dict[str, float]
    ratio: float  # ours beside torch fused, the median of each round's own

    def rate(self, name: str) -> float:
        """Bytes a second, from the median."""
        return self.elements * BYTES_PER_ELEMENT / self.median[name]


def time_steps(title: str, shapes: Iterable[torch.Size], rounds: int, inner: int) -> StepTimes:
    """Time `rounds` turns of `inner` steps over parameters of these shapes, after two turns that do not count."""
    random = torch.Generator().manual_seed(0)
    params = [torch.randn(shape, generator=random).requires_grad_() for shape in shapes]
    first, second = [torch.zeros_like(param) for param in params], [torch.ones_like(param) for param in params]
    for param in params:
        param.grad = torch.randn(param.shape, generator=random)
    contenders = {
        OURS: _optimizer(CPUAdam(params, weight_decay=0.01), first, second, 1),
        FUSED: _optimizer(torch.optim.AdamW(params, fused=True), first, second, torch.tensor(1.0)),
        CEILING: _in_place(sum(param.numel() for param in params)),
    }
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(-2, rounds):
        for name, step in contenders.items():
            time.sleep(0.003)  # torch's threads spin for a moment after their work
            began = time.perf_counter()
            for _ in range(inner):
                step()
            if turn >= 0:
                samples[name].append((time.perf_counter() - began) / inner)
    return StepTimes(
        title,
        sum(param.numel() for param in params),
        {name: statistics.median(spent) for name, spent in samples.items()},
        {name: min(spent) for name, spent in samples.items()},
        statistics.median(a / b for a, b in zip(samples[OURS], samples[FUSED], strict=True)),
    )


def _optimizer(
    optimizer: torch.optim.Optimizer, first: list[Tensor], second: list[Tensor], step: int | Tensor
) -> Callable[[], object]:
    """The contenders share one set of states, so that they meet the same memory."""
    for param, exp_avg, exp_avg_sq in zip(optimizer.param_groups[0]["params"], first, second, strict=True):
        own = step.clone() if isinstance(step, Tensor) else step
        optimizer.state[param] = {"step": own, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return optimizer.step


def _in_place(elements: int) -> Callable[[], object]:
    """As many bytes as AdamW moves, half read and half written, by numbers that change their sign in place."""
    numbers = torch.ones(elements * BYTES_PER_ELEMENT // 8)
    return numbers.neg_
