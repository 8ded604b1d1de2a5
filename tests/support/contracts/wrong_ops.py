"""Custom ops of torch, each with one defect that the contract of ops must find."""

from __future__ import annotations

import ctypes
import itertools
from typing import Any

import torch
from torch import Tensor

_numbers = itertools.count()


def square(x: Tensor) -> Tensor:
    """Returns x * x. Raises TypeError for anything but floating-point numbers."""
    if not x.is_floating_point():
        raise TypeError(f"square: {x.dtype} is not supported")
    return x * x


def without_tail(x: Tensor) -> Tensor:
    """Writes the result only up to the last multiple of four elements."""
    square(x)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    end = x.numel() // 4 * 4
    y.view(-1)[:end] = (x * x).reshape(-1)[:end]
    return y


def without_nan(x: Tensor) -> Tensor:
    """Takes NaN for zero, as a comparison with max() in C does."""
    return square(torch.where(x.isnan(), 0.0, x))


def without_strides(x: Tensor) -> Tensor:
    """Reads the memory as if it were contiguous."""
    square(x)
    memory = torch.as_strided(x, x.shape, torch.empty(x.shape).stride(), x.storage_offset())
    return memory * memory


def reading_outside(x: Tensor) -> Tensor:
    """Reads one element after the end of each tensor that has room there."""
    y = square(x)
    end = x.storage_offset() + x.numel()
    if x.is_contiguous() and end < x.untyped_storage().nbytes() // x.element_size() and x.numel():
        y.view(-1)[-1] += 0 * torch.as_strided(x, (1,), (1,), end)[0]
    return y


def writing_outside(x: Tensor) -> Tensor:
    """Writes one element before the beginning of each tensor that has room there."""
    if x.storage_offset():
        torch.as_strided(x, (1,), (1,), x.storage_offset() - 1).fill_(7)
    return square(x)


def of_low_precision(x: Tensor) -> Tensor:
    """Computes in float16."""
    return square(x.half()).to(x.dtype)


def of_any_dtype(x: Tensor) -> Tensor:
    """Takes integers too."""
    return (x.double() * x.double()).to(x.dtype)


def changing_its_argument(x: Tensor) -> Tensor:
    """Leaves its argument changed, which its schema does not say."""
    y = square(x)
    x.add_(1)
    return y


def through_a_const_address(x: Tensor) -> Tensor:
    """Writes to the address of what is only read: the memory of all tensors that are copied on write."""
    y = square(x)
    ctypes.memset(torch._C._data_address(x), 0, x.nbytes)
    return y


def after_a_write(x: Tensor) -> Tensor:
    """Changes its argument before it refuses it."""
    if not x.is_contiguous():
        x.zero_()
        raise ValueError("contiguous expected")
    return square(x)


def failing_without_elements(x: Tensor) -> Tensor:
    """Fails for an empty tensor."""
    if not x.numel():
        raise RuntimeError("invalid launch: no blocks")
    return square(x)


def registered(function: Any, fake: Any = torch.empty_like) -> Any:
    """Returns the function as a custom op of torch, with a name of its own."""
    op = torch.library.custom_op(f"opforge_wrong::{function.__name__}_{next(_numbers)}", function, mutates_args=())
    op.register_fake(lambda x: fake(x))
    return op


def at_random(x: Tensor) -> Tensor:
    """Returns another last bit at each call, as a sum in the order in which threads end does."""
    return square(x) * (1 + 2e-7 * (next(_numbers) % 2))


def by_threads(x: Tensor) -> Tensor:
    """Adds up in as many parts as there are threads."""
    return square(x) * (1 + 2e-7 * (torch.get_num_threads() % 2))


def by_address(x: Tensor) -> Tensor:
    """Computes what comes before the first whole vector in another way."""
    return square(x) * (1 + 2e-7 * (x.data_ptr() // x.itemsize % 2))


def by_rows(x: Tensor) -> Tensor:
    """Takes another kernel for a single row, as products of matrices do."""
    return square(x) * (1 + 2e-7 * (x.shape[0] == 1))


def without_signs(x: Tensor) -> Tensor:
    """Returns -0 for each zero."""
    return torch.where(x == 0, -0.0, square(x))


def without_payloads(x: Tensor) -> Tensor:
    """Returns one NaN for all."""
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), square(x))


def refusing_nan(x: Tensor) -> Tensor:
    """Raises ValueError for a NaN."""
    if bool(x.isnan().any()):
        raise ValueError("no NaN")
    return square(x)


def without_infinities(x: Tensor) -> Tensor:
    """Takes an infinity for zero."""
    return square(torch.where(x.isinf(), 0.0, x))


def softmax_of_clamped(x: Tensor) -> Tensor:
    """Returns a softmax that takes an infinity for a large number, though its row is NaN then."""
    return torch.where(x.isnan().any(-1, keepdim=True), float("nan"), square(x).sqrt().clamp(max=1e4).softmax(-1))
