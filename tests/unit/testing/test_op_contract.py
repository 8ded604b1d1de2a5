"""The contract of ops: it passes for a correct op, and finds each defect, with a reason that names it."""

from __future__ import annotations

import pytest
import torch
from support.contracts import wrong_ops

from opforge.testing import OpContract


class Square(OpContract):
    """The contract of x * x; a subclass has the op."""

    def inputs(self, shape, dtype):
        return (torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype),)

    def reference(self, x):
        return x * x


class TestSquare(Square):
    dtypes = (torch.float32, torch.bfloat16, torch.float64)

    def make_op(self):
        return wrong_ops.registered(wrong_ops.square)


class TestComplex(Square):
    """Rounded to complex64, a product differs from that in complex128; a NaN may be in either part."""

    dtypes = (torch.complex64,)

    def make_op(self):
        def square(x: torch.Tensor) -> torch.Tensor:
            if not x.is_complex():
                raise TypeError("complex numbers expected")
            return x * x

        return wrong_ops.registered(square)

    def test_other_dtypes_are_refused(self):
        x = torch.randn(3)
        with pytest.raises(TypeError):
            self.op(x)


class TestChanged(OpContract):
    """An op that changes one argument, writes another, and takes a list."""

    outputs = ("total",)

    def make_op(self):
        def scale_(xs: list[torch.Tensor], total: torch.Tensor, by: float) -> None:
            if not all(x.is_floating_point() for x in xs):
                raise TypeError("floating-point numbers expected")
            total.copy_(sum(xs, torch.zeros_like(total)))
            for x in xs:
                x.mul_(by)

        name = "opforge_wrong::scale_" + str(id(self))
        return torch.library.custom_op(name, scale_, mutates_args=("xs", "total"))

    def inputs(self, shape, dtype):
        return [torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)], torch.zeros(shape, dtype=dtype), 0.5

    def reference(self, xs, total, by):
        return [x * by for x in xs], sum(xs)


class TestWithGradient(Square):
    differentiable = True

    def make_op(self):
        op = wrong_ops.registered(wrong_ops.square)
        op.register_autograd(
            lambda ctx, dy: 2 * ctx.saved_tensors[0] * dy,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        return op


def failure(function, test, fake=torch.empty_like, **attributes):
    """Returns the reason why this test of the contract fails, for an op with a defect."""
    attributes["make_op"] = lambda self: wrong_ops.registered(function, fake)
    attributes["names"] = classmethod(lambda cls: [f"test_{test}"])
    with pytest.raises(AssertionError) as error:
        type("Wrong", (Square,), attributes).check()
    return str(error.value)


DEFECTS = [
    (wrong_ops.without_tail, "every_element_is_written", "[0] is nan, expected"),
    (wrong_ops.without_nan, "nan_and_infinity_have_the_references_result", "is 0.0, expected nan"),
    (wrong_ops.without_strides, "tensors_of_any_strides_are_read_right_or_refused", "with tensors with gaps result 0"),
    (wrong_ops.reading_outside, "nothing_is_read_or_written_outside", "at an unaligned address between NaN result 0"),
    (wrong_ops.writing_outside, "nothing_is_read_or_written_outside", "the op writes outside of a tensor"),
    (wrong_ops.of_low_precision, "results_agree_with_float64", "differs from the reference in float64: "),
    (
        wrong_ops.of_any_dtype,
        "other_dtypes_are_refused",
        "for torch.int64: expected an error, because memory",
    ),
    (wrong_ops.changing_its_argument, "arguments_that_the_schema_does_not_mark_are_left_alone", "changed argument 0"),
    (wrong_ops.failing_without_elements, "results_agree_with_float64", "RuntimeError: invalid launch: no blocks"),
]


@pytest.mark.parametrize(("function", "test", "text"), DEFECTS, ids=lambda value: getattr(value, "__name__", ""))
def test_each_defect_is_found_by_its_test_with_a_reason(function, test, text):
    assert text in failure(function, test)


def test_a_fake_kernel_of_another_shape_is_found():
    test = "torch_accepts_schema_fake_kernel_and_autograd"
    reason = failure(wrong_ops.square, test, fake=lambda x: x.new_empty((*x.shape, 1)))
    assert "torch.library.opcheck fails for shape" in reason


def test_an_op_that_refuses_strides_must_do_so_before_it_changes_anything():
    test = "tensors_of_any_strides_are_read_right_or_refused"
    assert "it changed its arguments before it raised" in failure(wrong_ops.after_a_write, test, strided=False)
    assert "result 0 differs" in failure(wrong_ops.without_strides, test, strided=False)


def test_a_wrong_gradient_is_found():
    def make_op(self):
        op = wrong_ops.registered(wrong_ops.square)
        op.register_autograd(lambda ctx, dy: dy)
        return op

    contract = type("Wrong", (Square,), {"make_op": make_op, "differentiable": True})
    with pytest.raises(AssertionError, match=r"test_gradients_agree_with_float64: the gradient of tensor 0, for shape"):
        contract.check()


def test_a_reference_with_another_number_of_results_is_an_error():
    contract = type("Wrong", (TestSquare,), {"reference": lambda self, x: (x * x, x)})
    with pytest.raises(AssertionError, match="there are 1 results, and 2 of the reference: it returns what the op"):
        contract().test_results_agree_with_float64()


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
