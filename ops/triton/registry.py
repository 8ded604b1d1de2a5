"""Registers the functions of the Triton ops with torch, and finds the kernels that they launch.

The functions are registered once, under `torch.ops.opforge_triton`. The kernels that they launch may change in a
process: when an op is loaded again, its functions launch the new kernels.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opforge.builders.triton_op_builder.builder import TritonOpBuilder
from opforge.builders.triton_op_builder.launching import Kernels
from opforge.builders.triton_op_builder.rows import LARGEST_COUNT, Size, size_for
from opforge.errors import OpIncompatibleError
from opforge.fast_path import library
from opforge.foundation import settings
from opforge.ops import missing_derivatives

from . import devices

NAMESPACE = "opforge_triton"
library.record_kernels()  # compiled graphs depend on what is registered with it
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
DTYPE_NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The dtypes that there are kernels for -> their names in Triton."""
PLANS = 4096
"""So many plans of calls are kept for a function."""
_bound: dict[str, Kernels] = {}


def bind(kernels: Kernels) -> None:
    """Makes the functions of the op that `kernels` belongs to launch these kernels from now on."""
    _bound[kernels.op] = kernels


def binding(functions: Mapping[str, Any]) -> Callable[[Kernels], Mapping[str, Any]]:
    """Returns the `python_functions` of a builder whose op has these functions: it binds the kernels it is given."""

    def bind_to(kernels: Kernels) -> Mapping[str, Any]:
        bind(kernels)
        return functions

    return bind_to


def reset() -> None:
    """Forgets all kernels: each op is loaded again by its next call."""
    _bound.clear()


def kernels_of(builder: type[TritonOpBuilder]) -> Kernels:
    """Returns the kernels of a builder's op. If the op is not loaded yet, loads it for the GPUs here.

    Raises what OpBuilder.load raises.
    """
    kernels = _bound.get(builder.name)
    if kernels is None:
        if not devices.gpu_is_available() and not settings.launches_through_triton():
            reason = "torch can use no GPU here. TRITON_INTERPRET=1 runs the op without one, slowly"
            raise OpIncompatibleError(builder.name, "this machine", [reason])
        kernels = builder().load().kernels  # load() calls bind()
    return kernels


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Registers an op and returns it. `fake` returns outputs for the inputs' shapes, for torch.compile."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    library.tag_compile_caches("", [f"{NAMESPACE}::{name}"])
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def direct(op: Any, run: Callable[..., Any], with_gradient: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Returns a function that calls `run` itself where torch's dispatcher, which takes 10 us, would do nothing else.

    The dispatcher is needed for torch.compile, traces, transforms, modes, the profiler and subclasses. Calls that need
    a gradient are passed to `with_gradient`, by default `op`.
    """
    differentiated = with_gradient or op

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*arguments)
        if _is_observed():
            missing_derivatives.refuse_forward(op, arguments)
            return op(*arguments)
        with_gradients, needs_gradient = torch.is_grad_enabled(), False
        for argument in arguments:
            kind = type(argument)
            if kind in NUMBERS:  # isinstance takes twice as long
                continue
            if isinstance(argument, Tensor):
                if (
                    kind not in PLAIN
                    or argument.is_meta
                    or argument.is_neg()  # the dispatcher computes what such a tensor and a zero tensor stand for
                    or argument._is_zerotensor()
                ):
                    return op(*arguments)
                needs_gradient = needs_gradient or (with_gradients and argument.requires_grad)
        return differentiated(*arguments) if needs_gradient else run(*arguments)

    return call


def differentiable(
    op: Any, run: Callable[..., Any], save: Callable[..., None], gradient: Callable[..., Any]
) -> Callable[..., Any]:
    """Registers the gradient of an op, and returns the function of `direct`.

    Args:
        op: The op.
        run: What it runs.
        save: Called with ctx, the arguments and the result of a forward.
        gradient: Called with ctx and the gradients of the results; returns those of the arguments.
    """
    torch.library.register_autograd(op, gradient, setup_context=save, lib=LIBRARY)

    def forward(ctx: Any, *arguments: Any) -> Any:
        result = run(*arguments)
        save(ctx, arguments, result)
        return result

    # torch's own class for an op that is written in Python goes through the dispatcher twice more: 45 us.
    members = {"forward": staticmethod(forward), "backward": staticmethod(gradient)}
    function: Any = type(op.name().partition("::")[2], (torch.autograd.Function,), members)
    return direct(op, run, function.apply)


def define_gradient(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Callable[..., Any]:
    """Registers an op that computes gradients, and returns the function of `direct`."""
    op = define(schema, run, fake)
    missing_derivatives.refuse(op, LIBRARY)
    return direct(op, run)


PLAIN = frozenset((Tensor, torch.nn.Parameter))
NUMBERS = frozenset((int, float, bool, str, torch.dtype))


def _is_observed() -> bool:
    """Returns whether something of torch wants to see the calls of ops."""
    core = torch._C
    return bool(
        core._len_torch_dispatch_stack()
        or core._len_torch_function_stack()
        or core._get_tracing_state() is not None
        or core._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
        or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


def define_inplace(schema: str, run: Callable[..., None]) -> Callable[..., None]:
    """Registers an op that changes its arguments in place. Returns a function with `run`'s signature and docstring."""
    op = define(schema, run, fake_inplace)

    @functools.wraps(run)
    def call(*arguments: Any, **options: Any) -> None:
        op(*arguments, **options)

    call.__name__ = call.__qualname__ = schema.partition("(")[0]
    return call


def fake_inplace(*_arguments: Any, **_options: Any) -> None:
    """Does nothing: the fake kernel of an op that changes its arguments in place and returns nothing."""


def dtype_name(op: str, tensor: Tensor) -> str:
    """Returns the name of the tensor's dtype in Triton. Raises TypeError if there are no kernels for the dtype."""
    return name_of(op, tensor.dtype)


def name_of(op: str, dtype: torch.dtype) -> str:
    """Returns the name of a tensor's dtype in Triton. Raises TypeError if there are no kernels for the dtype."""
    name = DTYPE_NAMES.get(dtype)
    if name is None:
        supported = ", ".join(str(each) for each in DTYPE_NAMES)
        raise TypeError(f"{op}: a tensor is {dtype}, expected one of {supported}: convert it with .float()")
    return name


def check_same(op: str, tensors: dict[str, Tensor]) -> None:
    """Raises ValueError unless all tensors have the same shape, dtype and device. The keys are their names."""
    (first_name, first), *others = tensors.items()
    if not others:
        return
    for name, tensor in others:
        for attribute in ("shape", "dtype", "device"):
            if getattr(tensor, attribute) != getattr(first, attribute):
                raise ValueError(
                    f"{op}: {name} has {attribute} {getattr(tensor, attribute)}, expected that of {first_name}, "
                    f"{getattr(first, attribute)}"
                )


def check_count(op: str, what: str, count: int) -> None:
    """Raises ValueError if a number of elements is more than kernels can count. `what` is what it is called."""
    if count > LARGEST_COUNT:
        raise ValueError(f"{op}: {what} is {count}, expected at most {LARGEST_COUNT}: compute it in parts")


def as_rows(tensor: Tensor) -> Tensor:
    """Returns the tensor as a matrix of its last dimension, without gaps in a row. Copies only if necessary."""
    rows = tensor.reshape(tensor.numel() // max(tensor.shape[-1], 1), tensor.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] <= 1 else rows.contiguous()


def rows_of(tensor: Tensor) -> tuple[Tensor, int]:
    """Returns a tensor whose memory has these rows of its last dimension, and how far they are apart."""
    if tensor.is_contiguous():
        return tensor, tensor.shape[-1]
    rows = as_rows(tensor)
    return rows, rows.stride(0)


class RowPlan(NamedTuple):
    """The launch of a call over rows that need no copy, as far as it does not depend on addresses."""

    rows: int
    columns: int
    strides: tuple[int, ...]
    """How far the rows of each tensor are apart."""
    leading: tuple[int, ...]
    """The shape without its last dimension."""
    names: tuple[str, str]
    """The kernel for any address, and that for addresses that are multiples of 16."""


def row_plan(
    prefix: str, sizes: tuple[Size, ...], shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> RowPlan | None:
    """Returns the plan for tensors of one shape, with these strides; None if one must be copied, or rows are too long.

    Without elements there is none either. `prefix` is the prefix of the names of the kernels. Keep plans by the values
    they depend on: making one takes longer than a launch.
    """
    apart = [_row_stride(shape, own) for own in strides]
    if not shape or 0 in shape or shape[-1] > LARGEST_COUNT or None in apart:
        return None
    found = tuple(stride for stride in apart if stride is not None)
    columns = shape[-1]
    fits = columns % 16 == 0 and not any(stride % 16 for stride in found)
    names = (f"{prefix}_{sizes[-1].name}", f"{prefix}_{size_for(sizes, columns, fits).name}")
    return RowPlan(math.prod(shape[:-1]), columns, found, tuple(shape[:-1]), names)


def _row_stride(shape: Sequence[int], strides: Sequence[int]) -> int | None:
    """Returns how far rows of the last dimension are apart; None if that differs, or if rows have gaps."""
    if not shape or (strides[-1] != 1 and shape[-1] > 1):
        return None
    outer = [(size, stride) for size, stride in zip(shape[:-1], strides[:-1], strict=True) if size > 1]
    if any(stride != size * inner for (_, stride), (size, inner) in itertools.pairwise(outer)):
        return None
    return outer[-1][1] if outer else shape[-1]


def row_size(
    sizes: tuple[Size, ...], columns: int, matrices: Sequence[tuple[Tensor, int]], vectors: Sequence[Tensor] = ()
) -> Size:
    """Returns the size of kernel for matrices, by `rows_of`, used with `vectors` that are as long as a row."""
    aligned = columns % 16 == 0
    for matrix, stride in matrices if aligned else ():
        aligned = aligned and stride % 16 == 0 and matrix.data_ptr() % 16 == 0
    for vector in vectors if aligned else ():
        aligned = aligned and vector.data_ptr() % 16 == 0
    return size_for(sizes, columns, aligned)
