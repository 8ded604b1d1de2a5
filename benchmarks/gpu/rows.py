"""Layer norm, RMS norm, softmax, GELU, SwiGLU, forward and backward, and quantisation by groups, of our Triton ops.

Beside torch's own, the same by torch.compile, and Liger's; what cannot take part is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from opforge.ops import triton as ops

from .functions import FUNCTIONS, AbsentError, Function, quantized_bytes, torch_dequantize, torch_quantize
from .targets import OURS, judged
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
ELEMENTS = 1 << 30
MATRICES = 24
"""How many matrices of a task may be there at once: each contender's inputs and outputs, and the copy's two."""
BACKEND = "inductor"
SIZES = (128, 1024, 8192, 1 << 17)
"""Of groups: the longest for each kernel, and one that takes two launches."""
Call = Callable[[], Any]


def run(gpu: Gpu, only: str = "") -> Iterator[Figure]:
    """All functions, both ways, all lengths; then quantisation to both widths, there and back. `only` names one part,
    of those in ROWS."""
    for function in FUNCTIONS:
        if only not in ("", function.name):
            continue
        for columns in function.lengths:
            for way in ("forward", "backward"):
                yield from _function(gpu, function, way, columns)
                _clear()
    for group in SIZES if only in ("", "quantisation") else ():
        for bits in (8, 4):
            for way in ("quantize", "dequantize"):
                yield from _quantisation(gpu, way, group, bits)
                _clear()


def _clear() -> None:
    """Give back what a task held; and what torch.compile kept, or it would refuse the eighth shape of a function."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def _rows(gpu: Gpu, columns: int) -> int:
    return max(1, gpu.fitting(ELEMENTS, MATRICES * DTYPE.itemsize) // columns)


def _function(gpu: Gpu, function: Function, way: str, columns: int) -> list[Figure]:
    gpu.check_time()
    rows = _rows(gpu, columns)
    shapes = [(rows, columns)] * function.matrices + [(columns,)] * function.parameters
    inputs = [torch.randn(shape, device=gpu.device, dtype=DTYPE) for shape in shapes]
    given = torch.randn(shapes[0], device=gpu.device, dtype=DTYPE)
    ours = getattr(ops, function.name)
    offered: dict[str, Callable[..., Tensor]] = {
        OURS: lambda *tensors: ours(*tensors, **function.options),
        "torch": function.torchs,
        "torch.compile": torch.compile(function.torchs, backend=BACKEND, dynamic=False),
        "Liger": function.liger,
    }
    prepare = _forward if way == "forward" else _backward
    task = f"{function.name} {way}, rows of {columns}"
    calls = taking_part(gpu, task, {name: _late(prepare, one, inputs, given) for name, one in offered.items()})
    moved = dict.fromkeys(calls, function.bytes_moved(way, rows * columns, DTYPE))
    return judged(gpu.beside_copy(task, calls, moved), function.name, way)


def _late(prepare: Callable[..., Call], *arguments: Any) -> Callable[[], Call]:
    return lambda: prepare(*arguments)


def _forward(function: Callable[..., Tensor], inputs: Sequence[Tensor], given: Tensor) -> Call:
    def call() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    return call


def _backward(function: Callable[..., Tensor], inputs: Sequence[Tensor], given: Tensor) -> Call:
    """Of inputs of its own: a rival that writes into what it saved spoils no other's."""
    own = [one.clone().requires_grad_() for one in inputs]
    # The graph is used many times, which torch.compile must not take for the last.
    with torch._functorch.config.patch(donated_buffer=False):
        y = function(*own)
    return lambda: torch.autograd.grad(y, own, given, retain_graph=True)


def _quantisation(gpu: Gpu, way: str, group: int, bits: int) -> list[Figure]:
    gpu.check_time()
    rows = _rows(gpu, group)
    x = torch.randn((rows, group), device=gpu.device, dtype=DTYPE)
    compiled: Callable[..., Any]
    if way == "quantize":
        compiled = torch.compile(torch_quantize, backend=BACKEND, dynamic=False)
        prepared: dict[str, Call] = {
            OURS: lambda: ops.quantize(x, group, bits),
            "torch.compile": lambda: compiled(x, group, bits),
        }
    else:
        compiled = torch.compile(torch_dequantize, backend=BACKEND, dynamic=False)
        codes, scales, offsets = ops.quantize(x, group, bits)
        prepared = {
            OURS: lambda: ops.dequantize(codes, scales, offsets, bits, DTYPE),
            "torch.compile": lambda: compiled(codes, scales, bits, DTYPE),
        }
    task = f"{way} {bits} bits, groups of {group}"
    for name in ("torch", "Liger"):
        gpu.leave_out(task, name, f"{name} has no quantisation by groups of its own")
    calls = taking_part(gpu, task, {name: _late(lambda one: one, call) for name, call in prepared.items()})
    moved = dict.fromkeys(calls, quantized_bytes(rows * group, group, bits, DTYPE))
    return judged(gpu.beside_copy(task, calls, moved), way, "forward")


def taking_part(gpu: Gpu, task: str, offered: dict[str, Callable[[], Call]]) -> dict[str, Call]:
    """The contenders whose call could be made and was made once. A rival that fails is left out; ours may not fail."""
    calls = {}
    for name, prepare in offered.items():
        try:
            call = prepare()
            call()
        except Exception as problem:  # whatever a rival does not support, it says in its own way
            if name == OURS:
                raise
            gpu.leave_out(task, name, _reason(problem))
            continue
        calls[name] = call
    return calls


def _reason(problem: Exception) -> str:
    lines = str(problem).strip().splitlines()
    said = lines[0][:200] if lines else type(problem).__name__
    if isinstance(problem, ModuleNotFoundError) and (problem.name or "").startswith("liger_kernel"):
        return "not installed: pip install liger-kernel"
    return said if isinstance(problem, AbsentError) else f"{type(problem).__name__}: {said}"
