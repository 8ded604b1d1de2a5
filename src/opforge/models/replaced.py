"""The forward of a layer that has a kernel: it calls the kernel, handles its failures, and compares results."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any

from opforge.errors import KernelScopeError

from .layers import has_backward

if TYPE_CHECKING:
    import torch

log = logging.getLogger("opforge.kernels")
Forward = Callable[..., Any]
PLAIN = (bool, int, float, complex, str, bytes, slice, range, Enum, type, FunctionType, BuiltinFunctionType)
"""Arguments that no call changes."""


class UncopiedError(Exception):
    """An argument of a layer cannot be copied; the text names it."""


class Record:
    """The state of a layer in a scope."""

    def __init__(self, name: str, layer: str, kernel: str = "", reason: str = "") -> None:
        self.name, self.layer, self.kernel, self.reason = name, layer, kernel, reason
        self.reset()

    def reset(self) -> None:
        """Begins to count anew."""
        self.reason = "" if self.kernel else self.reason
        self.originals, self.failed, self.checked = 0, 0, 0
        """Calls that the original answered: for gradients, or after an error; and calls that were compared."""
        self.difference = 0.0
        """The greatest difference from the original in the calls that were compared."""
        self.unchecked = ""
        """Why a call was not compared; empty if there was none."""

    def __repr__(self) -> str:
        return f"<{self}>"

    def __str__(self) -> str:
        """Returns the replacement as one line."""
        if not self.kernel:
            return f"{self.name} ({self.layer}): original: {self.reason}"
        parts = [f"{self.name} ({self.layer}): {self.kernel}"]
        parts += [f"original in {self.originals} calls: {self.reason}"] if self.originals else []
        parts += [f"original after {self.failed} errors: {self.reason}"] if self.failed else []
        parts += [f"{self.checked} calls compared, greatest difference {self.difference:.3g}"] if self.checked else []
        parts += [f"calls not compared: {self.unchecked}"] if self.unchecked else []
        return "; ".join(parts)


class Rules:
    """How a scope uses its kernels."""

    def __init__(self, on_error: str, check: int, bound: float, on_difference: str) -> None:
        self.on_error, self.check, self.bound, self.on_difference = on_error, check, bound, on_difference


def forward_of(layer: type, original: Forward, record: Record, rules: Rules) -> Forward:
    """Returns the method for a module whose class has `original`: it gets the module as its first argument."""
    import torch  # it is imported: a module exists. An import in each call takes as long as the test

    kernel: Forward = layer.forward  # type: ignore[attr-defined]
    is_recorded = torch.is_grad_enabled

    def plain(self: Any, *arguments: Any, **keywords: Any) -> Any:
        try:
            return kernel(self, *arguments, **keywords)
        except Exception as error:
            _name(error, record)
            raise

    def guarded(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if is_recorded() and needs_gradient(self, arguments, keywords):
            record.originals += 1
            record.reason = "it has no backward, and gradients are needed"
            return original(self, *arguments, **keywords)
        try:
            return kernel(self, *arguments, **keywords)
        except Exception as error:
            _name(error, record)
            raise

    def or_original(self: Any, *arguments: Any, **keywords: Any) -> Any:
        versions = _versions(arguments, keywords)
        try:
            return chosen(self, *arguments, **keywords)
        except Exception as error:
            if versions is None or _versions(arguments, keywords) != versions:
                raise  # the original would get what the kernel has changed, or may have changed
            if not record.failed:
                log.warning("%s: %s failed, the original is used: %s", record.name, record.kernel, error)
            record.failed += 1
            record.reason = f"{type(error).__name__}: {error}"
            return original(self, *arguments, **keywords)

    chosen = plain if has_backward(layer) else guarded
    answer = or_original if rules.on_error == "original" else chosen
    return _comparing(original, kernel, answer, record, rules) if rules.check else answer


def _comparing(original: Forward, kernel: Forward, answer: Forward, record: Record, rules: Rules) -> Forward:
    """Returns a method that first compares results of the kernel with the original's, and then is `answer`."""

    def compared(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if record.checked >= rules.check:
            over = rules.on_difference == "original" and record.difference > rules.bound
            return (original if over else answer)(self, *arguments, **keywords)
        try:
            given = [_copies((arguments, keywords)) for _call in (original, kernel)]
        except UncopiedError as error:
            record.unchecked = f"a {error} cannot be copied"
            return answer(self, *arguments, **keywords)
        record.checked += 1
        return _compared(self, arguments, keywords, given, original, answer, record, rules)

    return compared


def _name(error: Exception, record: Record) -> None:
    """Adds the layer and the package to an error, which stays the kernel's own."""
    text = f"in the kernel {record.kernel} of the layer {record.name} ({record.layer})"
    error.add_note(text)


def _tensors(value: Any) -> list[torch.Tensor]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def needs_gradient(module: Any, arguments: Any, keywords: Any) -> bool:
    """Returns whether a call of a module is recorded by autograd while gradients are enabled."""
    return any(tensor.requires_grad for tensor in (*_tensors((arguments, keywords)), *module.parameters()))


def _versions(arguments: Any, keywords: Any) -> list[int] | None:
    """Returns a number for each tensor that rises when it is changed.

    None if something has none: a tensor of the inference mode, or an object such as a cache of keys and values.
    """
    tensors = _tensors((arguments, keywords))
    if any(tensor.is_inference() for tensor in tensors) or not _is_seen((arguments, keywords)):
        return None
    return [tensor._version for tensor in tensors]


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, PLAIN) or type(value).__module__ == "torch"  # such as torch.dtype


def _is_seen(value: Any) -> bool:
    """Returns whether arguments are tensors, immutable values, and lists, tuples and dictionaries of these."""
    import torch

    if isinstance(value, (dict, list, tuple)):
        return all(map(_is_seen, value.values() if isinstance(value, dict) else value))
    return isinstance(value, torch.Tensor) or _is_plain(value)


def _copies(value: Any) -> Any:
    """Returns a copy of arguments, for a call that leaves the real ones alone. Raises UncopiedError."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if type(value) is dict:
        return {name: _copies(part) for name, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_copies, value))
    if _is_plain(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:  # of any class: also a tensor in it that autograd has made
        raise UncopiedError(type(value).__qualname__) from error


def _compared(
    module: Any,
    arguments: Any,
    keywords: Any,
    given: list[Any],
    original: Forward,
    kernel: Forward,
    record: Record,
    rules: Rules,
) -> Any:
    """Returns the kernel's result, or the original's if they differ by more than the bound and that is requested.

    Both run on `given`, copies of the arguments, with the same random numbers and buffers, which stay as they are.
    Gradients of the inputs and parameters are compared too, where they are needed. Raises KernelScopeError.
    """
    with _unchanged(module, given[0]) as buffers:
        expected = [*_run(original, module, *given[0]), *buffers()]
    before = [tensor.detach().clone() for tensor in _tensors(given[1])]
    with _unchanged(module, given[1]) as buffers:
        actual = [*_run(kernel, module, *given[1]), *buffers()]
    if _difference(before, _tensors(given[1])):
        problem = f"{record.kernel} changed the inputs of the layer {record.name}"
        raise KernelScopeError(record.layer, problem, "Correct the kernel, or leave it out of the mapping")
    difference = _difference(expected, actual)
    record.difference = max(record.difference, difference)
    if difference <= rules.bound:
        return kernel(module, *arguments, **keywords)
    text = f"{record.kernel} differs from the original by {difference:.3g} in the layer {record.name}"
    if rules.on_difference == "error":
        raise KernelScopeError(
            record.layer, f"{text}, more than {rules.bound:.3g}", "Correct the kernel, or raise bound="
        )
    log.warning("%s: the original is used", text)
    record.reason = f"it differs by {difference:.3g}, more than {rules.bound:.3g}"
    return original(module, *arguments, **keywords)


@contextmanager
def _unchanged(module: Any, given: Any) -> Iterator[Callable[[], list[torch.Tensor]]]:
    """Leaves random numbers and a module's buffers as they are; gives a function that returns copies of the buffers."""
    import torch

    devices = {tensor.device for tensor in (*_tensors(given), *module.parameters())}
    kind = next(
        (each.type for each in devices if hasattr(getattr(torch, each.type, None), "get_rng_state_all")), "cuda"
    )
    held = [(part._buffers, dict(part._buffers)) for part in module.modules() if part._buffers]
    copies = [(buffer, buffer.detach().clone()) for buffer in module.buffers()]
    with torch.random.fork_rng([each.index or 0 for each in devices if each.type == kind], device_type=kind):
        try:
            yield lambda: [buffer.detach().clone() for buffer in module.buffers()]
        finally:
            for buffers, values in held:
                buffers.update(values)
            with torch.no_grad():
                for buffer, value in copies:
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


def _run(forward: Forward, module: Any, arguments: Any, keywords: Any) -> list[Any]:
    """Returns the tensors that a call gives, and the gradients of its inputs and of the module's parameters."""
    import torch

    outputs = _tensors((forward(module, *arguments, **keywords),))
    leaves = [*_tensors((arguments, keywords)), *module.parameters()]
    leaves = [leaf for leaf in leaves if leaf.requires_grad]
    roots = [output for output in outputs if output.requires_grad]
    if not (torch.is_grad_enabled() and leaves and roots):
        return [output.detach() for output in outputs]
    ones = [torch.ones_like(root) for root in roots]
    gradients = torch.autograd.grad(roots, leaves, ones, allow_unused=True)
    zeros = [torch.zeros_like(leaf) if part is None else part for leaf, part in zip(leaves, gradients, strict=True)]
    return [*(output.detach() for output in outputs), *zeros]


def _difference(expected: list[torch.Tensor], actual: list[torch.Tensor]) -> float:
    """Returns the greatest difference of two lists of tensors; infinite if their shapes or dtypes differ."""
    import torch

    if [(part.shape, part.dtype) for part in expected] != [(part.shape, part.dtype) for part in actual]:
        return float("inf")
    greatest = 0.0
    for one, other in zip(expected, actual, strict=True):
        if not one.numel():
            continue
        one, other = (
            torch.view_as_real(part) if part.is_complex() else part for part in (one.detach(), other.detach())
        )
        if not torch.equal(one.isnan(), other.isnan()):
            return float("inf")
        difference = (one.double() - other.double()).abs().nan_to_num(0.0, float("inf"))
        difference[one == other] = 0.0  # the same infinities
        greatest = max(greatest, float(difference.max()))
    return greatest
