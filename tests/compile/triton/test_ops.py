"""The Triton ops of rows by Triton's interpreter, against float64. tests/device/test_triton.py runs them on a GPU."""

from __future__ import annotations

import sys

import pytest
import torch
from support.gpu import fake_gpu
from support.gpu.triton_cases import DTYPES, INTERPRETED, SHAPES, as_doubles, close, matrix
from support.paths import CHECKOUT

from opforge.ops import triton as ops
from opforge.ops.triton import activations, references

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
        y, expected = op(x, *parameters, eps=1e-3), reference(*doubles, 1e-3)
        dy = torch.randn(rows, columns).to(dtype)
        close(y, expected, dtype, times=8)
        y.backward(dy)
        expected.backward(dy.double())
        for tensor, double in zip(inputs, doubles, strict=True):
            close(tensor.grad, double.grad, dtype, times=30)


@pytest.mark.parametrize("columns", [48, 20000])
def test_norms_accept_float32_weights_with_low_precision_rows(columns):
    x = matrix(2, columns, torch.float16)
    weight, bias = torch.randn(columns, requires_grad=True), torch.randn(columns, requires_grad=True)
    y = ops.layer_norm(x, weight, bias)
    expected = references.layer_norm(*as_doubles(x, weight, bias), 1e-5)
    close(y, expected, torch.float16, times=4)
    y.sum().backward()
    assert weight.grad.dtype == torch.float32 and y.dtype == x.grad.dtype == torch.float16


def test_norms_without_weights_and_with_a_mean_far_from_zero():
    x = torch.randn(4, 3, 20000) + 1000.0
    close(
        ops.layer_norm(x), references.layer_norm(x.double(), torch.ones(()), torch.zeros(()), 1e-5), torch.float32, 500
    )
    close(ops.rms_norm(x), references.rms_norm(x.double(), torch.ones(()), 1e-6), torch.float32)


@pytest.mark.parametrize("columns", [128, 20001])
def test_a_layer_norm_of_equal_values_is_the_bias_whatever_they_are(columns):
    """A mean that is one rounding off would give the whole of the weight."""
    values = torch.rand(32, generator=torch.Generator().manual_seed(0)) * 1e5
    x, weight, bias = values[:, None].expand(-1, columns).contiguous(), torch.randn(columns), torch.randn(columns)
    assert torch.equal(ops.layer_norm(x, weight, bias), bias.expand_as(x))


def test_gradients_of_norms_are_the_same_bits_each_time():
    x, weight = matrix(40, 64, torch.float32), torch.randn(64, requires_grad=True)
    gradients = []
    for _ in range(2):
        weight.grad = None
        ops.rms_norm(x, weight).sum().backward()
        gradients.append(weight.grad)
    assert torch.equal(*gradients)


def test_what_a_norm_keeps_may_have_gaps():
    x, weight, statistics = torch.randn(3, 16), torch.randn(16), torch.rand(3, 4)
    calls = torch.ops.opforge_triton
    mean, rstd = statistics[:, 0], statistics[:, 1]
    for ours, kept in ((calls.rms_norm_backward, (rstd,)), (calls.layer_norm_backward, (weight, mean, rstd))):
        expected = ours(x, x, weight, *(tensor.contiguous() for tensor in kept))
        assert all(map(torch.equal, ours(x, x, weight, *kept), expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "columns", "gap"), SHAPES)
def test_softmax_and_its_gradient_agree_with_the_reference(rows, columns, gap, dtype):
    x = matrix(rows, columns, dtype, gap)
    (double,) = as_doubles(x)
    y, expected = ops.softmax(x), references.softmax(double)
    close(y, expected, dtype)
    dy = torch.randn(rows, columns).to(dtype)
    y.backward(dy)
    expected.backward(dy.double())
    close(x.grad, double.grad, dtype, times=4)


@pytest.mark.parametrize("columns", [64, 20000])
def test_softmax_of_extreme_rows_agrees_with_torch(columns):
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
    y, expected = ops.gelu(x, approximate), references.gelu(double, approximate)
    close(y, expected, dtype)
    y.sum().backward()
    expected.sum().backward()
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
    y, expected = ops.swiglu(gate, up), references.swiglu(*doubles)
    close(y, expected, dtype)
    y.sum().backward()
    expected.sum().backward()
    for tensor, double in zip((gate, up), doubles, strict=True):
        close(tensor.grad, double.grad, dtype)


@pytest.mark.parametrize("columns", [5000, 4096])
def test_a_row_of_swiglu_with_more_blocks_than_a_grid_takes_is_launched_in_parts(monkeypatch, columns):
    monkeypatch.setattr(activations, "MOST_BLOCKS", 2)
    gate, up = (torch.randn(2, columns, requires_grad=True) for _ in range(2))
    doubles = [tensor.detach().double().requires_grad_() for tensor in (gate, up)]
    y, expected = ops.swiglu(gate, up), references.swiglu(*doubles)
    close(y, expected, torch.float32)
    dy = torch.randn_like(y)
    y.backward(dy)
    expected.backward(dy.double())
    for tensor, double in zip((gate, up), doubles, strict=True):
        close(tensor.grad, double.grad, torch.float32)


def test_gradients_of_swiglu_at_gates_so_large_that_products_overflow():
    gate = torch.tensor([-3e38, -1e38, -200.0, 1e30, 3e38], requires_grad=True)
    up = torch.tensor([9.0, 1e38, 3e38, 2.0, 0.5], requires_grad=True)
    dy = torch.tensor([7.0, 100.0, 5.0, 2.0, 0.5])
    gradients = torch.autograd.grad(ops.swiglu(gate, up), (gate, up), dy)
    expected = torch.tensor([[0.0, 0.0, 0.0, 4.0, 0.25], [0.0, 0.0, 0.0, 2e30, 1.5e38]])
    torch.testing.assert_close(torch.stack(gradients), expected, atol=0.0, rtol=1e-6)


def test_swiglu_accepts_the_halves_of_one_tensor():
    whole = torch.randn(2, 3, 128, requires_grad=True)
    gate, up = whole.chunk(2, -1)
    close(ops.swiglu(gate, up), references.swiglu(gate.double(), up.double()), torch.float32)
    close(ops.swiglu(gate.transpose(0, 2), up.transpose(0, 2)).transpose(0, 2), ops.swiglu(gate, up), torch.float32)


@pytest.mark.filterwarnings("ignore:Input #. requires gradient and is not a double precision:UserWarning")
def test_gradients_agree_with_finite_differences():
    """In float32. No formula of opforge is on both sides of the comparison."""
    x, up, weight, bias = (torch.randn(3, 20), torch.randn(3, 20), torch.randn(20), torch.randn(20))
    for function, inputs in (
        (ops.rms_norm, (x, weight)),
        (ops.layer_norm, (x, weight, bias)),
        (ops.softmax, (x,)),
        (ops.gelu, (x,)),
        (lambda x: ops.gelu(x, "tanh"), (x,)),
        (ops.swiglu, (x, up)),
    ):
        inputs = tuple(tensor.detach().requires_grad_() for tensor in inputs)
        assert torch.autograd.gradcheck(function, inputs, eps=1e-2, atol=5e-3, rtol=1e-2, fast_mode=True)


COMPILED = pytest.mark.long("torch compiles each contender; without it they make the same calls")


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=COMPILED)])
def test_the_gpu_benchmarks_of_rows_make_their_calls(monkeypatch, compiled):
    """Runs each contender once, with small tensors, and compares its result with opforge's. Nothing is timed."""
    monkeypatch.syspath_prepend(CHECKOUT)
    from benchmarks.gpu import rows

    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    fake_gpu.shrink(rows, monkeypatch, 64)
    gpu = fake_gpu.create()
    figures = list(rows.run(gpu, compiled=compiled))
    assert len(gpu.results) == 14 and len({(figure.task, figure.contender) for figure in figures}) == len(figures)
    for results in gpu.results:
        assert ("torch.compile" in results) is compiled
        fake_gpu.assert_results_agree(results)
