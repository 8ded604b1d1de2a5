"""Layer norm, RMS norm, softmax, GELU, SwiGLU, forward and backward, and quantisation by groups, of our Triton ops.

Beside torch's own and Liger's, or beside torch.compile; what cannot take part is left out with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch._functorch import config as functorch

from opforge.ops import triton as ops

from .contenders import Call, alone, ready, taking_part
from .functions import FUNCTIONS, Function, quantized_bytes, torch_dequantize, torch_quantize
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
ELEMENTS = 1 << 30
MATRICES = 24
"""How many matrices of a task may be there at once: each contender's inputs and outputs, and the copy's two."""
BACKEND = "inductor"
SIZES = (128, 1024, 8192, 1 << 17)
"""Of groups: the longest for each kernel, and one that takes two launches."""
COMPILED = "torch.compile"


def run(gpu: Gpu, only: str = "", compiled: bool = False) -> Iterator[Figure]:
    """All functions, both ways, all lengths; and quantisation to both widths, there and back.

    Beside torch and Liger, or beside torch.compile. `only` names one part, of those in FUNCTIONS of this package.
    """
    for function in FUNCTIONS:
        for columns in function.lengths if only in ("", function.name) else ():
            for way in ("forward", "backward"):
                yield from measured(gpu, function, way, (_rows(gpu, columns), columns), compiled)
    for group in SIZES if only in ("", "quantisation") else ():
        for bits in (8, 4):
            for way in ("quantize", "dequantize"):
                task = f"{way} {bits} bits, groups of {group}"
                yield from alone(gpu, task, partial(_quantisation, gpu, task, way, group, bits, compiled))
                _clear()


def _clear() -> None:
    """Give back what a task held; and what torch.compile kept, or it would refuse the eighth shape of a function."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def _rows(gpu: Gpu, columns: int) -> int:
    return max(1, gpu.fitting(ELEMENTS, MATRICES * DTYPE.itemsize) // columns)


def measured(
    gpu: Gpu, function: Function, way: str, shape: tuple[int, int], compiled: bool = False, share: bool = True
) -> list[Figure]:
    """The figures of one task: of a function, forward or backward, over a matrix of this shape.

    Without `share` nothing is told of bytes, and only the rivals' times are the target.
    """
    task = f"{function.name} {way}, {'' if share else f'{shape[0]} '}rows of {shape[1]}"
    figures = alone(gpu, task, partial(_function, gpu, task, function, way, shape, compiled, share))
    _clear()
    return figures


def _function(
    gpu: Gpu, task: str, function: Function, way: str, shape: tuple[int, int], compiled: bool, share: bool
) -> list[Figure]:
    gpu.check_time()
    shapes = [shape] * function.matrices + [shape[1:]] * function.parameters
    inputs = [torch.randn(one, device=gpu.device, dtype=DTYPE) for one in shapes]
    given = torch.randn(shape, device=gpu.device, dtype=DTYPE)
    ours = getattr(ops, function.name)
    offered: dict[str, Callable[..., Tensor]] = {OURS: lambda *tensors: ours(*tensors, **function.options)}
    if compiled:
        offered[COMPILED] = torch.compile(function.torchs, backend=BACKEND, dynamic=False)
    else:
        offered |= {"torch": function.torchs, "Liger": function.liger}
    prepare = _forward if way == "forward" else _backward
    calls = taking_part(gpu, task, {name: _late(prepare, one, inputs, given) for name, one in offered.items()})
    repeats = _same_bits(calls[OURS]) if way == "backward" else None
    if not share:
        return judged(gpu.by_turns(task, calls), None, repeats)
    moved = dict.fromkeys(calls, function.bytes_moved(way, shape[0] * shape[1], DTYPE))
    return judged(gpu.beside_copy(task, calls, moved), SHARES.get((function.name, way)), repeats)


def _same_bits(call: Call) -> bool:
    return all(torch.equal(one, other) for one, other in zip(call(), call(), strict=True))


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
    with functorch.patch(donated_buffer=False):
        y = function(*own)
    return lambda: torch.autograd.grad(y, own, given, retain_graph=True)


def _quantisation(gpu: Gpu, task: str, way: str, group: int, bits: int, compiled: bool) -> list[Figure]:
    gpu.check_time()
    rows = _rows(gpu, group)
    x = torch.randn((rows, group), device=gpu.device, dtype=DTYPE)
    prepared: dict[str, Call]
    if way == "quantize":
        theirs = torch.compile(torch_quantize, backend=BACKEND, dynamic=False)
        prepared = {OURS: lambda: ops.quantize(x, group, bits), COMPILED: lambda: theirs(x, group, bits)}
    else:
        back = torch.compile(torch_dequantize, backend=BACKEND, dynamic=False)
        codes, scales, offsets = ops.quantize(x, group, bits)
        prepared = {
            OURS: lambda: ops.dequantize(codes, scales, offsets, bits, DTYPE),
            COMPILED: lambda: back(codes, scales, bits, DTYPE),
        }
    if not compiled:
        del prepared[COMPILED]
        for name in ("torch", "Liger"):
            gpu.leave_out(task, name, f"{name} has no quantisation by groups of its own")
    calls = taking_part(gpu, task, {name: ready(call) for name, call in prepared.items()})
    moved = dict.fromkeys(calls, quantized_bytes(rows * group, group, bits, DTYPE))
    return judged(gpu.beside_copy(task, calls, moved), SHARES[way, "forward"])
