"""The tensors of an op's arguments and results: copied, converted, laid out in memory, compared."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

DENORMAL = (1e-40, -1e-40, 3e-6)
"""Below the least normal number: the first two of float32 and bfloat16, where float16 has 0; the last of float16."""
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, *DENORMAL)
PAYLOADS = {
    torch.float64: (torch.int64, 0x7FF8 << 48, 1 << 20),
    torch.float32: (torch.int32, 0x7FC0_0000, 1 << 20),
    torch.bfloat16: (torch.int16, 0x7FC0, 1 << 6),
    torch.float16: (torch.int16, 0x7E00, 1 << 9),
}
"""Dtype -> integers of its size, the bits of its first quiet NaN, and how many quiet ones follow."""
SHARE_OF_SPECIAL = 0.25
"""The share of special values among the elements that may be special: most results remain finite."""
MARGIN = 16
"""Elements before and after a tensor that `surrounded` places in a larger one."""


def mapped(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """Returns arguments with every tensor in them changed, also inside lists and tuples."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (list, tuple)):
        return type(value)([mapped(part, change) for part in value])
    if isinstance(value, dict):
        return {name: mapped(part, change) for name, part in value.items()}
    return value


def tensors_of(value: Any) -> list[Tensor]:
    """Returns every tensor of arguments or of a result, in order."""
    tensors: list[Tensor] = []
    mapped(value, tensors.append)
    return tensors


def cloned(value: Any) -> Any:
    """Returns arguments with a copy of every tensor."""
    return mapped(value, lambda tensor: tensor.detach().clone())


def converted(value: Any, dtype: torch.dtype) -> Any:
    """Returns arguments with a copy of every tensor, floating-point and complex ones in another precision."""

    def own(tensor: Tensor) -> torch.dtype:
        if tensor.is_complex() and dtype.is_floating_point:
            return dtype.to_complex()
        return dtype if tensor.is_floating_point() else tensor.dtype

    return mapped(value, lambda tensor: tensor.detach().to(own(tensor), copy=True))


def with_gaps(tensor: Tensor) -> Tensor:
    """Returns a tensor of the same values that uses every second element of its memory, and NaN lies between."""
    if tensor.dim() == 0 or tensor.numel() == 0:
        return tensor.clone()
    memory = filled((*tensor.shape, 2), tensor)
    memory[..., 0] = tensor
    return memory[..., 0]


def transposed(tensor: Tensor) -> Tensor:
    """Returns a tensor of the same values whose dimensions lie in memory in the opposite order."""
    order = tuple(reversed(range(tensor.dim())))
    return tensor.permute(order).contiguous().permute(order)


def surrounded(tensor: Tensor, offset: int = 1) -> tuple[Tensor, Tensor]:
    """Returns a contiguous tensor of the same values at an address that is not aligned, and the memory around it.

    It lies so many elements behind an aligned address. The memory holds NaN before and after the tensor: a read outside
    shows in the result, a write outside in the memory.
    """
    memory = filled((tensor.numel() + 2 * MARGIN,), tensor)
    start = MARGIN + offset
    view = memory[start : start + tensor.numel()].view(tensor.shape)
    view.copy_(tensor)
    return view, memory


def filled(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns a tensor of the device and dtype of another, full of NaN; of a dtype without NaN, full of its maximum."""
    if like.dtype == torch.bool:
        return torch.ones(shape, dtype=like.dtype, device=like.device)
    value = math.nan if like.is_floating_point() or like.is_complex() else torch.iinfo(like.dtype).max
    return torch.full(shape, value, dtype=like.dtype, device=like.device)


def with_special_values(value: Any, seed: int) -> Any:
    """Returns arguments in whose floating-point tensors some elements are NaN, infinities, zeros, denormal or 1.

    Each tensor's are drawn by themselves. One row in three has none, and one in three has one infinity and nothing
    else: of a row with a NaN, a norm says nothing. A tensor of one dimension has them anywhere. A tensor without
    negative values, such as an average of squares, gets no negative ones.
    """
    random = torch.Generator().manual_seed(seed)

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or not tensor.numel():
            return tensor.clone()
        drawn = _drawn(tensor.shape, SPECIAL, random)
        chosen = torch.rand(tensor.shape, generator=random) < SHARE_OF_SPECIAL
        if tensor.dim() > 1:
            rows, width = tensor.numel() // tensor.shape[-1], tensor.shape[-1]
            kinds = (torch.arange(rows) + int(torch.randint(3, (), generator=random))) % 3
            kinds = kinds.view(*tensor.shape[:-1], 1)
            place = torch.randint(width, kinds.shape, generator=random)
            is_single = (kinds == 1) & (torch.arange(width) == place)
            chosen = chosen & (kinds == 2) | is_single
            drawn = torch.where(is_single, _drawn(kinds.shape, (math.inf, -math.inf), random), drawn)
        drawn = drawn.to(tensor)
        return torch.where(chosen.to(tensor.device), drawn if bool((tensor < 0).any()) else drawn.abs(), tensor)

    return mapped(value, change)


def with_zeros(value: Any) -> Any:
    """Returns arguments whose floating-point tensors hold zeros of both signs, 1 and -1, each drawn by itself."""
    random = torch.Generator().manual_seed(0)

    def change(tensor: Tensor) -> Tensor:
        drawn = _drawn(tensor.shape, (0.0, -0.0, 1.0, -1.0), random)
        return drawn.to(tensor) if tensor.is_floating_point() else tensor.clone()

    return mapped(value, change)


def _drawn(shape: tuple[int, ...], values: tuple[float, ...], random: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), shape, generator=random)]


def with_one(value: Any, number: int, special: float) -> Any:
    """Returns arguments of which one floating-point tensor, by its number, has this value in its middle.

    A tensor without negative values gets its absolute value.
    """
    numbers = iter(range(1_000_000))

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point() or next(numbers) != number or not tensor.numel():
            return tensor
        own = special if bool((tensor < 0).any()) else abs(special)
        changed = tensor.clone(memory_format=torch.contiguous_format)
        changed.view(-1)[tensor.numel() // 2] = own
        if 0 in tensor.stride():
            return changed
        # An op may refuse tensors whose strides differ: keys and values of one cache.
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
        return like.copy_(changed)

    return mapped(value, change)


def as_integers(tensor: Tensor) -> Tensor:
    """Returns the bits of a floating-point tensor as integers; another one as it is."""
    return tensor.view(PAYLOADS[tensor.dtype][0]) if tensor.is_floating_point() else tensor


def with_payloads(value: Any) -> Any:
    """Returns arguments whose floating-point tensors hold NaN alone: quiet ones of both signs, each with own bits."""

    def change(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        integer, quiet, most = PAYLOADS[tensor.dtype]
        bits = quiet + torch.arange(tensor.numel()) % most
        bits = torch.where(torch.arange(tensor.numel()) % 2 == 0, bits, bits - 2 ** (8 * tensor.itemsize - 1))
        return bits.to(integer).view(tensor.dtype).view(tensor.shape).to(tensor.device)

    return mapped(value, change)


@contextlib.contextmanager
def poisoned_memory() -> Iterator[None]:
    """Makes torch fill the memory of every new tensor, with NaN or the largest integer, before an op writes it."""
    fill: Any = torch.utils.deterministic
    deterministic = torch.are_deterministic_algorithms_enabled()
    warns, before = torch.is_deterministic_algorithms_warn_only_enabled(), fill.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    fill.fill_uninitialized_memory = True
    try:
        yield
    finally:
        fill.fill_uninitialized_memory = before
        torch.use_deterministic_algorithms(deterministic, warn_only=warns)


def difference(actual: Tensor, exact: Tensor, rtol: float, atol: float) -> str:
    """Returns how a result differs from the exact one, rounded to the result's dtype. Empty if it is close enough."""
    if actual.shape != exact.shape:
        return f"the shape is {tuple(actual.shape)}, and {tuple(exact.shape)} in the reference"
    actual = actual.detach().cpu()
    expected = exact.detach().cpu().to(actual.dtype)
    if actual.is_complex():  # each part by itself
        ours, theirs = (torch.view_as_real(value.to(torch.complex128)) for value in (actual, expected))
        wrong = ~torch.isclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True).all(-1)
    elif actual.is_floating_point():
        # The rounding above makes an overflow to infinity of the result's dtype the expected value.
        wrong = ~torch.isclose(actual.double(), expected.double(), rtol=rtol, atol=atol, equal_nan=True)
    else:
        wrong = actual != expected
    if not bool(wrong.any()):
        return ""
    index = tuple(wrong.nonzero()[0].tolist())
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements differ; {list(index)} is {actual[index].item()},"
        f" expected {expected[index].item()} (rtol {rtol:.3g}, atol {atol:.3g})"
    )


def same(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same shape, dtype and values; NaN is equal to NaN."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    equal = first == second
    if first.is_floating_point() or first.is_complex():
        equal |= first.isnan() & second.isnan()
    return bool(equal.all())


def same_bytes(first: Tensor, second: Tensor) -> bool:
    """Returns whether two tensors have the same shape, dtype and bytes."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    one, two = (tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (first, second))
    return bool(torch.equal(one, two))


def same_signs_of_zeros(actual: Tensor, exact: Tensor) -> str:
    """Returns which zero of a result has another sign than the exact one. Empty if none has."""
    if not actual.is_floating_point():
        return ""
    wrong = (actual == 0) & (exact == 0) & (actual.signbit() != exact.signbit())
    if not bool(wrong.any()):
        return ""
    index = tuple(wrong.nonzero()[0].tolist())
    return f"{list(index)} is {actual[index].item()}, expected {exact[index].item()}"
