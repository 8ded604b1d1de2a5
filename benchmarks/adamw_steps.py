"""One AdamW step, by each contender, over the same memory. Needs torch; opforge and DeepSpeed only where they step."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Step = Callable[[], object]
LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 1e-2


class Memory(NamedTuple):
    """Parameters with their gradients and states. All contenders share one, so that all meet the same pages."""

    params: list[Tensor]
    grads: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]

    @property
    def elements(self) -> int:
        """How many numbers are optimized."""
        return sum(param.numel() for param in self.params)

    @property
    def traffic(self) -> int:
        """The bytes that a step must move: parameter and states read and written, the gradient read."""
        twice = (self.params, self.exp_avg, self.exp_avg_sq)
        moved = 2 * sum(one.nbytes for many in twice for one in many)
        return moved + sum(one.nbytes for one in self.grads)


def make(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> Memory:
    """Parameters and gradients of `dtype`, states in float32, as after some steps."""
    random = torch.Generator().manual_seed(0)
    params, grads, first, second = [], [], [], []
    for size in sizes:
        param = torch.empty(size).normal_(generator=random).to(dtype).requires_grad_()
        param.grad = torch.empty(size).normal_(generator=random).to(dtype)
        params.append(param)
        grads.append(param.grad)
        first.append(torch.full((size,), 0.1))
        second.append(torch.full((size,), 0.5))
    return Memory(params, grads, first, second)


def _give_states(optimizer: torch.optim.Optimizer, memory: Memory, step: Callable[[], object]) -> None:
    for param, first, second in zip(memory.params, memory.exp_avg, memory.exp_avg_sq, strict=True):
        optimizer.state[param] = {"step": step(), "exp_avg": first, "exp_avg_sq": second}


def torch_fused(memory: Memory) -> Step:
    """torch.optim.AdamW(fused=True)."""
    optimizer = torch.optim.AdamW(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    _give_states(optimizer, memory, lambda: torch.tensor(100.0))
    return optimizer.step


def ours(memory: Memory) -> Step:
    """opforge.ops.CPUAdam, by its front end."""
    from opforge.ops import CPUAdam

    optimizer = CPUAdam(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    _give_states(optimizer, memory, lambda: 100)
    return optimizer.step


def deepspeed(memory: Memory) -> Step:
    """DeepSpeedCPUAdam, by its front end."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    _give_states(optimizer, memory, lambda: 100)
    return optimizer.step


def c_loop(memory: Memory, threads: int) -> Step:
    """csrc/adamw_loop.cpp: the rule as a plain loop over raw pointers that were fetched before."""
    from opforge import OpBuilder

    number, pointers = ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p)

    class LoopBuilder(OpBuilder):
        name, sources, abi = "bench_adamw_loop", ["csrc/adamw_loop.cpp"], "c"
        extra_compile_args = ["-fno-math-errno", "-fno-trapping-math"]
        extra_link_args = ["-pthread"]
        signatures = {
            "bench_adamw_loop": (
                None,
                [number, *[pointers] * 4, ctypes.POINTER(number), *[ctypes.c_double] * 5, number, ctypes.c_int],
            )
        }

    call = LoopBuilder().load().bench_adamw_loop
    count = len(memory.params)
    lists = [(ctypes.c_void_p * count)(*(one.data_ptr() for one in many)) for many in memory]
    sizes = (number * count)(*(param.numel() for param in memory.params))
    return lambda: call(count, *lists, sizes, LR, *BETAS, EPS, DECAY, 100, threads)


def copy(memory: Memory) -> Step:
    """A plain copy that moves as many bytes as a step must: half of them read, half written."""
    source = torch.zeros(memory.traffic // 8)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def in_place(memory: Memory) -> Step:
    """Numbers changed in place, as a step changes its own: as many bytes, and no line that is written unread."""
    target = torch.zeros(memory.traffic // 8)
    return target.neg_


CONTENDERS: dict[str, Callable[[Memory], Step]] = {
    "ours": ours,
    "fused": torch_fused,
    "deepspeed": deepspeed,
    "loop": lambda memory: c_loop(memory, torch.get_num_threads()),
    "loop-1": lambda memory: c_loop(memory, 1),
    "copy": copy,
    "in-place": in_place,
}
