"""Compares the results of a case's function with its reference: for the contract, the check and the tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opforge.ops.cases.case import Case, Place

from .tensors import converted, difference, filled, mapped, tensors_of
from .tolerance import bounds, units_of

PERTURBATIONS = 8
"""How often the inputs are changed by their rounding error, to see how far that changes the results. With 3 some
elements seem to hardly change at all, and the largest error is one of theirs."""
OF_REFERENCE = 64
"""The error of the reference in float64, in units of its largest result's rounding."""


class Error(NamedTuple):
    """The largest error of a result, and that of torch's operators in the same dtype (eager).

    The unit of an element is half a unit in its last place, and how far the exact result changes if each input is
    changed by its rounding error: the conditioning. A function that computes each step without error has an error of 1
    at most.
    """

    ours: float
    eager: float


def schema_arguments(function: Callable[..., Any]) -> Sequence[Any]:
    """Returns the arguments of a function's schema. Empty if the function is not an op of torch."""
    overload = getattr(function, "_opoverload", function)  # of torch.library.custom_op; otherwise an overload
    schema = getattr(overload, "_schema", None)
    return schema.arguments if schema is not None else ()


def changed_positions(function: Callable[..., Any]) -> list[int]:
    """Returns the positions of the arguments that a function changes, by its schema."""
    arguments = enumerate(schema_arguments(function))
    return [number for number, argument in arguments if argument.alias_info and argument.alias_info.is_write]


def output_positions(case: Case, function: Callable[..., Any]) -> frozenset[int]:
    """Returns the positions of the arguments that a function only writes, by the case's `outputs`.

    Raises ValueError for a name that its schema does not have.
    """
    names = [argument.name for argument in schema_arguments(function)]
    if wrong := [output for output in case.outputs if isinstance(output, str) and output not in names]:
        expected = f"expected names of its schema: {', '.join(names)}" if names else "it has no schema: give positions"
        raise ValueError(f"the case {case.name!r} has {wrong[0]!r} in `outputs`; {expected}")
    return frozenset(names.index(output) if isinstance(output, str) else output for output in case.outputs)


def with_poisoned_outputs(case: Case, function: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Returns arguments of which those that the function only writes hold NaN, or the largest integer."""
    poisoned = list(arguments)
    for position in output_positions(case, function):
        poisoned[position] = mapped(poisoned[position], lambda tensor: filled(tuple(tensor.shape), tensor))
    return tuple(poisoned)


def make_arguments(
    case: Case, function: Callable[..., Any], shape: tuple[int, ...], dtype: str, device: str
) -> tuple[Any, ...]:
    """Returns arguments of a case for a shape; those that the function only writes hold NaN."""
    place = Place(torch.Size(shape).numel(), dtype, device, shape=shape)
    arguments = tuple(mapped(case.inputs(place), lambda tensor: tensor.to(device)))
    return with_poisoned_outputs(case, function, arguments)


def results(function: Callable[..., Any], arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> list[Tensor]:
    """Calls a function. Returns its results, numbers as tensors too, then the arguments that it changes."""
    returned = with_numbers(function(*arguments, **keywords))
    return [*tensors_of(returned), *tensors_of([arguments[position] for position in changed_positions(function)])]


def with_numbers(value: Any, dtype: torch.dtype = torch.float32) -> Any:
    """Returns a result in which each number is a tensor, a float one of this dtype."""
    if isinstance(value, (bool, int, float, complex)):
        return torch.tensor(value, dtype=dtype if isinstance(value, float) else None)
    if isinstance(value, (list, tuple)):
        return [with_numbers(part, dtype) for part in value]
    if isinstance(value, Mapping):
        return {name: with_numbers(part, dtype) for name, part in value.items()}
    return value


def expected(case: Case, arguments: tuple[Any, ...], dtype: torch.dtype | None = torch.float64) -> list[Tensor]:
    """Returns the results of a case's reference, which computes in a dtype; None for that of the arguments."""
    assert case.reference is not None
    own = converted(arguments, dtype) if dtype else mapped(arguments, lambda tensor: tensor.detach().clone())
    return tensors_of(with_numbers(case.reference(*own, **case.keywords), dtype or torch.float32))


def problem(case: Case, actual: Sequence[Tensor], arguments: tuple[Any, ...]) -> str:
    """Returns how results differ from the reference, which gets the arguments as they were. Empty if they agree."""
    exact = expected(case, arguments)
    if len(actual) != len(exact):
        return (
            f"there are {len(actual)} results, and {len(exact)} of the reference: it returns what the op returns, then"
            " the new value of each argument that the schema marks as (a!)"
        )
    if not exact:
        return (
            "there is no result, neither of the function nor of the reference, so nothing is compared: return tensors"
            " or numbers, or leave `reference` out"
        )
    allowed = _allowed(case, arguments, len(exact))
    for number, (result, value, error) in enumerate(zip(actual, exact, allowed, strict=True)):
        if text := _difference(case, result, value, error):
            return f"result {number} differs from the reference in float64: {text}"
    return ""


def _allowed(case: Case, arguments: tuple[Any, ...], count: int) -> Sequence[Tensor | None]:
    """Returns the errors that a case's own function allows for each result. None where it has no such function."""
    if not callable(case.tolerance):
        return [None] * count
    return tensors_of(case.tolerance(*converted(arguments, torch.float64), **case.keywords))


def _difference(case: Case, result: Tensor, exact: Tensor, allowed: Tensor | None) -> str:
    if not (result.is_floating_point() or result.is_complex()):
        if not case.integers or result.shape != exact.shape:
            return difference(result, exact, 0.0, 0.0)
        far = (result.double() - exact.double()).abs() > case.integers
        number = f"{int(far.sum())} of {far.numel()} integers differ by more than {case.integers}"
        return number if bool(far.any()) else ""
    if allowed is None:
        return difference(result, exact, *bounds(case, result.dtype, exact))
    info = torch.finfo(result.dtype)
    units, least = units_of(result.dtype) * info.eps, info.smallest_normal * info.eps
    if result.shape != exact.shape:
        return difference(result, exact, 0.0, 0.0)
    # One tensor of errors: as an absolute tolerance, of what is scaled to it.
    scale = allowed.to(result.device) + units * exact.abs() + least
    off = (result.double() - exact).abs() / scale.clamp_min(torch.finfo(torch.float64).tiny)
    far = ~(off <= 1) & ~(result.isnan() & exact.isnan())
    if not bool(far.any()):
        return ""
    index = tuple(far.nonzero()[0].tolist())
    value = f"{result[index].item()}, expected {exact[index].item()} within {scale[index].item():.3g}"
    return f"{int(far.sum())} of {far.numel()} elements differ; {list(index)} is {value}"


def error(case: Case, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Error:
    """Returns the largest error of a case's function for these arguments, beside eager's."""
    exact, eager = expected(case, arguments), expected(case, arguments, None)
    actual = results(function, mapped(arguments, lambda tensor: tensor.detach().clone()), case.keywords)
    inexact = [tensor.dtype for tensor in tensors_of(arguments) if tensor.is_floating_point() or tensor.is_complex()]
    rounding = max((torch.finfo(dtype).eps / 2 for dtype in inexact), default=0.0)
    far = [torch.zeros_like(value).abs() for value in exact]
    random = torch.Generator().manual_seed(0)
    for _ in range(PERTURBATIONS):
        moved = [value.to(exact[0].device) for value in _moved(case, arguments, rounding, random)]
        far = [torch.maximum(most, (value - own).abs()) for most, value, own in zip(far, moved, exact, strict=True)]
    ours = [_units(result, value, most) for result, value, most in zip(actual, exact, far, strict=True)]
    theirs = [
        _units(result, value, most, own.dtype)
        for result, value, most, own in zip(eager, exact, far, actual, strict=True)
    ]
    return Error(max(ours, default=0.0), max(theirs, default=0.0))


def largest_error(case: Case, loaded: Any, device: str) -> Error:
    """Returns the error of a case for its last shape and its first dtype."""
    function = case.bound(loaded)
    return error(case, function, make_arguments(case, function, case.shapes[-1], case.dtypes[0], device))


def _moved(case: Case, arguments: tuple[Any, ...], rounding: float, random: torch.Generator) -> list[Tensor]:
    """Returns the exact results for inputs that are changed by their rounding errors."""
    assert case.reference is not None

    def move(tensor: Tensor) -> Tensor:
        if not (tensor.is_floating_point() or tensor.is_complex()):
            return tensor
        share = 2 * torch.rand(tensor.shape, generator=random, dtype=torch.float64) - 1
        return tensor * (1 + rounding * share.to(tensor.device))

    moved = case.reference(*mapped(converted(arguments, torch.float64), move), **case.keywords)
    return tensors_of(with_numbers(moved, torch.float64))


def _units(result: Tensor, exact: Tensor, far: Tensor, dtype: torch.dtype | None = None) -> float:
    """Returns the largest error of a floating-point result in units of what its rounding and its inputs' cause.

    Left out is what is 0 but for the reference's own rounding, whatever the inputs' is: it has no such unit. The
    gradient of a softmax over one number is the difference of two equal sums, which an op may add in another order.
    """
    dtype = dtype or result.dtype
    if not (dtype.is_floating_point or dtype.is_complex) or not result.numel() or result.shape != exact.shape:
        return 0.0
    info = torch.finfo(dtype)
    unit = info.eps / 2 * exact.abs().clamp_min(info.tiny) + far
    known = exact.abs().maximum(far) > OF_REFERENCE * torch.finfo(exact.dtype).eps * exact.abs().max()
    off = ((result.to(dtype).to(exact.dtype) - exact).abs() / unit)[known]
    return float(off[off.isfinite()].max()) if bool(off.isfinite().any()) else 0.0
