"""FusedAdam, FusedLion and FusedLamb, by CUDA and by Triton: large and small tensors, and bfloat16 with fp32 masters.

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

from .contenders import Call, captured, prepared, run_task, usable
from .targets import OURS, SHARES, judged
from .timing import STEPS, Figure, Gpu

NUMBERS = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01}
ADAM = {**NUMBERS, "eps": 1e-8, "step": 10, "adamw_mode": True, "bias_correction": True}
LAMB = {**NUMBERS, "eps": 1e-8, "step": 10, "bias_correction": True, "scale": 1.0, "eps_inside_sqrt": False}
LAMB.update(max_coeff=10.0, min_coeff=0.01)
TRITON, TORCH = f"{OURS}, Triton", "torch fused"
SMALL = [1000] * 1000


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """Yields the figures of all tasks, or of the task that `only` names."""
    for name, task in TASKS.items():
        if only in ("", name):
            gpu.check_time()
            yield from task(gpu)


@cache
def loaded_op(builder: type[Any], target: str) -> Any:
    return builder(target=target).load()


def _tensors(gpu: Gpu, count: int, sizes: list[int], dtype: torch.dtype = torch.float32) -> list[list[Tensor]]:
    """Returns `count` lists of tensors, without a zero in them."""
    return [[torch.rand(size, device=gpu.device).to(dtype) + 0.1 for size in sizes] for _ in range(count)]


def _flag(gpu: Gpu) -> Tensor:
    return torch.zeros(1, dtype=torch.int32, device=gpu.device)


def _adams(gpu: Gpu, lists: list[list[Tensor]], copies: list[Tensor]) -> dict[str, Call]:
    """Returns our contenders, over params, grads and both moments."""
    adam, flag = loaded_op(FusedAdamBuilder, gpu.target), _flag(gpu)
    return {
        OURS: lambda: adam.fused_adam_(flag, *lists, copies, **ADAM),
        TRITON: lambda: ops.fused_adam_(flag, *lists, copies, **ADAM),
    }


def _torch_kernel(lists: list[list[Tensor]]) -> Call:
    """Returns a call of torch's own kernel, without its optimizer around it, over the same lists."""
    steps = [torch.tensor(10.0, device=lists[0][0].device) for _ in lists[0]]
    numbers = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.01, "eps": 1e-8}
    fused: Callable[..., Any] = torch._fused_adamw_
    return lambda: fused(*lists, [], steps, amsgrad=False, maximize=False, **numbers)


def _beside_copy(
    gpu: Gpu, task: str, calls: dict[str, Call], moved: int, share: float | None = None, **other: int
) -> list[Figure]:
    """Returns the figures of calls that move `moved` bytes each, or what `other` says by contender."""
    calls = usable(gpu, task, {name: prepared(call) for name, call in calls.items()})
    return judged(gpu.compare_with_copy(task, calls, {**dict.fromkeys(calls, moved), **other}), share)


def _large(gpu: Gpu) -> list[Figure]:
    size = gpu.elements_that_fit(1 << 30, 16)
    lists = _tensors(gpu, 4, [size])
    calls = {**_adams(gpu, lists, []), TORCH: _torch_kernel(lists)}
    return _beside_copy(gpu, f"AdamW fp32, {size >> 20} Mi", calls, 28 * size, SHARES["adamw", "large"])


def _small(gpu: Gpu) -> Iterator[Figure]:
    """Yields figures with the host's time, which counts for small tensors, and without it, in a graph."""
    lists = _tensors(gpu, 4, SMALL)
    calls = {**_adams(gpu, lists, []), TORCH: _torch_kernel(lists)}
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
    for way, contenders, measure in (
        (f"the call, {STEPS} in a row", calls, _in_a_row),
        (f"step(), {STEPS} in a row", steps, _in_a_row),
        ("the call in a graph", calls, _in_a_graph),
        ("step() in a graph", capturable, _in_a_graph),
    ):
        yield from run_task(gpu, f"{task}, {way}", partial(measure, gpu, f"{task}, {way}", contenders))


def _in_a_row(gpu: Gpu, task: str, calls: dict[str, Call]) -> list[Figure]:
    preparations = {name: prepared(call) for name, call in calls.items()}
    return judged(gpu.compare_steps(task, usable(gpu, task, preparations)), None)


def _in_a_graph(gpu: Gpu, task: str, calls: dict[str, Call]) -> list[Figure]:
    preparations = {name: partial(captured, call) for name, call in calls.items()}
    return judged(gpu.compare(task, usable(gpu, task, preparations)), None)


def _optimizer(gpu: Gpu, kind: Callable[..., Any], **options: bool) -> Call:
    """Returns the step of an optimizer over parameters of its own."""
    params = [torch.nn.Parameter(tensor) for tensor in _tensors(gpu, 1, SMALL)[0]]
    for param in params:
        param.grad = torch.ones_like(param)
    step: Call = kind(params, lr=1e-3, weight_decay=0.01, **options).step
    return step


def _master(gpu: Gpu) -> list[Figure]:
    size = gpu.elements_that_fit(1 << 29, 22)
    params, first, second, wide = _tensors(gpu, 4, [size])
    grads, copies = _tensors(gpu, 2, [size], torch.bfloat16)
    torch_step = _torch_kernel([params, wide, first, second])

    def in_three() -> None:
        wide[0].copy_(grads[0])
        torch_step()
        copies[0].copy_(params[0])

    three = "torch: cast, fused step, cast"
    calls = {**_adams(gpu, [params, grads, first, second], copies), three: in_three}
    return _beside_copy(gpu, f"AdamW bf16 + fp32 master, {size >> 20} Mi", calls, 28 * size, **{three: 40 * size})


def _low(gpu: Gpu) -> list[Figure]:
    size = gpu.elements_that_fit(1 << 30, 8)
    lists = _tensors(gpu, 4, [size], torch.bfloat16)
    calls = {**_adams(gpu, lists, []), TORCH: _torch_kernel(lists)}
    return _beside_copy(gpu, f"AdamW all bf16, {size >> 20} Mi", calls, 14 * size)


def _lion(gpu: Gpu) -> list[Figure]:
    size = gpu.elements_that_fit(1 << 29, 12)
    lists, flag, lion = _tensors(gpu, 3, [size]), _flag(gpu), loaded_op(FusedLionBuilder, gpu.target)
    calls: dict[str, Call] = {
        OURS: lambda: lion.fused_lion_(flag, *lists, [], **NUMBERS),
        TRITON: lambda: ops.fused_lion_(flag, *lists, [], **NUMBERS),
    }
    return _beside_copy(gpu, f"Lion fp32, {size >> 20} Mi", calls, 20 * size)


def _lamb(gpu: Gpu) -> list[Figure]:
    size = gpu.elements_that_fit(1 << 29, 16)
    lists, flag, lamb = _tensors(gpu, 4, [size]), _flag(gpu), loaded_op(FusedLambBuilder, gpu.target)
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
