"""Our Triton ops: layer norm, RMS norm, softmax, GELU, SwiGLU, forward and backward, and quantisation by groups.

They are measured beside torch's own and Liger's, or beside torch.compile. A rival that cannot take part is left out
with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor
from torch._functorch import config as functorch

from opforge.ops import triton as ops
from opforge.ops.cases.traffic import quantized

from .contenders import Call, prepared, run_task, usable
from .functions import FUNCTIONS, Function, torch_dequantize, torch_quantize
from .targets import OURS, SHARES, judged
from .timing import Figure, Gpu

DTYPE = torch.bfloat16
ELEMENTS = 1 << 30
MATRICES = 24
"""How many matrices of a task may exist at once: each contender's inputs and outputs, and the copy's two."""
BACKEND = "inductor"
GROUPS = (128, 1024, 8192, 1 << 17)
"""Elements of a group: the longest for each kernel, and one that takes two launches."""
COMPILED = "torch.compile"


def run(gpu: Gpu, only: str = "", compiled: bool = False) -> Iterator[Figure]:
    """Yields the figures of all functions and lengths, forward and backward, and of quantisation in both directions.

    Args:
        gpu: The GPU to measure.
        only: One part, of those in FUNCTIONS of this package. All if it is empty.
        compiled: Whether the rival is torch.compile, instead of torch and Liger.
    """
    for function in FUNCTIONS:
        for columns in function.lengths if only in ("", function.name) else ():
            for way in ("forward", "backward"):
                yield from measured(gpu, function, way, (_rows(gpu, columns), columns), compiled)
    for group in GROUPS if only in ("", "quantisation") else ():
        for bits in (8, 4):
            for way in ("quantize", "dequantize"):
                task = f"{way} {bits} bits, groups of {group}"
                yield from run_task(gpu, task, partial(_quantisation, gpu, task, way, group, bits, compiled))
                _clear()


def _clear() -> None:
    """Frees a task's memory, and resets torch.compile, which refuses a function after eight shapes."""
    torch._dynamo.reset()
    torch.cuda.empty_cache()


def _rows(gpu: Gpu, columns: int) -> int:
    return max(1, gpu.elements_that_fit(ELEMENTS, MATRICES * DTYPE.itemsize) // columns)


def measured(
    gpu: Gpu, function: Function, way: str, shape: tuple[int, int], compiled: bool = False, share: bool = True
) -> list[Figure]:
    """Returns the figures of one task: a function, forward or backward, over a matrix of `shape`.

    Without `share` bandwidth is not compared, and only the rivals' times are the target.
    """
    task = f"{function.name} {way}, {'' if share else f'{shape[0]} '}rows of {shape[1]}"
    figures = run_task(gpu, task, partial(_function, gpu, task, function, way, shape, compiled, share))
    _clear()
    return figures


def _function(
    gpu: Gpu, task: str, function: Function, way: str, shape: tuple[int, int], compiled: bool, share: bool
) -> list[Figure]:
    gpu.check_time()
    shapes = [shape] * function.matrices + [shape[1:]] * function.parameters
    inputs = [torch.randn(input_shape, device=gpu.device, dtype=DTYPE) for input_shape in shapes]
    gradient = torch.randn(shape, device=gpu.device, dtype=DTYPE)
    ours = getattr(ops, function.name)
    functions: dict[str, Callable[..., Tensor]] = {OURS: lambda *tensors: ours(*tensors, **function.options)}
    if compiled:
        functions[COMPILED] = torch.compile(function.torchs, backend=BACKEND, dynamic=False)
    else:
        functions |= {"torch": function.torchs, "Liger": function.liger}
    prepare = _forward if way == "forward" else _backward
    preparations = {name: partial(prepare, callee, inputs, gradient) for name, callee in functions.items()}
    calls = usable(gpu, task, preparations)
    repeats = _same_bits(calls[OURS]) if way == "backward" else None
    if not share:
        return judged(gpu.compare(task, calls), None, repeats)
    moved = dict.fromkeys(calls, function.bytes_moved(way, shape[0] * shape[1], DTYPE))
    return judged(gpu.compare_with_copy(task, calls, moved), SHARES.get((function.name, way)), repeats)


def _same_bits(call: Call) -> bool:
    return all(torch.equal(first, second) for first, second in zip(call(), call(), strict=True))


def _forward(function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> Call:
    def call() -> Tensor:
        with torch.no_grad():
            return function(*inputs)

    return call


def _backward(function: Callable[..., Tensor], inputs: Sequence[Tensor], gradient: Tensor) -> Call:
    """Returns the backward of a function of copies of the inputs. Liger's backward writes into its inputs."""
    copies = [tensor.clone().requires_grad_() for tensor in inputs]
    # The graph is used many times. With donated buffers torch.compile would free them after the first.
    with functorch.patch(donated_buffer=False):
        y = function(*copies)
    return lambda: torch.autograd.grad(y, copies, gradient, retain_graph=True)


def _quantisation(gpu: Gpu, task: str, way: str, group: int, bits: int, compiled: bool) -> list[Figure]:
    gpu.check_time()
    rows = _rows(gpu, group)
    x = torch.randn((rows, group), device=gpu.device, dtype=DTYPE)
    contenders: dict[str, Call]
    if way == "quantize":
        quantize = torch.compile(torch_quantize, backend=BACKEND, dynamic=False)
        contenders = {OURS: lambda: ops.quantize(x, group, bits), COMPILED: lambda: quantize(x, group, bits)}
    else:
        dequantize = torch.compile(torch_dequantize, backend=BACKEND, dynamic=False)
        codes, scales, offsets = ops.quantize(x, group, bits)
        contenders = {
            OURS: lambda: ops.dequantize(codes, scales, offsets, bits, DTYPE),
            COMPILED: lambda: dequantize(codes, scales, bits, DTYPE),
        }
    if not compiled:
        del contenders[COMPILED]
        for name in ("torch", "Liger"):
            gpu.leave_out(task, name, f"{name} has no quantisation by groups of its own")
    calls = usable(gpu, task, {name: prepared(call) for name, call in contenders.items()})
    moved = dict.fromkeys(calls, quantized(rows * group, DTYPE.itemsize, bits, group))
    return judged(gpu.compare_with_copy(task, calls, moved), SHARES[way, "forward"])
