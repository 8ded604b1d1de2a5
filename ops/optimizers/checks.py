"""Checks of an optimizer's options and tensors, with messages that state the expected value and advice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def check_range(owner: str, name: str, value: Any, low: float, high: float | None = None) -> None:
    """Raises ValueError unless `value` is one number with low <= value, and value < high if `high` is given."""
    try:
        if value >= low and (high is None or value < high):
            return
    except (TypeError, RuntimeError):  # a string or None; a tensor with several elements
        raise ValueError(f"{owner}: {name} is {value!r}, expected one number") from None
    expected = f"at least {low:g}" if high is None else f"in [{low:g}, {high:g})"
    raise ValueError(f"{owner}: {name} is {value!r}, expected {expected}")


def check_betas(owner: str, betas: Any) -> None:
    """Raises ValueError unless `betas` are two numbers in [0, 1)."""
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise ValueError(f"{owner}: betas is {betas!r}, expected two numbers") from None
    check_range(owner, "betas[0]", first, 0.0, 1.0)
    check_range(owner, "betas[1]", second, 0.0, 1.0)


def check_real(owner: str, group: int, params: Sequence[Tensor]) -> None:
    """Raises ValueError if a parameter of the group is complex."""
    for i, param in enumerate(params):
        if param.is_complex():
            raise ValueError(
                f"{owner}: param_groups[{group}]['params'][{i}] is {param.dtype}, expected a real dtype: optimize "
                "torch.view_as_real of it, or use torch.optim, which takes complex numbers"
            )


def check_pairs(
    owner: str,
    group: int,
    members: Sequence[Tensor],
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    device: str | None,
) -> None:
    """Raises RuntimeError for a parameter or a gradient that no kernel supports.

    The ops check that too, but only the tensors of one call: the groups before them would have been updated.

    Args:
        owner: the optimizer's name, for the message.
        group: index of the parameter group.
        members: all parameters of the group.
        params: the parameters that have gradients.
        grads: their gradients, in the same order.
        device: the type of device that they must be on; None if any will do.
    """
    index_of = {id(param): i for i, param in enumerate(members)}
    for param, grad in zip(params, grads, strict=True):
        where = f"param_groups[{group}]['params'][{index_of[id(param)]}]"
        if grad.layout != torch.strided:
            raise RuntimeError(
                f"{owner}: the gradient of {where} is sparse ({grad.layout}), expected a dense one: build the layer "
                "with sparse=False, or use torch.optim.SparseAdam for this parameter"
            )
        if device is not None and param.device.type != device:
            raise RuntimeError(
                f"{owner}: {where} is on {param.device}, expected {device}: move the model with .{device}() before "
                "the step, or use an optimizer for that device, such as torch.optim.AdamW(fused=True)"
            )
        if param.dtype not in DTYPES:
            raise RuntimeError(
                f"{owner}: {where} is {param.dtype}, expected torch.float32, torch.bfloat16 or torch.float16: convert "
                "the model with .float(), or use torch.optim, which takes other dtypes"
            )
        if grad.dtype not in DTYPES:
            raise RuntimeError(
                f"{owner}: the gradient of {where} is {grad.dtype}, expected torch.float32, torch.bfloat16 or "
                "torch.float16: convert it with .float()"
            )
        if not _is_dense(param):
            raise RuntimeError(
                f"{owner}: {where} has strides {param.stride()} for shape {tuple(param.shape)}, expected elements "
                "without gaps or overlap: optimize a .contiguous() copy of it"
            )


def check_states(
    owner: str, group: int, members: Sequence[Tensor], params: Sequence[Tensor], states: Sequence[dict[str, Any]]
) -> None:
    """Raises RuntimeError for a state that does not have its parameter's shape. See `check_pairs` for the arguments."""
    for param, state in zip(params, states, strict=True):
        for name, value in state.items():
            if name != "step" and isinstance(value, Tensor) and value.shape != param.shape:
                index = next(i for i, member in enumerate(members) if member is param)
                raise RuntimeError(
                    f"{owner}: the state {name} of param_groups[{group}]['params'][{index}] has shape "
                    f"{tuple(value.shape)}, expected that of the parameter, {tuple(param.shape)}: load the state dict "
                    "of an optimizer of the same model"
                )


def _is_dense(param: Tensor) -> bool:
    """Returns whether the elements fill their memory without gaps or overlap: only then a tensor like it is alike.

    A DTensor is taken for one: its strides are not those of the memory that this process holds.
    """
    if param.is_contiguous() or hasattr(param, "to_local"):
        return True
    return torch.empty_like(param, device="meta").stride() == param.stride()
