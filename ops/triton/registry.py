"""How a front registers its functions with torch, and comes to the kernels that they launch.

The functions are registered once, under `torch.ops.opforge_triton`; which kernels they launch may change in a process,
when an op is loaded anew.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opforge import settings
from opforge.builders.triton import TRITON_BUILDERS
from opforge.builders.triton.base import present_device
from opforge.builders.triton.launching import Kernels
from opforge.builders.triton.rows import Size, fitting
from opforge.errors import OpIncompatibleError

NAMESPACE = "opforge_triton"
LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
"""The dtypes that there are kernels for, in Triton's words."""
_bound: dict[str, Kernels] = {}


def bind(kernels: Kernels) -> None:
    """From now on the op's functions launch these kernels."""
    _bound[kernels.op] = kernels


def kernels(op: str, builder: str) -> Kernels:
    """The kernels of an op; loads the op if nothing has, for torch's current device. Raises as OpBuilder.load does."""
    found = _bound.get(op)
    if found is None:
        if present_device() is None and not settings.triton_jit():
            reason = "torch can use no GPU here. TRITON_INTERPRET=1 runs the op without one, slowly"
            raise OpIncompatibleError(op, "this machine", [reason])
        module, _, name = TRITON_BUILDERS[builder].partition(":")
        found = getattr(importlib.import_module(module), name)().load().kernels  # which binds them
    return found


def define(schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """Register an op and give it back. `fake` makes the outputs from the inputs' shapes, for torch.compile."""
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    LIBRARY.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(f"{NAMESPACE}::{name}", fake, lib=LIBRARY)
    return getattr(getattr(torch.ops, NAMESPACE), name).default


def function(schema: str, run: Callable[..., None]) -> Callable[..., None]:
    """Register an op that changes its arguments in place; gives a function with `run`'s arguments and docstring."""
    op = define(schema, run, nothing)

    @functools.wraps(run)
    def call(*arguments: Any, **options: Any) -> None:
        op(*arguments, **options)

    call.__name__ = call.__qualname__ = schema.partition("(")[0]
    return call


def nothing(*_arguments: Any, **_options: Any) -> None:
    """The fake of an op that changes its arguments in place and gives nothing back."""


def dtype_name(op: str, tensor: Tensor) -> str:
    """The dtype in Triton's words. Raises TypeError for one that there are no kernels for."""
    name = NAMES.get(tensor.dtype)
    if name is None:
        offered = ", ".join(str(dtype) for dtype in NAMES)
        raise TypeError(f"{op}: a tensor is {tensor.dtype}, expected one of {offered}: convert it with .float()")
    return name


def same(op: str, tensors: dict[str, Tensor]) -> None:
    """Raises ValueError unless all have one shape, one dtype and one device."""
    first, *others = tensors.items()
    for name, tensor in others:
        for what in ("shape", "dtype", "device"):
            if getattr(tensor, what) != getattr(first[1], what):
                raise ValueError(
                    f"{op}: {name} has {what} {getattr(tensor, what)}, expected that of {first[0]}, "
                    f"{getattr(first[1], what)}"
                )


def as_rows(tensor: Tensor) -> Tensor:
    """The tensor as a matrix of its last dimension's rows, each without gaps; copied only where it must be."""
    rows = tensor.reshape(tensor.numel() // max(tensor.shape[-1], 1), tensor.shape[-1])
    return rows if rows.stride(1) == 1 or rows.shape[1] <= 1 else rows.contiguous()


def row_size(offered: tuple[Size, ...], rows: Sequence[Tensor], others: Sequence[Tensor] = ()) -> Size:
    """The size of kernel for matrices of one shape; `others` are tensors of one row."""
    columns = rows[0].shape[1]
    aligned = columns % 16 == 0 and all(one.data_ptr() % 16 == 0 and one.stride(0) % 16 == 0 for one in rows)
    return fitting(offered, columns, aligned and all(one.data_ptr() % 16 == 0 for one in others))
