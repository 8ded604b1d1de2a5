"""FusedAdam, FusedLion and FusedLamb: one large tensor, a thousand small ones, bfloat16 with float32 master weights.

Bytes an element: Adam 28 in float32 and with a bfloat16 copy of float32 parameters, 14 in bfloat16; Lion 20; LAMB 40.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from opforge.builders.cuda.fused_adam import FusedAdamBuilder
from opforge.builders.cuda.fused_lamb import FusedLambBuilder
from opforge.builders.cuda.fused_lion import FusedLionBuilder

from .timing import Figure, Gpu

NUMBERS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
ADAM = {**NUMBERS, "eps": 1e-8, "step": 10, "adamw_mode": True, "bias_correction": True}
LAMB = {**NUMBERS, "eps": 1e-8, "step": 10, "bias_correction": True, "scale": 1.0, "eps_inside_sqrt": False}
LAMB.update(max_coeff=10.0, min_coeff=0.01)


def run(gpu: Gpu) -> Iterator[Figure]:
    """All tasks."""
    adam, lion, lamb = (one(target=gpu.target).load() for one in (FusedAdamBuilder, FusedLionBuilder, FusedLambBuilder))
    for task in (_one_large, _small, _master, _low):
        yield from task(gpu, adam)
    yield from _lion_and_lamb(gpu, lion, lamb)


def _tensors(gpu: Gpu, count: int, sizes: list[int], dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """`count` lists of tensors, none of them zero."""
    return [[torch.rand(size, device=gpu.device).to(dtype) + 0.1 for size in sizes] for _ in range(count)]


def _flag(gpu: Gpu) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=gpu.device)


def _torchs(lists: list[list[Tensor]]) -> Any:
    """torch's own kernel, without its optimizer around it. `lists` are params, grads and both moments."""
    steps = [torch.tensor(10.0, device=lists[0][0].device) for _ in lists[0]]
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return lambda: torch._fused_adamw_(*lists, [], steps, amsgrad=False, maximize=False, **numbers)


def _one_large(gpu: Gpu, adam: Any) -> list[Figure]:
    size = gpu.fitting(1 << 30, 16)
    lists, flag = _tensors(gpu, 4, [size]), _flag(gpu)
    contenders = {
        "opforge": lambda: adam.fused_adam_(flag, *lists, [], **ADAM),
        "torch fused": _torchs(lists),
    }
    return gpu.beside_copy(f"AdamW fp32, {size >> 20} Mi", contenders, dict.fromkeys(contenders, 28 * size))


def _small(gpu: Gpu, adam: Any) -> list[Figure]:
    lists, flag = _tensors(gpu, 4, [1000] * 1000), _flag(gpu)
    params = [torch.nn.Parameter(tensor.clone()) for tensor in lists[0]]
    for param in params:
        param.grad = torch.ones_like(param)
    contenders = {
        "opforge": lambda: adam.fused_adam_(flag, *lists, [], **ADAM),
        "torch fused": _torchs(lists),
        "torch AdamW(fused=True).step()": torch.optim.AdamW(params, fused=True).step,
        "torch AdamW(foreach=True).step()": torch.optim.AdamW(params, foreach=True).step,
    }
    return gpu.by_turns("AdamW fp32, 1000 x 1000", contenders, "from the call to the last kernel's end")


def _master(gpu: Gpu, adam: Any) -> list[Figure]:
    size = gpu.fitting(1 << 29, 18)
    params, first, second = _tensors(gpu, 3, [size])
    [grads, copies], flag = _tensors(gpu, 2, [size], torch.bfloat16), _flag(gpu)
    torchs = _torchs([params, (wide := [torch.empty(size, device=gpu.device)]), first, second])

    def in_three() -> None:
        wide[0].copy_(grads[0])
        torchs()
        copies[0].copy_(params[0])

    contenders = {
        "opforge, one pass": lambda: adam.fused_adam_(flag, params, grads, first, second, copies, **ADAM),
        "torch: cast, fused step, cast": in_three,
    }
    moved = {"opforge, one pass": 28 * size, "torch: cast, fused step, cast": 40 * size}
    return gpu.beside_copy(f"AdamW bf16 + fp32 master, {size >> 20} Mi", contenders, moved)


def _low(gpu: Gpu, adam: Any) -> list[Figure]:
    size = gpu.fitting(1 << 30, 8)
    lists, flag = _tensors(gpu, 4, [size], torch.bfloat16), _flag(gpu)
    contenders = {
        "opforge": lambda: adam.fused_adam_(flag, *lists, [], **ADAM),
        "torch fused": _torchs(lists),
    }
    return gpu.beside_copy(f"AdamW all bf16, {size >> 20} Mi", contenders, dict.fromkeys(contenders, 14 * size))


def _lion_and_lamb(gpu: Gpu, lion: Any, lamb: Any) -> Iterator[Figure]:
    size = gpu.fitting(1 << 29, 16)
    lists, flag, ratios = _tensors(gpu, 4, [size]), _flag(gpu), torch.ones(1, device=gpu.device)
    lions = {"opforge": lambda: lion.fused_lion_(flag, *lists[:3], [], **NUMBERS)}
    lambs = {"opforge": lambda: lamb.fused_lamb_(flag, *lists, [], ratios=ratios, **LAMB)}
    yield from gpu.beside_copy(f"Lion fp32, {size >> 20} Mi", lions, {"opforge": 20 * size})
    yield from gpu.beside_copy(f"LAMB fp32, {size >> 20} Mi", lambs, {"opforge": 40 * size})
