"""Times the optimizer's step, torch's fused AdamW and the memory, in turns over the same tensors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from opforge.ops import CPUAdam

BYTES_PER_ELEMENT = 28
"""Bytes that AdamW moves in fp32: it reads and writes the parameter and two states, and reads the gradient."""
OURS, FUSED, CEILING = "opforge CPUAdam", "torch AdamW(fused)", "memory ceiling"


class StepTimes(NamedTuple):
    """Seconds of a step: the median and the best of each contender."""

    title: str
    elements: int
    median: dict[str, float]
    best: dict[str, float]
    ratio: float  # ours over torch fused: the median of the rounds' ratios

    def rate(self, name: str) -> float:
        """Returns the bytes a second of the median step."""
        return self.elements * BYTES_PER_ELEMENT / self.median[name]


def time_steps(title: str, shapes: Iterable[torch.Size], rounds: int, inner: int) -> StepTimes:
    """Times `rounds` turns of `inner` steps over parameters of these shapes, after two turns that do not count."""
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
            time.sleep(
                0.003
            )  # torch's threads spin for a moment after their work; they must not slow down the next contender
            began = time.perf_counter()
            for _ in range(inner):
                step()
            if turn >= 0:
                samples[name].append((time.perf_counter() - began) / inner)
    return StepTimes(
        title,
        sum(param.numel() for param in params),
        {name: statistics.median(seconds) for name, seconds in samples.items()},
        {name: min(seconds) for name, seconds in samples.items()},
        statistics.median(a / b for a, b in zip(samples[OURS], samples[FUSED], strict=True)),
    )


def _optimizer(
    optimizer: torch.optim.Optimizer, first: list[Tensor], second: list[Tensor], step: int | Tensor
) -> Callable[[], object]:
    """Returns the optimizer's step. All contenders share one set of states, so that they use the same memory."""
    for param, exp_avg, exp_avg_sq in zip(optimizer.param_groups[0]["params"], first, second, strict=True):
        own = step.clone() if isinstance(step, Tensor) else step
        optimizer.state[param] = {"step": own, "exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
    return optimizer.step


def _in_place(elements: int) -> Callable[[], object]:
    """Returns a change of signs in place that moves as many bytes as AdamW: half are read, half written."""
    numbers = torch.ones(elements * BYTES_PER_ELEMENT // 8)
    return numbers.neg_
