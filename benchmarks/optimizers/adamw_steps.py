"""One AdamW step, by each contender, over the same memory. Imports opforge and DeepSpeed only for their own steps."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Step = Callable[[], object]
LR, BETAS, EPS, DECAY = 1e-4, (0.9, 0.999), 1e-8, 1e-2


class Memory(NamedTuple):
    """Parameters with their gradients and states. All contenders share one, so that all use the same pages."""

    params: list[Tensor]
    grads: list[Tensor]
    exp_avg: list[Tensor]
    exp_avg_sq: list[Tensor]

    @property
    def traffic(self) -> int:
        """The bytes that a step must move: parameters and states are read and written, gradients are read."""
        twice = (self.params, self.exp_avg, self.exp_avg_sq)
        moved = 2 * sum(tensor.nbytes for tensors in twice for tensor in tensors)
        return moved + sum(grad.nbytes for grad in self.grads)


def make(sizes: Sequence[int], dtype: torch.dtype = torch.float32) -> Memory:
    """Returns parameters and gradients of `dtype`, and states in float32, as after some steps."""
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


def set_states(optimizer: torch.optim.Optimizer, memory: Memory, step: Callable[[], object]) -> Step:
    """Makes an optimizer use the states of `memory`, each with `step()` as its number. Returns the optimizer's step."""
    for param, first, second in zip(memory.params, memory.exp_avg, memory.exp_avg_sq, strict=True):
        optimizer.state[param] = {"step": step(), "exp_avg": first, "exp_avg_sq": second}
    return optimizer.step


def torch_fused(memory: Memory) -> Step:
    """Returns the step of torch.optim.AdamW(fused=True)."""
    optimizer = torch.optim.AdamW(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    return set_states(optimizer, memory, lambda: torch.tensor(100.0))


def ours(memory: Memory) -> Step:
    """Returns the step of opforge.ops.CPUAdam."""
    from opforge.ops import CPUAdam

    optimizer = CPUAdam(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    return set_states(optimizer, memory, lambda: 100)


def deepspeed(memory: Memory) -> Step:
    """Returns the step of DeepSpeedCPUAdam."""
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    optimizer = DeepSpeedCPUAdam(memory.params, lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    return set_states(optimizer, memory, lambda: 100)


def c_loop(memory: Memory, threads: int) -> Step:
    """Returns a call of csrc/adamw_loop.cpp: the rule as a plain loop over raw pointers that are fetched beforehand."""
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
    lists = [(ctypes.c_void_p * count)(*(tensor.data_ptr() for tensor in tensors)) for tensors in memory]
    sizes = (number * count)(*(param.numel() for param in memory.params))
    return lambda: call(count, *lists, sizes, LR, *BETAS, EPS, DECAY, 100, threads)


def copy(memory: Memory) -> Step:
    """Returns a plain copy that moves as many bytes as a step must: half of them read, half written."""
    source = torch.zeros(memory.traffic // 8)
    target = torch.zeros_like(source)
    return lambda: target.copy_(source)


def in_place(memory: Memory) -> Step:
    """Returns a change in place that moves as many bytes as a step must. Like a step, it writes only what it read."""
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
