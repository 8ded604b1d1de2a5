"""The contract of ops: torch's checks, a float64 reference, awkward shapes, layouts and values, torch.compile."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from opforge.lazy import cached_property

from .contract import Contract, shortened, skip
from .tensors import (
    MARGIN,
    cloned,
    converted,
    difference,
    filled,
    mapped,
    poisoned_memory,
    same,
    surrounded,
    tensors_of,
    transposed,
    with_gaps,
    with_special_values,
)

LAYOUTS = {"with gaps": with_gaps, "transposed": transposed}
REFUSAL = (RuntimeError, TypeError, ValueError)
"""The errors that an op may refuse its arguments with."""


class OpContract(Contract):
    """What every op guarantees. A subclass returns the op, arguments for it, and the exact results.

    The attributes below describe what the op supports.
    """

    device: str = "cpu"
    """Where the arguments are moved to. The tests are skipped if this machine lacks it."""
    dtypes: Sequence[torch.dtype] = (torch.float32,)
    """What `inputs` is called with."""
    shapes: Sequence[tuple[int, ...]] = ((0,), (1,), (7,), (3, 5), (2, 1, 9), (1025,))
    """What `inputs` is called with: by default empty, single, odd, and more than one block."""
    refused_dtypes: Sequence[torch.dtype] = (torch.int64,)
    """If every floating-point argument has one of these dtypes, the op must raise an error."""
    strided: bool = True
    """Whether the op takes tensors of any strides. If not, it may refuse some, and must then change nothing."""
    special_values: bool = True
    """Whether NaN, infinity and -0 have the result that the reference has."""
    differentiable: bool = False
    """Whether the op has gradients: they are compared with those of the reference."""
    compiled: bool = True
    """Whether torch.compile must trace the op without a graph break."""
    backend: str = "aot_eager"
    """The backend of torch.compile; "inductor" also compiles, which takes longer."""
    keywords: Mapping[str, Any] = types.MappingProxyType({})
    """Keyword arguments of each call, of the op and of the reference."""
    outputs: Sequence[str] = ()
    """Names of arguments that the op only writes. They hold NaN before each call."""
    rtol: float | None = None
    atol: float | None = None
    """Tolerances against the reference. By default four units in the last place of the dtype."""
    opcheck_tests: Sequence[str] = (
        "test_schema",
        "test_autograd_registration",
        "test_faketensor",
        "test_aot_dispatch_dynamic",
    )

    def make_op(self) -> Callable[..., Any]:
        """Returns the op: a function of a loaded op, or a custom op of torch. Override it."""
        raise NotImplementedError(f"{type(self).__name__} must override make_op")

    def inputs(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        """Returns arguments for the op on the CPU: tensors, lists of tensors, numbers. Override it."""
        raise NotImplementedError(f"{type(self).__name__} must override inputs")

    def reference(self, *arguments: Any, **keywords: Any) -> Any:
        """Returns what the op returns, then the new value of each argument that it changes. Override it.

        Floating-point arguments are in float64, and so are the results.
        """
        raise NotImplementedError(f"{type(self).__name__} must override reference")

    def setup_method(self) -> None:
        """Skips the test if this machine lacks the device."""
        super().setup_method()
        try:
            is_here = self.device == "cpu" or torch.get_device_module(self.device).is_available()
        except RuntimeError as error:  # a vendor's, whose package for torch is not imported, or not installed
            skip(f"this torch has no device {self.device}: {str(error).splitlines()[0]}")
        if not is_here:
            skip(f"there is no {self.device} device here")

    @cached_property
    def op(self) -> Callable[..., Any]:
        """The op of this test."""
        return self.make_op()

    # the tests

    def test_torch_accepts_schema_fake_kernel_and_autograd(self) -> None:
        for shape in {self.shapes[0], max(self.shapes, key=len)}:
            arguments = self._arguments(shape, self.dtypes[0])
            if self.differentiable:
                arguments = mapped(arguments, _requiring_grad)
            try:
                torch.library.opcheck(self.op, arguments, dict(self.keywords), test_utils=tuple(self.opcheck_tests))  # type: ignore[arg-type]
            except Exception as error:
                reason = "torch.compile and autograd rely on what it checks"
                raise AssertionError(f"torch.library.opcheck fails for shape {shape}: {error} ({reason})") from error

    def test_results_agree_with_float64(self) -> None:
        for dtype in self.dtypes:
            for shape in self.shapes:
                self._compare(self._arguments(shape, dtype), f"for shape {shape} and {dtype}")

    def test_arguments_that_the_schema_does_not_mark_are_left_alone(self) -> None:
        arguments = self._arguments(self.shapes[-1], self.dtypes[0])
        before = cloned(arguments)
        self.op(*arguments, **self.keywords)
        changed = set(self._changed_positions())
        for position, (argument, old) in enumerate(zip(arguments, before, strict=True)):
            if position not in changed:
                is_same = all(map(same, tensors_of(argument), tensors_of(old)))
                assert is_same, (
                    f"the call changed argument {position}, which its schema does not mark as (a!): torch.compile and"
                    " autograd reuse such tensors"
                )

    def test_every_element_is_written(self) -> None:
        for dtype in self.dtypes:
            for shape in self.shapes:
                what = f"for shape {shape} and {dtype}, where new memory holds NaN or the largest integer"
                with poisoned_memory():
                    self._compare(self._arguments(shape, dtype), what)

    def test_nothing_is_read_or_written_outside(self) -> None:
        for dtype in self.dtypes:
            for shape in self.shapes:
                memories: list[Tensor] = []

                def place(tensor: Tensor, memories: list[Tensor] = memories) -> Tensor:
                    view, memory = surrounded(tensor)
                    memories.append(memory)
                    return view

                arguments = mapped(self._arguments(shape, dtype), place)
                self._compare(arguments, f"for shape {shape} and {dtype}, at an unaligned address between NaN")
                for memory in memories:
                    edges = torch.cat([memory[: MARGIN + 1], memory[1 - MARGIN :]])
                    assert same(edges, filled(tuple(edges.shape), edges)), (
                        f"for shape {shape} and {dtype} the op writes outside of a tensor: it damages its neighbours"
                    )

    def test_tensors_of_any_strides_are_read_right_or_refused(self) -> None:
        shape = max((shape for shape in self.shapes if len(shape) > 1 and 0 not in shape), key=len, default=())
        if not shape:
            skip("no shape of `shapes` has two dimensions")
        for dtype in self.dtypes:
            for layout, lay_out in LAYOUTS.items():
                arguments = mapped(self._arguments(shape, dtype), lay_out)
                what = f"for shape {shape} and {dtype}, with tensors {layout}"
                if self.strided or not self._refuses(arguments, what):
                    self._compare(arguments, what)

    def test_nan_and_infinity_have_the_references_result(self) -> None:
        if not self.special_values:
            skip("special_values=False")
        for dtype in self.dtypes:
            arguments = with_special_values(self._arguments(max(self.shapes, key=_elements), dtype))
            self._compare(arguments, f"for {dtype} with NaN, infinities and zeros")

    def test_other_dtypes_are_refused(self) -> None:
        for dtype in self.refused_dtypes:
            arguments = converted(self._arguments(self.shapes[-1], self.dtypes[0]), dtype)
            assert self._refuses(arguments, f"for {dtype}"), (
                f"for {dtype}: expected an error, because memory of another dtype would be read; there was none"
            )

    def test_gradients_agree_with_float64(self) -> None:
        if not self.differentiable:
            skip("differentiable=False")
        for dtype in self.dtypes:
            for shape in self.shapes:
                arguments = mapped(self._arguments(shape, dtype), _requiring_grad)
                exact = mapped(converted(arguments, torch.float64), _requiring_grad)
                results, expected = (
                    tensors_of(self.op(*arguments, **self.keywords)),
                    tensors_of(self.reference(*exact, **self.keywords)),
                )
                torch.autograd.backward(results, [torch.ones_like(tensor) for tensor in results])
                torch.autograd.backward(expected, [torch.ones_like(tensor) for tensor in expected])
                for number, (tensor, double) in enumerate(zip(tensors_of(arguments), tensors_of(exact), strict=True)):
                    if tensor.grad is not None and double.grad is not None:
                        problem = difference(tensor.grad, double.grad, *self._tolerances(tensor.dtype))
                        assert not problem, f"the gradient of tensor {number}, for shape {shape} and {dtype}: {problem}"
                    assert (tensor.grad is None) == (double.grad is None), (
                        f"tensor {number} has the gradient {tensor.grad}, and {double.grad} in the reference"
                    )

    def test_torch_compile_traces_it_as_a_whole(self) -> None:
        if not self.compiled:
            skip("compiled=False")
        op, keywords = self.op, self.keywords
        for dynamic in (False, True):
            torch._dynamo.reset()
            traced = torch.compile(
                lambda *arguments: op(*arguments, **keywords), fullgraph=True, backend=self.backend, dynamic=dynamic
            )
            for shape in (self.shapes[-1], self.shapes[-2]):
                arguments = self._arguments(shape, self.dtypes[0])
                others = cloned(arguments)
                results, expected = (
                    tensors_of((traced(*arguments), arguments)),
                    tensors_of((op(*others, **keywords), others)),
                )
                is_same = len(results) == len(expected) and all(map(same, results, expected))
                assert is_same, (
                    f"torch.compile(dynamic={dynamic}) gives {shortened(results)} for shape {shape}, expected"
                    f" {shortened(expected)}: the fake"
                    " kernel or the schema describes another op"
                )

    # what the tests share

    def _arguments(self, shape: tuple[int, ...], dtype: torch.dtype) -> tuple[Any, ...]:
        arguments = list(mapped(self.inputs(shape, dtype), lambda tensor: tensor.to(self.device)))
        for position, argument in enumerate(self._schema_arguments() if self.outputs else ()):
            if argument.name in self.outputs:
                arguments[position] = mapped(arguments[position], lambda tensor: filled(tuple(tensor.shape), tensor))
        return tuple(arguments)

    def _schema_arguments(self) -> Sequence[Any]:
        overload = getattr(self.op, "_opoverload", self.op)  # of torch.library.custom_op; otherwise an overload
        schema = getattr(overload, "_schema", None)
        return schema.arguments if schema is not None else ()

    def _changed_positions(self) -> list[int]:
        """Returns the positions of the arguments that the op changes, by its schema."""
        arguments = enumerate(self._schema_arguments())
        return [number for number, argument in arguments if argument.alias_info and argument.alias_info.is_write]

    def _tolerances(self, dtype: torch.dtype) -> tuple[float, float]:
        default = 4 * torch.finfo(dtype).eps if dtype.is_floating_point or dtype.is_complex else 0.0
        return (default if self.rtol is None else self.rtol, default if self.atol is None else self.atol)

    def _compare(self, arguments: tuple[Any, ...], what: str) -> None:
        """Calls the op and compares what it returns and what it changes with the reference."""
        expected = tensors_of(self.reference(*converted(arguments, torch.float64), **self.keywords))
        changed = self._changed_positions()
        returned = self.op(*arguments, **self.keywords)
        results = [*tensors_of(returned), *tensors_of([arguments[position] for position in changed])]
        assert len(results) == len(expected), (
            f"{what} there are {len(results)} results, and {len(expected)} of the reference: it returns what the op"
            " returns, then the new value of each argument that the schema marks as (a!)"
        )
        for number, (result, exact) in enumerate(zip(results, expected, strict=True)):
            problem = difference(result, exact, *self._tolerances(result.dtype))
            assert not problem, f"{what} result {number} differs from the reference in float64: {problem}"

    def _refuses(self, arguments: tuple[Any, ...], what: str) -> bool:
        """Returns whether the op refuses a copy of these arguments. Fails if it changes them before it does."""
        copies = mapped(arguments, _clone_with_strides)
        try:
            self.op(*copies, **self.keywords)
        except REFUSAL as error:
            is_same = all(map(same, tensors_of(copies), tensors_of(arguments)))
            assert is_same, f"{what}: it changed its arguments before it raised {error!r}: check all of them first"
            return True
        return False


def _clone_with_strides(tensor: Tensor) -> Tensor:
    copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _requiring_grad(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def _elements(shape: tuple[int, ...]) -> int:
    number = 1
    for size in shape:
        number *= size
    return number
