"""The Triton ops of rows by Triton's interpreter, against float64. Real launches: tests/device/test_triton.py."""

from __future__ import annotations

import sys

import pytest
import torch
from support.gpu import fake_gpu
from support.gpu.triton_cases import DTYPES, INTERPRETED, SHAPES, as_doubles, close, matrix
from support.paths import CHECKOUT

from opforge.ops import triton as ops
from opforge.ops.triton import references

pytestmark = INTERPRETED


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_norms_and_their_gradients_agree_with_the_references(rows, columns, gap, dtype):
    for op, count in ((ops.rms_norm, 1), (ops.layer_norm, 2)):
        reference = getattr(references, op.__name__)
        x = matrix(rows, columns, dtype, gap)
        parameters = [torch.randn(columns).to(dtype).requires_grad_() for _ in range(count)]
        inputs = [x, *parameters]
        doubles = as_doubles(*inputs)
        y, wanted = op(x, *parameters, eps=1e-3), reference(*doubles, 1e-3)
        given = torch.randn(rows, columns).to(dtype)
        close(y, wanted, dtype, times=8)
        y.backward(given)
        wanted.backward(given.double())
        for one, double in zip(inputs, doubles, strict=True):
            close(one.grad, double.grad, dtype, times=30)


@pytest.mark.parametrize("columns", [48, 20000])
def test_norms_take_float32_weights_beside_low_precision(columns):
    x = matrix(2, columns, torch.float16)
    weight, bias = torch.randn(columns, requires_grad=True), torch.randn(columns, requires_grad=True)
    y = ops.layer_norm(x, weight, bias)
    wanted = references.layer_norm(*as_doubles(x, weight, bias), 1e-5)
    close(y, wanted, torch.float16, times=4)
    y.sum().backward()
    assert weight.grad.dtype == torch.float32 and y.dtype == x.grad.dtype == torch.float16


def test_norms_without_weights_and_with_a_mean_far_from_zero():
    x = torch.randn(4, 3, 20000) + 1000.0
    close(
        ops.layer_norm(x), references.layer_norm(x.double(), torch.ones(()), torch.zeros(()), 1e-5), torch.float32, 500
    )
    close(ops.rms_norm(x), references.rms_norm(x.double(), torch.ones(()), 1e-6), torch.float32)


def test_gradients_of_norms_are_the_same_bits_each_time():
    x, weight = matrix(40, 64, torch.float32), torch.randn(64, requires_grad=True)
    found = []
    for _ in range(2):
        weight.grad = None
        ops.rms_norm(x, weight).sum().backward()
        found.append(weight.grad)
    assert torch.equal(*found)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_softmax_and_its_gradient_agree_with_the_reference(rows, columns, gap, dtype):
    x = matrix(rows, columns, dtype, gap)
    (double,) = as_doubles(x)
    y, wanted = ops.softmax(x), references.softmax(double)
    close(y, wanted, dtype)
    given = torch.randn(rows, columns).to(dtype)
    y.backward(given)
    wanted.backward(given.double())
    close(x.grad, double.grad, dtype, times=4)


@pytest.mark.parametrize("columns", [64, 20000])
def test_softmax_of_extreme_rows_is_as_torch_says(columns):
    x = torch.randn(5, columns)
    x[0] = float("-inf")
    x[1, 3] = float("inf")
    x[2, 5] = float("nan")
    x[3, 1:] = float("-inf")
    x[4] = 1e30
    torch.testing.assert_close(ops.softmax(x), torch.softmax(x, -1), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("count", [0, 1, 1023, 1024, 5000])
def test_gelu_and_its_gradient_agree_with_the_reference(count, approximate, dtype):
    x = (torch.randn(count) * 4).to(dtype).requires_grad_()
    (double,) = as_doubles(x)
    y, wanted = ops.gelu(x, approximate), references.gelu(double, approximate)
    close(y, wanted, dtype)
    y.sum().backward()
    wanted.sum().backward()
    close(x.grad, double.grad, dtype)


def test_gelu_of_extreme_values():
    x = torch.tensor([-1e30, -100.0, -0.0, 0.0, 100.0, 1e30, float("inf"), float("nan")], requires_grad=True)
    for approximate in ("none", "tanh"):
        y = ops.gelu(x, approximate)
        assert y[:6].tolist() == [0.0, 0.0, 0.0, 0.0, 100.0, x[5].item()] and y[6].isinf() and y[7].isnan()
        (gradient,) = torch.autograd.grad(y[1:6].sum(), x)
        assert gradient[1].item() == 0.0 and gradient[4].item() == 1.0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_swiglu_and_its_gradients_agree_with_the_reference(rows, columns, gap, dtype):
    gate, up = matrix(rows, columns, dtype, gap), matrix(rows, columns, dtype, gap)
    doubles = as_doubles(gate, up)
    y, wanted = ops.swiglu(gate, up), references.swiglu(*doubles)
    close(y, wanted, dtype)
    y.sum().backward()
    wanted.sum().backward()
    for one, double in zip((gate, up), doubles, strict=True):
        close(one.grad, double.grad, dtype)


def test_swiglu_takes_the_halves_of_one_tensor():
    whole = torch.randn(2, 3, 128, requires_grad=True)
    gate, up = whole.chunk(2, -1)
    close(ops.swiglu(gate, up), references.swiglu(gate.double(), up.double()), torch.float32)
    close(ops.swiglu(gate.transpose(0, 2), up.transpose(0, 2)).transpose(0, 2), ops.swiglu(gate, up), torch.float32)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision:UserWarning")
def test_gradients_are_the_slopes_of_what_is_computed():
    """By small steps, in float32: so that no formula of ours stands on both sides."""
    x, up, weight, bias = (torch.randn(3, 20), torch.randn(3, 20), torch.randn(20), torch.randn(20))
    for function, inputs in (
        (ops.rms_norm, (x, weight)),
        (ops.layer_norm, (x, weight, bias)),
        (ops.softmax, (x,)),
        (ops.gelu, (x,)),
        (lambda one: ops.gelu(one, "tanh"), (x,)),
        (ops.swiglu, (x, up)),
    ):
        inputs = tuple(one.detach().requires_grad_() for one in inputs)
        assert torch.autograd.gradcheck(function, inputs, eps=1e-2, atol=5e-3, rtol=1e-2, fast_mode=True)


def test_the_gpu_benchmarks_of_rows_make_their_calls(monkeypatch):
    """With small tensors: nothing is timed, but each contender runs, and gives what ours does."""
    monkeypatch.syspath_prepend(CHECKOUT)
    from benchmarks.gpu import rows

    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    fake_gpu.shrink(rows, monkeypatch, 64)
    gpu = fake_gpu.create()
    for compiled in (False, True):
        figures = list(rows.run(gpu, compiled=compiled))
        assert len(gpu.results) == 14 and len({(one.task, one.contender) for one in figures}) == len(figures)
        for results in gpu.results:
            assert ("torch.compile" in results) is compiled
            fake_gpu.assert_results_agree(results)
        gpu.results.clear()
