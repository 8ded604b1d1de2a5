"""The contract of ops: it passes for a correct op, and finds each defect, with a reason that names it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from support.contracts import wrong_ops

from opforge.ops import reference
from opforge.ops.cases import ORDINARY, Case, Promise
from opforge.testing import OpContract, comparison
from opforge.testing.tensors import mapped


def op_of(function, fake=torch.empty_like):
    """Returns what a case has as its function."""
    made = wrong_ops.registered(function, fake)
    return lambda _loaded: made


def square_case(function=None, **others):
    return Case(
        "square",
        inputs=lambda place: (place.draw(*place.shape),),
        function=function or op_of(wrong_ops.square),
        reference=lambda x: x * x,
        **others,
    )


def contract_of(*cases, **attributes):
    return type("Contract", (OpContract,), {"cases": cases, **attributes})


class TestSquare(OpContract):
    cases = (
        square_case(
            dtypes=("float32", "bfloat16", "float64"),
            promises=(*ORDINARY, Promise.BATCH, Promise.ZEROS),
            batch={0: 0},
        ),
    )


def square_of_complex(x: torch.Tensor) -> torch.Tensor:
    if not x.is_complex():
        raise TypeError("complex numbers expected")
    return x * x


class TestComplex(OpContract):
    """Rounded to complex64, a product differs from that in complex128; a NaN may be in either part."""

    cases = (square_case(op_of(square_of_complex), dtypes=("complex64",), refused_dtypes=()),)

    def test_real_numbers_are_refused(self):
        with pytest.raises(TypeError):
            self.cases[0].bound(None)(torch.randn(3))


def scale_op():
    def scale_(xs: list[torch.Tensor], total: torch.Tensor, by: float) -> None:
        if not all(x.is_floating_point() for x in xs):
            raise TypeError("floating-point numbers expected")
        total.copy_(sum(xs, torch.zeros_like(total)))
        for x in xs:
            x.mul_(by)

    made = torch.library.custom_op("opforge_wrong::scale_list_", scale_, mutates_args=("xs", "total"))
    return lambda _loaded: made


class TestChanged(OpContract):
    """An op that changes one argument, writes another, and takes a list."""

    cases = (
        Case(
            "scale",
            inputs=lambda place: (
                [place.draw(*place.shape), place.draw(*place.shape, seed=2)],
                place.draw(*place.shape),
                0.5,
            ),
            function=scale_op(),
            reference=lambda xs, total, by: ([x * by for x in xs], sum(xs)),
            outputs=("total",),
            batch={0: 0, 1: 0},
            promises=(*ORDINARY, Promise.BATCH),
        ),
    )


def square_with_gradient():
    op = wrong_ops.registered(wrong_ops.square)
    op.register_autograd(
        lambda ctx, dy: 2 * ctx.saved_tensors[0] * dy,
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
    )
    return lambda _loaded: op


class TestWithGradient(OpContract):
    cases = (square_case(square_with_gradient(), differentiable=True),)


def copied(x: torch.Tensor) -> torch.Tensor:
    if not x.is_floating_point():
        raise TypeError("floating-point numbers expected")
    return x.clone()


class TestCopy(OpContract):
    """A copy keeps the bits of each NaN."""

    cases = (
        Case(
            "copy",
            inputs=lambda place: (place.draw(*place.shape),),
            function=op_of(copied),
            reference=lambda x: x.clone(),
            dtypes=("float32", "bfloat16", "float16", "float64"),
            promises=(*ORDINARY, Promise.ZEROS, Promise.PAYLOADS),
        ),
    )


def failure(function, test, fake=torch.empty_like, **fields):
    """Returns the reason why this test of the contract fails, for an op with a defect."""
    names = classmethod(lambda cls: [f"test_{test}"])
    with pytest.raises(AssertionError) as error:
        contract_of(square_case(op_of(function, fake), **fields), names=names).check()
    return str(error.value)


DEFECTS = [
    (wrong_ops.without_tail, "every_element_is_written", "[0] is nan, expected"),
    (wrong_ops.without_nan, "nan_and_infinity_have_the_references_result", "is 0.0, expected nan"),
    (
        wrong_ops.without_nan,
        "a_nan_reaches_what_it_reaches_in_the_reference",
        "with one NaN in the floating-point tensor",
    ),
    (wrong_ops.without_infinities, "nan_and_infinity_have_the_references_result", "expected inf"),
    (wrong_ops.without_strides, "tensors_of_any_strides_are_read_right_or_refused", "with tensors with gaps: result 0"),
    (wrong_ops.reading_outside, "nothing_is_read_or_written_outside", "at an unaligned address between NaN: result 0"),
    (wrong_ops.writing_outside, "nothing_is_read_or_written_outside", "the op writes outside of a tensor"),
    (wrong_ops.of_low_precision, "results_agree_with_float64", "differs from the reference in float64: "),
    (wrong_ops.of_low_precision, "errors_are_not_far_above_eagers", "units of the op's conditioning, and eager's"),
    (wrong_ops.of_any_dtype, "other_dtypes_are_refused", "for int64: expected an error, because memory"),
    (wrong_ops.changing_its_argument, "arguments_that_the_schema_does_not_mark_are_left_alone", "changed argument 0"),
    (
        wrong_ops.through_a_const_address,
        "a_tensor_that_is_copied_on_write_is_copied_before_it_is_written",
        "which shares its memory with argument 0 until",
    ),
    (wrong_ops.failing_without_elements, "results_agree_with_float64", "RuntimeError: invalid launch: no blocks"),
    (wrong_ops.at_random, "repeated_calls_return_the_same_bytes", "the next call returns other bytes in result 0"),
    (wrong_ops.by_threads, "any_number_of_threads_gives_the_same_bytes", "threads a call returns other bytes"),
    (
        wrong_ops.by_address,
        "any_alignment_gives_the_same_bytes",
        "elements later in their storage a call returns other",
    ),
]


@pytest.mark.parametrize(("function", "test", "text"), DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_defect_is_found_by_its_test_with_a_reason(function, test, text):
    assert text in failure(function, test)


def test_an_error_where_the_exact_result_is_zero_for_all_inputs_is_judged_by_the_tolerance():
    def difference(x, order):
        return torch.cat([x, x.sum(-1, keepdim=True) - x[..., order].sum(-1, keepdim=True)], -1)

    names = classmethod(lambda cls: ["test_errors_are_not_far_above_eagers", "test_results_agree_with_float64"])
    case = square_case(lambda _loaded: partial(difference, order=torch.arange(8, -1, -1)), shapes=((3, 9),))
    same, other = (partial(difference, order=torch.arange(9).roll(shift)) for shift in (0, 4))
    for reference_of_zero in (same, other):  # 0, and what float64 rounds
        contract_of(replace(case, reference=reference_of_zero, tolerance=1e-5), names=names).check()
    with pytest.raises(AssertionError, match="differs from the reference in float64"):
        contract_of(replace(case, reference=same, tolerance=0), names=names).check()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_op_that_takes_denormal_numbers_for_zero_is_found(dtype):
    def flushed(x):
        return torch.where(x.abs() < torch.finfo(x.dtype).tiny, 0 * x.sign(), x)

    names = classmethod(lambda cls: ["test_nan_and_infinity_have_the_references_result"])
    case = replace(square_case(lambda _loaded: flushed), reference=lambda x: x.clone(), tolerance=0, dtypes=(dtype,))
    with pytest.raises(AssertionError, match=r"denormal numbers: result 0 differs .* is -?0.0, expected"):
        contract_of(case, names=names).check()


def test_what_threads_compute_of_a_large_shape_is_compared():
    """Of the largest of `shapes` an op makes no work for a second thread."""

    def in_parts(x):
        return x * (1.5 if x.numel() >= 1 << 16 and torch.get_num_threads() > 1 else 1)

    test = "any_number_of_threads_gives_the_same_bytes"
    case = plain_case(in_parts, lambda x: x, shapes=((3, 30),))
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        assert "for shape (4370, 30) and float32: with 2 threads a call returns other bytes" in reason_of(case, test)
        torch.set_num_threads(2)
        assert "elements differ" in reason_of(case, test)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("fields", "shapes"),
    [
        ({"shapes": ((0,), (7,))}, ((1 << 17,),)),
        ({"shapes": ((3, 0),)}, ()),
        ({"shapes": ()}, ()),
        ({"shapes": ((3,),), "large_shape": (9, 9)}, ((9, 9),)),
        ({"sizes": (1 << 18,)}, ((1 << 18,),)),
        ({"shapes": ((3, 1 << 10),), "sizes": (1 << 10,)}, ((1 << 10,), (1 << 7, 1 << 10))),
    ],
)
def test_the_large_shapes_of_a_case(fields, shapes):
    assert plain_case(copied, copied, **fields).many() == shapes


def test_what_a_function_of_python_changes_is_said_by_its_case():
    def in_place(x):
        return x.mul_(2)

    test = "arguments_that_the_schema_does_not_mark_are_left_alone"
    assert "changed argument 0" in reason_of(plain_case(in_place, lambda x: x * 2), test)
    assert reason_of(plain_case(in_place, lambda x: x * 2, changed=(0,)), test) == ""


def test_ops_without_a_schema_of_their_own_get_the_callers_memory():
    """In copies neither an address nor a write outside would show."""
    from opforge.ops.cases.inference_core import INFERENCE
    from opforge.ops.cases.optimizers import FUSED_LAMB
    from opforge.ops.cases.quantizer import QUANTIZER
    from opforge.testing.ops import Tried
    from opforge.testing.tensors import surrounded, tensors_of

    seen = []

    class Recorder:
        def __getattr__(self, name):
            return lambda *arguments, **_keywords: seen.append(arguments) or arguments[0]

    split = [case for case in QUANTIZER if "4 bits" in case.name and not isinstance(case.function, str)]
    assert split
    for case in (FUSED_LAMB[0], INFERENCE[1], *split):
        tried = Tried(case, case.bound(Recorder()), case.shapes[-1], "float32", "cpu")
        arguments = mapped(tried.arguments(), lambda tensor: surrounded(tensor)[0])
        tried.results(arguments)
        wanted = {tensor.data_ptr() for tensor in tensors_of(arguments)}
        assert wanted <= {tensor.data_ptr() for tensor in tensors_of(seen.pop())}, case.name


class WithSchema:
    """A function of Python with a schema, as an op has one."""

    def __init__(self, schema, function):
        self._schema, self.function = torch._C.parse_schema(f"opforge_wrong::{schema}"), function

    def __call__(self, *arguments, **keywords):
        return self.function(*arguments, **keywords)


def plain_case(function, reference, **fields):
    """Returns a case of a plain function, of which torch's own tools are not asked."""
    inputs = fields.pop("inputs", lambda place: (place.draw(*place.shape),))
    return Case("plain", inputs, lambda _loaded: function, reference=reference, refused_dtypes=(), **fields)


def reason_of(case, test):
    """Returns why a test of the contract fails for a case; empty if it passes."""
    try:
        getattr(contract_of(case)(), f"test_{test}")()
    except (AssertionError, ValueError) as error:
        return str(error)
    return ""


INFINITY = "nan_and_infinity_have_the_references_result"


def test_an_infinite_gradient_that_an_optimizer_ignores_is_found():
    from opforge.ops.cases.optimizers import CPU_ADAM

    def step(params, grads, averages, squares, **keywords):
        for lists in zip(params, grads, averages, squares, strict=True):
            param, grad, average, square = (tensor.double() for tensor in lists)
            grad = torch.where(grad.isinf(), 0.0, grad)
            updated = reference.adam(param, grad, average, square, **keywords)
            for number, value in zip((0, 2, 3), updated, strict=True):
                lists[number].copy_(value)

    schema = "adam(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] m, Tensor(c!)[] v) -> ()"
    case = replace(CPU_ADAM[0], function=lambda _loaded: WithSchema(schema, step), dtypes=("float32",))
    assert reason_of(case, "results_agree_with_float64") == ""
    assert "elements differ" in reason_of(case, INFINITY)


def test_an_infinity_in_a_row_without_nan_is_found_where_rows_are_added_up():
    case = plain_case(
        wrong_ops.softmax_of_clamped, lambda x: x.square().sqrt().softmax(-1), shapes=((3, 30),), tolerance=1e-5
    )
    assert "expected nan" in reason_of(case, INFINITY)


def test_infinities_that_leave_no_finite_result_try_nothing():
    case = plain_case(lambda x: x.sum() - x.sum() + x * 0, lambda x: x.sum() - x.sum() + x * 0, shapes=((100,),))
    assert "the reference has no finite result" in reason_of(case, INFINITY)


def test_a_copy_that_is_exact_may_not_be_off_by_a_unit():
    def off(x):
        return torch.nextafter(x, x + 1)

    assert "elements differ" in reason_of(plain_case(off, lambda x: x, tolerance=0), "results_agree_with_float64")
    assert reason_of(plain_case(off, lambda x: x), "results_agree_with_float64") == ""


@pytest.mark.parametrize(
    ("function", "reference"),
    [(lambda x: x * 1.02, lambda x: x), (lambda x: torch.zeros_like(x), lambda x: x.softmax(-1))],
    ids=["2% too large", "zeros for small results"],
)
def test_errors_in_bfloat16_are_found_that_are_small_beside_1(function, reference):
    case = plain_case(function, reference, dtypes=("bfloat16",), shapes=((3, 800),))
    assert "elements differ" in reason_of(case, "results_agree_with_float64")


def test_numbers_are_compared_and_no_result_is_an_error():
    case = plain_case(lambda x: 42.0, lambda x: float(x.sum()), shapes=((7,),))
    assert "[] is 42.0, expected" in reason_of(case, "results_agree_with_float64")
    assert reason_of(plain_case(lambda x: 7, lambda x: 7), "results_agree_with_float64") == ""
    case = plain_case(lambda x: None, lambda x: None)
    assert "there is no result, neither of the function nor" in reason_of(case, "results_agree_with_float64")


def filled_from(out, x):
    """Leaves zeros of `x` as they are in `out`."""
    out.copy_(torch.where(x == 0, out, x))


def test_outputs_are_arguments_of_the_schema_or_positions():
    def case(function, *outputs):
        inputs = lambda place: (torch.zeros(place.shape), torch.zeros(place.shape))  # noqa: E731
        return plain_case(function, lambda _out, x: x, inputs=inputs, outputs=outputs, shapes=((7,),))

    test, op = "results_agree_with_float64", WithSchema("fill(Tensor(a!) out, Tensor x) -> ()", filled_from)
    assert reason_of(case(op), test) == ""
    assert "is nan, expected 0.0" in reason_of(case(op, "out"), test)
    assert reason_of(case(op, "output"), test) == (
        "the case 'plain' has 'output' in `outputs`; expected names of its schema: out, x"
    )

    def fill(out, x):
        filled_from(out, x)
        return out

    assert "'out' in `outputs`; it has no schema: give positions" in reason_of(case(fill, "out"), test)
    assert "is nan, expected 0.0" in reason_of(case(fill, 0), test)


def test_a_gradient_of_zeros_is_found_where_the_slopes_sum_up_to_zero():
    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.softmax(-1)

        @staticmethod
        def backward(ctx, gradient):
            return torch.zeros_like(gradient)

    case = plain_case(Softmax.apply, lambda x: x.softmax(-1), shapes=((3, 8),), differentiable=True)
    assert "the gradient of tensor 0: 24 of 24" in reason_of(case, "gradients_agree_with_float64")


def test_dtypes_that_no_case_refuses_are_not_tried():
    skipped = contract_of(plain_case(lambda x: x * 1, lambda x: x)).check()
    assert skipped["test_other_dtypes_are_refused"] == "no case has `refused_dtypes`"


def test_a_row_that_depends_on_its_batch_is_found():
    test = "a_row_has_the_same_bytes_in_any_batch"
    reason = failure(wrong_ops.by_rows, test, batch={0: 0}, promises=(Promise.BATCH,))
    assert "in parts of 1 of 7 rows a call returns other bytes in result 0; it promises the same" in reason


def test_a_zero_of_the_other_sign_and_other_bits_of_a_nan_are_found():
    promises = (Promise.ZEROS, Promise.PAYLOADS)
    reason = failure(wrong_ops.without_signs, "zeros_have_the_references_sign", promises=promises)
    assert "is -0.0, expected 0.0; it promises the signs of zeros" in reason
    reason = failure(wrong_ops.without_payloads, "nan_payloads_are_those_of_the_reference", promises=promises)
    assert "result 0 has a NaN with other bits than in the reference" in reason


def test_what_is_not_promised_is_not_tried_but_nan_must_not_end_it():
    contract = contract_of(square_case(op_of(wrong_ops.without_nan), promises=(), refused_dtypes=()))
    skipped = contract.check()
    assert skipped["test_repeated_calls_return_the_same_bytes"] == "no case promises repeats"
    assert "test_a_nan_reaches_what_it_reaches_in_the_reference" not in skipped
    with pytest.raises(AssertionError, match="in_the_reference: ValueError: no NaN"):
        contract_of(square_case(op_of(wrong_ops.refusing_nan), promises=())).check()


def test_a_fake_kernel_of_another_shape_is_found():
    test = "torch_accepts_schema_fake_kernel_and_autograd"
    reason = failure(wrong_ops.square, test, fake=lambda x: x.new_empty((*x.shape, 1)))
    assert "torch.library.opcheck fails for shape" in reason


def test_an_op_that_refuses_strides_must_do_so_before_it_changes_anything():
    test = "tensors_of_any_strides_are_read_right_or_refused"
    assert "it changed its arguments before it raised" in failure(wrong_ops.after_a_write, test, strided=False)
    assert "result 0 differs" in failure(wrong_ops.without_strides, test, strided=False)


def test_a_wrong_gradient_is_found():
    op = wrong_ops.registered(wrong_ops.square)
    op.register_autograd(lambda ctx, dy: dy)
    contract = contract_of(square_case(lambda _loaded: op, differentiable=True))
    with pytest.raises(AssertionError, match=r"test_gradients_agree_with_float64: .*: the gradient of tensor 0: "):
        contract.check()


def test_a_reference_with_another_number_of_results_is_an_error():
    case = Case("pair", lambda place: (place.draw(3),), op_of(wrong_ops.square), reference=lambda x: (x * x, x))
    with pytest.raises(AssertionError, match="there are 1 results, and 2 of the reference: it returns what the op"):
        contract_of(case)().test_results_agree_with_float64()


def test_errors_that_a_case_allows_by_element():
    """As for a format with few bits: half of its unit."""
    case = square_case(op_of(wrong_ops.of_low_precision), tolerance=lambda x: 1e-2 * (x * x).abs() + 1e-3, promises=())
    contract_of(case)().test_results_agree_with_float64()
    strict = square_case(op_of(wrong_ops.of_low_precision), tolerance=lambda x: 1e-9 * (x * x).abs(), promises=())
    with pytest.raises(AssertionError, match=r"elements differ; \[0\] is .*, expected .* within "):
        contract_of(strict)().test_results_agree_with_float64()


def test_an_error_of_just_what_a_case_allows_is_none():
    case = replace(square_case(), reference=lambda x: x * 0, tolerance=torch.ones_like)
    for result, is_far in ((1.0, False), (1.0 + torch.finfo(torch.float32).eps, True)):
        assert bool(comparison.problem(case, [torch.full((2,), result)], (torch.ones(2),))) == is_far


def test_checks_say_what_no_reference_does():
    def check(loaded, device):
        assert loaded == "the op", f"it got {loaded!r} on {device}"

    case = Case("memory", lambda place: place, checks={"a buffer is locked": check})
    assert "test_what_no_reference_says" not in OpContract.of((case,), "the op", "cpu").check()
    with pytest.raises(AssertionError, match="memory, a buffer is locked: it got 7 on cpu"):
        OpContract.of((case,), 7, "cpu").check()


def test_a_contract_without_cases_says_what_to_set():
    with pytest.raises(AssertionError, match="Contract has no cases: set `builder` to a builder that has, or `cases`"):
        contract_of().check()


def test_a_device_that_is_missing_skips_the_tests():
    contract = type("Elsewhere", (TestSquare,), {"device": "cuda"})
    if torch.get_device_module("cuda").is_available():
        pytest.skip("this machine has the device")
    skipped = contract.check()
    assert set(skipped) == set(contract.names()) and set(skipped.values()) == {"there is no cuda device here"}


@pytest.mark.parametrize("device", ["npu", "hpu"])
def test_a_device_that_torch_does_not_know_skips_the_tests(device):
    contract = type("Elsewhere", (TestSquare,), {"device": device})
    try:
        torch.get_device_module(device)
    except RuntimeError:
        skipped = contract.check()
        assert set(skipped) == set(contract.names())
        assert all(reason.startswith(f"this torch has no device {device}: ") for reason in skipped.values())
    else:
        pytest.skip("a vendor's package for torch is imported")


def test_new_memory_is_poisoned_and_torchs_settings_are_restored():
    from opforge.testing.tensors import poisoned_memory

    before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory
    with poisoned_memory():
        assert bool(torch.empty(100).isnan().all())
    assert (torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory) == before
