"""The contract of ops: the statements of each case, tested for awkward shapes, layouts, values, threads and batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from opforge.foundation.lazy import cached_property
from opforge.ops.cases import Case, Promise, cases_of

from . import comparison, tolerance
from .contract import Contract, shortened, skip
from .tensors import (
    MARGIN,
    as_integers,
    cloned,
    converted,
    difference,
    filled,
    mapped,
    poisoned_memory,
    same,
    same_bytes,
    same_signs_of_zeros,
    surrounded,
    tensors_of,
    transposed,
    with_gaps,
    with_one,
    with_payloads,
    with_special_values,
    with_zeros,
)

LAYOUTS = {"with gaps": with_gaps, "transposed": transposed}
OFFSETS = (1, 2, 3, 5, 8)
"""Elements before a tensor in its storage."""
THREADS = (1, 2, 3, 5)
SEEDS = 3
"""How often special values are drawn."""
FEW_ROWS = 16
"""So many rows are also computed one by one."""
REFUSAL = (RuntimeError, TypeError, ValueError)
"""The errors that an op may refuse its arguments with."""
FEWEST_UNITS = 4.0
"""The error that no promise forbids, in units of the op's conditioning: eager's may be 0."""


class Tried(NamedTuple):
    """A case, with its function, for a shape and a dtype."""

    case: Case
    function: Callable[..., Any]
    shape: tuple[int, ...]
    dtype: str
    device: str

    def __str__(self) -> str:
        """Returns the prefix of the reasons of a failure."""
        return f"{self.case.name}, for shape {self.shape} and {self.dtype}"

    def arguments(self) -> tuple[Any, ...]:
        """Returns new arguments, the same each time."""
        return comparison.make_arguments(self.case, self.function, self.shape, self.dtype, self.device)

    def with_inputs(self, change: Callable[[Any], Any]) -> tuple[Any, ...]:
        """Returns new arguments of which those are changed that the function reads: its outputs hold NaN as before."""
        arguments = self.arguments()
        outputs = comparison.output_positions(self.case, self.function)
        read = change([argument for position, argument in enumerate(arguments) if position not in outputs])
        left = iter(read)
        return tuple(value if position in outputs else next(left) for position, value in enumerate(arguments))

    def floating_inputs(self) -> int:
        """Returns how many floating-point tensors the function reads."""
        outputs = comparison.output_positions(self.case, self.function)
        read = [argument for position, argument in enumerate(self.arguments()) if position not in outputs]
        return sum(tensor.is_floating_point() for tensor in tensors_of(read))

    def with_infinities(self) -> Iterator[tuple[tuple[Any, ...], str]]:
        """Yields arguments with special values, and their description: drawn ones, and one infinity in each tensor."""
        for seed in range(SEEDS):
            yield (
                self.with_inputs(partial(with_special_values, seed=seed)),
                " with NaN, infinities, zeros and denormal numbers",
            )
        for number in range(self.floating_inputs()):
            for special in (math.inf, -math.inf):
                what = f" with one {special} in the floating-point tensor {number}"
                yield self.with_inputs(partial(with_one, number=number, special=special)), what

    def results(self, arguments: tuple[Any, ...]) -> list[Tensor]:
        """Calls the function, which may change the arguments. Returns its results, then the changed arguments."""
        return comparison.results(self.function, arguments, self.case.keywords)

    def compare(self, arguments: tuple[Any, ...], what: str = "") -> None:
        """Calls the function and compares its results with those of the reference."""
        before = cloned(arguments)
        problem = comparison.problem(self.case, self.results(arguments), before)
        assert not problem, f"{self}{what}: {problem}"


class OpContract(Contract):
    """The guarantees of every op, and the promises of this op's cases, as tests.

    A subclass names the op's builder, whose cases are tried; or cases whose functions need none.
    """

    builder: Any = None
    """The class of a builder. Its `cases` are tried."""
    cases: Sequence[Case] = ()
    """The cases; by default the builder's."""
    device: str = "cpu"
    """Where the arguments are moved to. The tests are skipped if this machine lacks it."""
    short: bool = False
    """Whether few shapes and dtypes are tried, as `opforge check` does."""

    SHORT_SHAPES, SHORT_DTYPES = 3, ("float32", "bfloat16")

    @classmethod
    def of(cls, cases: Sequence[Case], loaded: Any, device: str) -> type[OpContract]:
        """Returns the short contract for the cases of an op that was loaded for a device."""
        attributes = {"cases": tuple(cases), "loaded": loaded, "device": device, "short": True}
        return type("OpContract", (cls,), attributes)

    @classmethod
    def names(cls) -> list[str]:
        """Returns the names of the tests; of the short contract without those that take long."""
        return [name for name in super().names() if not (cls.short and name in LONG)]

    @cached_property
    def loaded(self) -> Any:
        """The loaded op, the argument of a case's `bound`. None without a builder."""
        return self.builder().load() if self.builder else None

    def setup_method(self) -> None:
        """Skips the test if this machine lacks the device."""
        super().setup_method()
        try:
            is_here = self.device == "cpu" or torch.get_device_module(self.device).is_available()
        except RuntimeError as error:  # a vendor's, whose package for torch is not imported, or not installed
            skip(f"this torch has no device {self.device}: {str(error).splitlines()[0]}")
        if not is_here:
            skip(f"there is no {self.device} device here")

    # the tests

    def test_torch_accepts_schema_fake_kernel_and_autograd(self) -> None:
        for case, function in self._ops():
            for shape in {case.shapes[0], max(case.shapes, key=len)}:
                arguments = self._tried(case, function, shape).arguments()
                if case.differentiable:
                    arguments = mapped(arguments, _requiring_grad)
                try:
                    torch.library.opcheck(function, arguments, dict(case.keywords), test_utils=tuple(case.opcheck))  # type: ignore[arg-type]
                except Exception as error:
                    reason = "torch.compile and autograd rely on what it checks"
                    raise AssertionError(
                        f"{case.name}: torch.library.opcheck fails for shape {shape}: {error} ({reason})"
                    ) from error

    def test_results_agree_with_float64(self) -> None:
        for tried in self._every():
            tried.compare(tried.arguments())

    def test_what_no_reference_says(self) -> None:
        checks = [(case, name, check) for case in self._cases for name, check in case.checks.items()]
        if not checks:
            skip("no case has `checks`")
        for case, name, check in checks:
            try:
                check(self.loaded, self.device)
            except AssertionError as error:
                raise AssertionError(f"{case.name}, {name}: {error}") from error

    def test_arguments_that_the_schema_does_not_mark_are_left_alone(self) -> None:
        for tried in self._largest():
            arguments = tried.arguments()
            before = cloned(arguments)
            tried.results(arguments)
            changed = {*comparison.changed_positions(tried.function), *tried.case.changed}
            if not comparison.schema_arguments(tried.function):
                changed |= comparison.output_positions(tried.case, tried.function)
            for position, (argument, old) in enumerate(zip(arguments, before, strict=True)):
                if position not in changed:
                    is_same = all(map(same, tensors_of(argument), tensors_of(old)))
                    assert is_same, (
                        f"{tried.case.name}: the call changed argument {position}, which its schema does not mark as"
                        " (a!): torch.compile and autograd reuse such tensors"
                    )

    def test_a_tensor_that_is_copied_on_write_is_copied_before_it_is_written(self) -> None:
        if self.device != "cpu":
            skip("an op takes its addresses in the same way on each device")
        for tried in self._largest():
            sources = tried.arguments()
            before = cloned(sources)
            tried.compare(mapped(sources, torch._lazy_clone), ", with tensors that are copied on write")
            for position, (source, old) in enumerate(zip(sources, before, strict=True)):
                assert all(map(same, tensors_of(source), tensors_of(old))), (
                    f"{tried}: the call wrote to another tensor, which shares its memory with argument {position} until"
                    " one of them is written: take const_data_ptr() of what is read, and mutable_data_ptr() of what is"
                    " written"
                )

    def test_every_element_is_written(self) -> None:
        for tried in self._every():
            with poisoned_memory():
                tried.compare(tried.arguments(), ", where new memory holds NaN or the largest integer")

    def test_nothing_is_read_or_written_outside(self) -> None:
        for tried in self._every():
            memories: list[Tensor] = []

            def place(tensor: Tensor, memories: list[Tensor] = memories) -> Tensor:
                view, memory = surrounded(tensor)
                memories.append(memory)
                return view

            tried.compare(mapped(tried.arguments(), place), ", at an unaligned address between NaN")
            for memory in memories:
                edges = torch.cat([memory[: MARGIN + 1], memory[1 - MARGIN :]])
                assert same(edges, filled(tuple(edges.shape), edges)), (
                    f"{tried}: the op writes outside of a tensor: it damages its neighbours"
                )

    def test_tensors_of_any_strides_are_read_right_or_refused(self) -> None:
        some = False
        for case, function in self._compared():
            shape = max((shape for shape in case.shapes if len(shape) > 1 and 0 not in shape), key=len, default=())
            for dtype in self._dtypes(case) if shape else ():
                some, tried = True, self._tried(case, function, shape, dtype)
                for layout, lay_out in LAYOUTS.items():
                    arguments = mapped(tried.arguments(), lay_out)
                    what = f", with tensors {layout}"
                    if case.strided or not self._refuses(tried, arguments, what):
                        tried.compare(arguments, what)
        if not some:
            skip("no shape of `shapes` has two dimensions")

    def test_nan_and_infinity_have_the_references_result(self) -> None:
        for tried in self._promising(Promise.INFINITIES):
            is_some_finite = False
            for arguments, what in tried.with_infinities():
                tried.compare(arguments, what)
                is_some_finite = is_some_finite or any(
                    bool(value.isfinite().any()) for value in comparison.expected(tried.case, arguments)
                )
            assert is_some_finite, (
                f"{tried}, with infinities: the reference has no finite result, so nothing shows what the op makes of"
                " them: give `shapes` more rows, or leave Promise.INFINITIES out"
            )

    def test_a_nan_reaches_what_it_reaches_in_the_reference(self) -> None:
        for tried in self._of_each(self._with_references()):
            # Without the promise it must end all the same, and without an error.
            promised = Promise.NAN in tried.case.promises
            for number in range(tried.floating_inputs()):
                arguments = tried.with_inputs(partial(with_one, number=number, special=math.nan))
                if promised:
                    tried.compare(arguments, f" with one NaN in the floating-point tensor {number}")
                else:
                    tried.results(arguments)

    def test_zeros_have_the_references_sign(self) -> None:
        for tried in self._promising(Promise.ZEROS):
            arguments = tried.with_inputs(with_zeros)
            exact = comparison.expected(tried.case, arguments)
            for number, (result, value) in enumerate(zip(tried.results(arguments), exact, strict=True)):
                problem = same_signs_of_zeros(result, value)
                assert not problem, f"{tried}: result {number}: {problem}; it promises the signs of zeros"

    def test_nan_payloads_are_those_of_the_reference(self) -> None:
        for tried in self._promising(Promise.PAYLOADS):
            arguments = tried.with_inputs(with_payloads)
            # As integers: torch's own copies change the bits of a NaN in bfloat16.
            wanted = comparison.expected(tried.case, mapped(arguments, as_integers), None)
            for number, (result, value) in enumerate(zip(tried.results(arguments), wanted, strict=True)):
                assert same_bytes(as_integers(result), value), (
                    f"{tried}: result {number} has a NaN with other bits than in the reference; it promises the bits"
                )

    def test_repeated_calls_return_the_same_bytes(self) -> None:
        for tried in self._promising(Promise.REPEATS, larger=True):
            first = tried.results(tried.arguments())
            for _ in range(3):
                self._same(tried, first, tried.results(tried.arguments()), "the next call")

    def test_any_number_of_threads_gives_the_same_bytes(self) -> None:
        for tried in self._promising(Promise.THREADS, larger=True):
            tried.compare(tried.arguments(), "")
            first = tried.results(tried.arguments())
            for number in THREADS:
                with _threads(number):
                    self._same(tried, first, tried.results(tried.arguments()), f"with {number} threads a call")

    def test_a_row_has_the_same_bytes_in_any_batch(self) -> None:
        for tried in self._promising(Promise.BATCH, every=True):
            count = self._rows(tried.case, tried.arguments())
            whole = tried.results(tried.arguments())
            few = {1, 2} if count <= FEW_ROWS else {count // 7}
            for length in (few | {count // 2, count - 1}) - {0, -1, count}:
                parts = [
                    tried.results(self._part(tried.case, tried.arguments(), start, min(length, count - start)))
                    for start in range(0, count, length)
                ]
                joined = [
                    torch.cat(pieces, dimension)
                    for pieces, dimension in zip(zip(*parts, strict=True), self._row_dimensions(tried), strict=True)
                ]
                self._same(tried, whole, joined, f"in parts of {length} of {count} rows a call")

    def test_any_alignment_gives_the_same_bytes(self) -> None:
        for tried in self._promising(Promise.ALIGNMENT):
            first = tried.results(tried.arguments())
            for offset in OFFSETS:
                moved = mapped(tried.arguments(), partial(_moved, offset))
                self._same(tried, first, tried.results(moved), f"{offset} elements later in their storage a call")

    def test_errors_are_not_far_above_eagers(self) -> None:
        for tried in self._promising(Promise.ACCURACY, every=True):
            error = comparison.error(tried.case, tried.function, tried.arguments())
            most = max(FEWEST_UNITS, tried.case.accuracy * error.eager)
            assert error.ours <= most, (
                f"{tried}: the error is {error.ours:.3g} units of the op's conditioning, and eager's {error.eager:.3g}:"
                f" expected {most:.3g} at most"
            )

    def test_other_dtypes_are_refused(self) -> None:
        if not any(case.refused_dtypes for case, _function in self._with_references()):
            skip("no case has `refused_dtypes`")
        for tried in self._largest():
            for name in tried.case.refused_dtypes:
                arguments = converted(tried.arguments(), getattr(torch, name))
                assert self._refuses(tried, arguments, f", for {name}"), (
                    f"{tried.case.name}, for {name}: expected an error, because memory of another dtype would be read;"
                    " there was none"
                )

    def test_gradients_agree_with_float64(self) -> None:
        every = [tried for tried in self._every() if tried.case.differentiable]
        if not every:
            skip("no case is `differentiable`")
        for tried in every:
            case, arguments = tried.case, mapped(tried.arguments(), _requiring_grad)
            exact = mapped(converted(arguments, torch.float64), _requiring_grad)
            assert case.reference is not None
            results, expected = (
                tensors_of(tried.function(*arguments, **case.keywords)),
                tensors_of(case.reference(*exact, **case.keywords)),
            )
            # Drawn, and not all ones: a constant multiple of that hides in a softmax, whose slope sums up to 0.
            random = torch.Generator().manual_seed(0)
            upstream = [torch.randn(tensor.shape, generator=random).to(tensor) for tensor in results]
            torch.autograd.backward(results, upstream)
            torch.autograd.backward(expected, [own.to(tensor) for own, tensor in zip(upstream, expected, strict=True)])
            for number, (tensor, double) in enumerate(zip(tensors_of(arguments), tensors_of(exact), strict=True)):
                if tensor.grad is not None and double.grad is not None:
                    bounds = tolerance.bounds(case, tensor.dtype, double.grad)
                    problem = difference(tensor.grad, double.grad, *bounds)
                    assert not problem, f"{tried}: the gradient of tensor {number}: {problem}"
                assert (tensor.grad is None) == (double.grad is None), (
                    f"{case.name}: tensor {number} has the gradient {tensor.grad}, and {double.grad} in the reference"
                )

    def test_torch_compile_traces_it_as_a_whole(self) -> None:
        cases = [(case, function) for case, function in self._ops() if case.compiled]
        if not cases:
            skip("no case is an op of torch, and `compiled`")
        for case, function in cases:
            for dynamic in (False, True):
                self._trace(case, function, dynamic)

    def _trace(self, case: Case, function: Callable[..., Any], dynamic: bool) -> None:
        keywords = case.keywords
        torch._dynamo.reset()
        traced = torch.compile(
            lambda *arguments: function(*arguments, **keywords), fullgraph=True, backend=case.backend, dynamic=dynamic
        )
        for shape in case.shapes[-2:]:
            arguments = self._tried(case, function, shape).arguments()
            others = cloned(arguments)
            results, expected = (
                tensors_of((traced(*arguments), arguments)),
                tensors_of((function(*others, **keywords), others)),
            )
            is_same = len(results) == len(expected) and all(map(same, results, expected))
            assert is_same, (
                f"{case.name}: torch.compile(dynamic={dynamic}) gives {shortened(results)} for shape {shape}, expected"
                f" {shortened(expected)}: the fake kernel or the schema describes another op"
            )

    # what the tests share

    @cached_property
    def _cases(self) -> tuple[Case, ...]:
        cases = tuple(self.cases) or (cases_of(self.builder) if self.builder else ())
        assert cases, f"{type(self).__name__} has no cases: set `builder` to a builder that has, or `cases`"
        return cases

    def _compared(self) -> list[tuple[Case, Callable[..., Any]]]:
        """Returns the cases that have a reference, with their functions."""
        return [(case, case.bound(self.loaded)) for case in self._cases if case.reference is not None]

    def _ops(self) -> list[tuple[Case, Callable[..., Any]]]:
        """Returns the first case of each function that is an op of torch; the test is skipped if there is none."""
        by_schema: dict[str, tuple[Case, Callable[..., Any]]] = {}
        for case, function in self._compared():
            if (schema := getattr(getattr(function, "_opoverload", function), "_schema", None)) is not None:
                by_schema.setdefault(f"{schema.name}{schema.overload_name}", (case, function))
        if not by_schema:
            skip("no case with a reference is an op of torch")
        return [*by_schema.values()]

    def _dtypes(self, case: Case) -> Sequence[str]:
        return [name for name in case.dtypes if not self.short or name in self.SHORT_DTYPES] or case.dtypes[:1]

    def _tried(self, case: Case, function: Callable[..., Any], shape: tuple[int, ...], dtype: str = "") -> Tried:
        return Tried(case, function, shape, dtype or case.dtypes[0], self.device)

    def _with_references(self) -> list[tuple[Case, Callable[..., Any]]]:
        """Returns the cases that have a reference; the test is skipped if none has."""
        compared = self._compared()
        if not compared:
            skip("no case has a reference")
        return compared

    def _every(self) -> Iterator[Tried]:
        """Yields each case with each of its shapes and dtypes; of the short contract with the last shapes."""
        for case, function in self._with_references():
            for dtype in self._dtypes(case):
                for shape in case.shapes[-self.SHORT_SHAPES if self.short else 0 :]:
                    yield self._tried(case, function, shape, dtype)

    def _largest(self) -> Iterator[Tried]:
        """Yields each case with its last shape and first dtype."""
        for case, function in self._with_references():
            yield self._tried(case, function, case.shapes[-1])

    def _of_each(self, cases: Sequence[tuple[Case, Callable[..., Any]]]) -> Iterator[Tried]:
        """Yields each of these cases with its largest shape, for each dtype."""
        for case, function in cases:
            for dtype in self._dtypes(case):
                yield self._tried(case, function, max(case.shapes, key=_elements), dtype)

    def _promising(self, promise: Promise, every: bool = False, larger: bool = False) -> Iterator[Tried]:
        """Yields the cases that promise it: with the largest shape, with every one, or with larger ones too."""
        found = [(case, function) for case, function in self._with_references() if promise in case.promises]
        if not found:
            skip(f"no case promises {promise}")
        if every:
            yield from (tried for tried in self._every() if promise in tried.case.promises and 0 not in tried.shape)
            return
        for tried in self._of_each(found):
            yield tried
            for shape in tried.case.many() if larger else ():
                yield tried._replace(shape=shape)

    def _same(self, tried: Tried, first: Sequence[Tensor], other: Sequence[Tensor], what: str) -> None:
        for number, (one, two) in enumerate(zip(first, other, strict=True)):
            assert same_bytes(one, two), f"{tried}: {what} returns other bytes in result {number}; it promises the same"

    def _rows(self, case: Case, arguments: tuple[Any, ...]) -> int:
        position, dimension = next((position, at) for position, at in case.batch.items() if at is not None)
        return tensors_of(arguments[position])[0].shape[dimension]

    def _row_dimensions(self, tried: Tried) -> list[int]:
        """Returns the dimension of the rows of each result."""
        changed, arguments = comparison.changed_positions(tried.function), tried.arguments()
        of_changed = [
            tried.case.batch.get(position) or 0 for position in changed for _tensor in tensors_of(arguments[position])
        ]
        count = len(tried.results(arguments))
        return [0] * (count - len(of_changed)) + of_changed

    def _part(self, case: Case, arguments: tuple[Any, ...], start: int, length: int) -> tuple[Any, ...]:
        """Returns the arguments for some rows."""
        parts = list(arguments)
        for position, dimension in case.batch.items():
            if dimension is None:
                parts[position] = length
            else:
                parts[position] = mapped(
                    arguments[position],
                    partial(_rows_of, dimension, start, length),
                )
        return tuple(parts)

    def _refuses(self, tried: Tried, arguments: tuple[Any, ...], what: str) -> bool:
        """Returns whether the op refuses a copy of these arguments. Fails if it changes them before it does."""
        copies = mapped(arguments, _clone_with_strides)
        try:
            tried.function(*copies, **tried.case.keywords)
        except REFUSAL as error:
            is_same = all(map(same, tensors_of(copies), tensors_of(arguments)))
            assert is_same, (
                f"{tried}{what}: it changed its arguments before it raised {error!r}: check all of them first"
            )
            return True
        return False


LONG = frozenset(
    (
        "test_torch_compile_traces_it_as_a_whole",
        "test_gradients_agree_with_float64",
        "test_nothing_is_read_or_written_outside",
        "test_tensors_of_any_strides_are_read_right_or_refused",
        "test_arguments_that_the_schema_does_not_mark_are_left_alone",
        "test_a_tensor_that_is_copied_on_write_is_copied_before_it_is_written",
    )
)
"""The tests that `opforge check` leaves out: what they find is in the code, and not in the machine."""


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _moved(offset: int, tensor: Tensor) -> Tensor:
    """Returns a tensor of the same values so many elements later in its storage."""
    return surrounded(tensor, offset)[0]


def _rows_of(dimension: int, start: int, length: int, tensor: Tensor) -> Tensor:
    return tensor.narrow(dimension, start, length).contiguous().clone()


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
