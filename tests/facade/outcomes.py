"""Outcomes of calls that can be compared bit for bit: tensors, values, and errors with their types and texts."""

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

Outcome = tuple[Any, ...]


def of_value(value: object) -> Outcome:
    """Returns what describes a value in full. A tensor's bits count, and its NaNs as they are."""
    if isinstance(value, torch.Tensor):
        if type(inner := getattr(value, "inner", None)) is torch.Tensor:  # a wrapper of settings.py
            return (type(value).__name__, of_value(inner))
        plain = value.detach()
        layout = (str(plain.dtype), tuple(plain.shape), tuple(plain.stride()), str(plain.device), value.requires_grad)
        if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
            layout = (type(value).__name__, *layout)
        if plain.is_sparse or plain.device.type == "meta" or isinstance(value, FakeTensor):
            return ("tensor", *layout)
        flat = plain.resolve_conj().resolve_neg().contiguous().flatten()
        bits = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
        return ("tensor", *layout, hashlib.sha256(bits).hexdigest()[:24], str(flat[:6].tolist())[:120])
    if isinstance(value, list | tuple):
        return (type(value).__name__, *map(of_value, value))
    if isinstance(value, dict):
        return ("dict", *((of_value(key), of_value(item)) for key, item in sorted(value.items(), key=repr)))
    return (type(value).__name__, repr(value))


def of_call(function: Callable[[], object]) -> Outcome:
    """Returns the outcome of a call, an exception's type and text included."""
    try:
        return ("value", of_value(function()))
    except Exception as error:
        return ("error", type(error).__name__, str(error))


def of_gradients(function: Callable[..., object], *inputs: torch.Tensor) -> Outcome:
    """Returns the outcome of a function and of the gradients of its first differentiable result."""

    def run() -> object:
        leaves = [tensor.clone().requires_grad_() for tensor in inputs]
        result = function(*leaves)
        first = next(part for part in (result if isinstance(result, list | tuple) else (result,)) if part.requires_grad)
        weight = torch.linspace(0.5, 1.5, first.numel(), dtype=torch.double).to(first.dtype).reshape(first.shape)
        grads = torch.autograd.grad((first * weight).sum(), leaves, allow_unused=True)
        return result, [grad if grad is not None else "none" for grad in grads]

    return of_call(run)
