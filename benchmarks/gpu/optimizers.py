"""FusedAdam, FusedLion and FusedLamb, by CUDA and by Triton: one large tensor, a thousand small ones, bfloat16 with
float32 master weights.

Bytes an element: Adam 28 in float32 and with a bfloat16 copy of float32 parameters, 14 in bfloat16; Lion 20; LAMB 40.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from opforge.builders.cuda.fused_adam import FusedAdamBuilder
from opforge.builders.cuda.fused_lamb import FusedLambBuilder
from opforge.builders.cuda.fused_lion import FusedLionBuilder
from opforge.ops import FusedAdam
from opforge.ops import triton as ops

from .contenders import Call, alone, captured, ready, taking_part
from .targets import OURS, SHARES, judged
from .timing import STEPS, Figure, Gpu

NUMBERS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
ADAM = {**NUMBERS, "eps": 1e-8, "step": 10, "adamw_mode": True, "bias_correction": True}
LAMB = {**NUMBERS, "eps": 1e-8, "step": 10, "bias_correction": True, "scale": 1.0, "eps_inside_sqrt": False}
LAMB.update(max_coeff=10.0, min_coeff=0.01)
TRITON, TORCH = f"{OURS}, Triton", "torch fused"
SMALL = [1000] * 1000


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """All tasks, or the one that `only` names."""
    for name, task in TASKS.items():
        if only in ("", name):
            gpu.check_time()
            yield from task(gpu)


@cache
def _loaded(builder: type[Any], target: str) -> Any:
    return builder(target=target).load()


def _tensors(gpu: Gpu, count: int, sizes: list[int], dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """`count` lists of tensors, none of them zero."""
    return [[torch.rand(size, device=gpu.device).to(dtype) + 0.1 for size in sizes] for _ in range(count)]


def _flag(gpu: Gpu) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=gpu.device)


def _adams(gpu: Gpu, lists: list[list[Tensor]], copies: list[Tensor]) -> dict[str, Call]:
    """Ours, over params, grads and both moments."""
    adam, flag = _loaded(FusedAdamBuilder, gpu.target), _flag(gpu)
    return {
        OURS: lambda: adam.fused_adam_(flag, *lists, copies, **ADAM),
        TRITON: lambda: ops.fused_adam_(flag, *lists, copies, **ADAM),
    }


def _torchs(lists: list[list[Tensor]]) -> Call:
    """torch's own kernel, without its optimizer around it, over the same lists."""
    steps = [torch.tensor(10.0, device=lists[0][0].device) for _ in lists[0]]
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    return lambda: torch._fused_adamw_(*lists, [], steps, amsgrad=False, maximize=False, **numbers)


def _beside_copy(
    gpu: Gpu, task: str, calls: dict[str, Call], moved: int, wanted: float | None = None, **other: int
) -> list[Figure]:
    """The calls, which move so many bytes each, but for those that `other` names by contender."""
    calls = taking_part(gpu, task, {name: ready(call) for name, call in calls.items()})
    return judged(gpu.beside_copy(task, calls, {**dict.fromkeys(calls, moved), **other}), wanted)


def _large(gpu: Gpu) -> list[Figure]:
    size = gpu.fitting(1 << 30, 16)
    lists = _tensors(gpu, 4, [size])
    calls = {**_adams(gpu, lists, []), TORCH: _torchs(lists)}
    return _beside_copy(gpu, f"AdamW fp32, {size >> 20} Mi", calls, 28 * size, SHARES["adamw", "large"])


def _small(gpu: Gpu) -> Iterator[Figure]:
    """What the host takes counts here: by its clock, and without it, in a graph."""
    lists = _tensors(gpu, 4, SMALL)
    calls = {**_adams(gpu, lists, []), TORCH: _torchs(lists)}
    steps = {
        OURS: _optimizer(gpu, FusedAdam),
        "torch AdamW(fused=True)": _optimizer(gpu, torch.optim.AdamW, fused=True),
        "torch AdamW(foreach=True)": _optimizer(gpu, torch.optim.AdamW, foreach=True),
    }
    capturable = {
        OURS: _optimizer(gpu, FusedAdam, capturable=True),
        "torch AdamW(fused=True)": _optimizer(gpu, torch.optim.AdamW, fused=True, capturable=True),
    }
    task = "AdamW fp32, 1000 x 1000"
    for way, contenders, measured in (
        (f"the call, {STEPS} in a row", calls, _in_a_row),
        (f"step(), {STEPS} in a row", steps, _in_a_row),
        ("the call in a graph", calls, _in_a_graph),
        ("step() in a graph", capturable, _in_a_graph),
    ):
        yield from alone(gpu, f"{task}, {way}", partial(measured, gpu, f"{task}, {way}", contenders))


def _in_a_row(gpu: Gpu, task: str, calls: dict[str, Call]) -> list[Figure]:
    offered = {name: ready(call) for name, call in calls.items()}
    return judged(gpu.by_steps(task, taking_part(gpu, task, offered)), None)


def _in_a_graph(gpu: Gpu, task: str, calls: dict[str, Call]) -> list[Figure]:
    offered = {name: _late(call) for name, call in calls.items()}
    return judged(gpu.by_turns(task, taking_part(gpu, task, offered)), None)


def _late(call: Call) -> Callable[[], Call]:
    return lambda: captured(call)


def _optimizer(gpu: Gpu, kind: Callable[..., Any], **options: bool) -> Call:
    """The step of an optimizer over parameters of its own."""
    params = [torch.nn.Parameter(tensor) for tensor in _tensors(gpu, 1, SMALL)[0]]
    for param in params:
        param.grad = torch.ones_like(param)
    step: Call = kind(params, lr=1e-3, weight_decay=0.01, **options).step
    return step


def _master(gpu: Gpu) -> list[Figure]:
    size = gpu.fitting(1 << 29, 22)
    params, first, second, wide = _tensors(gpu, 4, [size])
    grads, copies = _tensors(gpu, 2, [size], torch.bfloat16)
    torchs = _torchs([params, wide, first, second])

    def in_three() -> None:
        wide[0].copy_(grads[0])
        torchs()
        copies[0].copy_(params[0])

    three = "torch: cast, fused step, cast"
    calls = {**_adams(gpu, [params, grads, first, second], copies), three: in_three}
    return _beside_copy(gpu, f"AdamW bf16 + fp32 master, {size >> 20} Mi", calls, 28 * size, **{three: 40 * size})


def _low(gpu: Gpu) -> list[Figure]:
    size = gpu.fitting(1 << 30, 8)
    lists = _tensors(gpu, 4, [size], torch.bfloat16)
    calls = {**_adams(gpu, lists, []), TORCH: _torchs(lists)}
    return _beside_copy(gpu, f"AdamW all bf16, {size >> 20} Mi", calls, 14 * size)


def _lion(gpu: Gpu) -> list[Figure]:
    size = gpu.fitting(1 << 29, 12)
    lists, flag, lion = _tensors(gpu, 3, [size]), _flag(gpu), _loaded(FusedLionBuilder, gpu.target)
    calls: dict[str, Call] = {
        OURS: lambda: lion.fused_lion_(flag, *lists, [], **NUMBERS),
        TRITON: lambda: ops.fused_lion_(flag, *lists, [], **NUMBERS),
    }
    return _beside_copy(gpu, f"Lion fp32, {size >> 20} Mi", calls, 20 * size)


def _lamb(gpu: Gpu) -> list[Figure]:
    size = gpu.fitting(1 << 29, 16)
    lists, flag, lamb = _tensors(gpu, 4, [size]), _flag(gpu), _loaded(FusedLambBuilder, gpu.target)
    ratios = torch.ones(1, device=gpu.device)
    calls: dict[str, Call] = {
        OURS: lambda: lamb.fused_lamb_(flag, *lists, [], ratios=ratios, **LAMB),
        TRITON: lambda: ops.fused_lamb_(flag, *lists, [], ratios=ratios, **LAMB),
    }
    return _beside_copy(gpu, f"LAMB fp32, {size >> 20} Mi", calls, 40 * size)


TASKS: dict[str, Callable[[Gpu], list[Figure] | Iterator[Figure]]] = {
    "large": _large,
    "small": _small,
    "master": _master,
    "low": _low,
    "lion": _lion,
    "lamb": _lamb,
}
