"""What a function of a library can be called in beside plain tensors: modes, transforms and kinds of tensors.

Each setting calls a function with tensors that it changes to its kind, and returns the function's result and a record
of what the setting itself saw. Both are compared between a library on the facade and one on torch's own headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

Tensors = Sequence[torch.Tensor | None]
Function = Callable[[list[Any]], Any]
Result = tuple[Any, list[str]]


class Dispatched(TorchDispatchMode):
    """Records the operators that reach a mode, and calls them."""

    def __init__(self) -> None:
        """Begins with no operator."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records and calls one operator."""
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


class Called(TorchFunctionMode):
    """Records the functions of torch that Python calls, and calls them."""

    def __init__(self) -> None:
        """Begins with no function."""
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Records and calls one function."""
        self.seen.append(getattr(function, "__name__", str(function)))
        return function(*args, **(kwargs or {}))


class Wrapper(torch.Tensor):
    """A subclass with a tensor inside, of which every operator is seen."""

    inner: torch.Tensor
    seen: list[str] = []

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapper:
        """Makes a tensor of the same layout without memory of its own."""
        made: Wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=inner.device,
        )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls an operator with the tensors inside. One that changes its argument returns that argument."""
        cls.seen.append(str(function))
        plain, plain_kwargs = tree_map_only(Wrapper, lambda part: part.inner, (args, kwargs or {}))
        result = function(*plain, **plain_kwargs)
        outer = {id(part.inner): part for part in tree_flatten((args, kwargs))[0] if isinstance(part, Wrapper)}
        return tree_map_only(torch.Tensor, lambda part: outer[id(part)] if id(part) in outer else cls(part), result)


class Subclass(torch.Tensor):
    """A subclass in Python alone, as most users write one."""


def _each(tensors: Tensors, change: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    return [None if part is None else change(part) for part in tensors]


def plain(function: Function, tensors: Tensors) -> Result:
    """Calls the function as it is."""
    return function(list(tensors)), []


def gradients(function: Function, tensors: Tensors) -> Result:
    """Calls the function with leaves, and asks for their gradients."""
    given = _each(
        tensors,
        lambda part: part.clone().requires_grad_() if part.is_floating_point() or part.is_complex() else part,
    )
    result = function(given)
    roots = [
        part for part in tree_flatten(result)[0] if isinstance(part, torch.Tensor) and part.grad_fn and part.numel()
    ]
    leaves = [part for part in given if part is not None and part.requires_grad and part.is_leaf]
    if not roots or not leaves:
        return result, []
    weights = [torch.linspace(0.5, 1.5, root.numel()).to(root.dtype).reshape(root.shape) for root in roots]
    return (result, torch.autograd.grad(roots, leaves, weights, allow_unused=True)), []


def dispatch_mode(function: Function, tensors: Tensors) -> Result:
    """Calls the function under a mode that sees every operator."""
    with Dispatched() as mode:
        result = function(list(tensors))
    return result, mode.seen


def function_mode(function: Function, tensors: Tensors) -> Result:
    """Calls the function under a mode that sees Python's calls of torch: those of a C++ function are none."""
    with Called() as mode:
        result = function(list(tensors))
    return result, mode.seen


def wrapper(function: Function, tensors: Tensors) -> Result:
    """Calls the function with tensors that have another tensor inside."""
    given = _each(tensors, Wrapper)
    Wrapper.seen.clear()
    return function(given), list(Wrapper.seen)


def subclass(function: Function, tensors: Tensors) -> Result:
    """Calls the function with tensors of a class of Python's."""
    return function(_each(tensors, lambda part: part.as_subclass(Subclass))), []


def fake(function: Function, tensors: Tensors) -> Result:
    """Calls the function with tensors that have no memory, as torch.compile does."""
    with FakeTensorMode() as mode:
        return function(_each(tensors, mode.from_tensor)), []


def meta(function: Function, tensors: Tensors) -> Result:
    """Calls the function with tensors of the device `meta`."""
    return function(_each(tensors, lambda part: part.to("meta"))), []


def autocast(function: Function, tensors: Tensors) -> Result:
    """Calls the function where torch chooses bfloat16 by itself."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return function(list(tensors)), []


def inference(function: Function, tensors: Tensors) -> Result:
    """Calls the function in inference mode, with tensors that were made outside of it."""
    with torch.inference_mode():
        return function(list(tensors)), []


def inference_tensors(function: Function, tensors: Tensors) -> Result:
    """Calls the function outside of inference mode, with tensors that were made in it."""
    with torch.inference_mode():
        given = _each(tensors, torch.clone)
    return function(given), []


def double_by_default(function: Function, tensors: Tensors) -> Result:
    """Calls the function where numbers become float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return function(list(tensors)), []
    finally:
        torch.set_default_dtype(before)


def vmap(function: Function, tensors: Tensors) -> Result:
    """Calls the function for two tensors at once, by torch.vmap."""
    others: list[Any] = []

    def inner(*given: Any) -> Any:
        found = iter(given)
        leaves, spec = tree_flatten(function([None if part is None else next(found) for part in tensors]))
        others.append(tree_unflatten([None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], spec))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor))

    stacked = [torch.stack([part, part.flip(0) if part.dim() else part]) for part in tensors if part is not None]
    return (torch.vmap(inner, randomness="same")(*stacked), others), []


def undefined(function: Function, tensors: Tensors) -> Result:
    """Calls the function with None in the place of its last tensor."""
    return function([*tensors[:-1], None]), []


SETTINGS: dict[str, Callable[[Function, Tensors], Result]] = {
    "plain": plain,
    "gradients": gradients,
    "dispatch mode": dispatch_mode,
    "function mode": function_mode,
    "wrapper": wrapper,
    "subclass": subclass,
    "fake": fake,
    "meta": meta,
    "autocast": autocast,
    "inference": inference,
    "inference tensors": inference_tensors,
    "float64 by default": double_by_default,
    "vmap": vmap,
    "undefined": undefined,
}
